"""Telling a dataset from another that took its place."""

from __future__ import annotations

from typing import Any

from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.storage.extents import ExtentSource
from tokenloom.storage.objects import RemoteFile
from tokenloom.storage.sampling import sampled_hash_of


def dataset_identity(dataset: IndexedDataset) -> dict[str, Any]:
    """Returns what tells the data of a pair from other data: both sizes, the header's counts, and a hash of samples.

    JSON-serialisable; the same for a copy elsewhere, whatever the times of the files. Reads a fixed number of bytes.
    Two pairs that differ only between the samples look alike. Tokens in object storage are told by their etag instead,
    where the store has one: samples of them would cost a round trip each. Of a catalogue, each pair is told by what was
    recorded of it, which it must still be.

    Raises:
        ChangedFileError: a mapped file lost bytes since it was opened, so that what was read of it does not count.
    """
    header = dataset.index.header
    index, tokens = dataset.index_source(), dataset.byte_source
    identity = {
        "dtype": header.dtype.name,
        "num_sequences": header.num_sequences,
        "num_boundaries": header.num_boundaries,
        "idx_bytes": index.num_bytes,
        "bin_bytes": dataset.extents.num_held_bytes,
        "idx_sample": sampled_hash_of(index),
    }
    if isinstance(tokens, ExtentSource) and dataset.catalogue is not None:
        tokens.check()
        dataset.check_index()
        return {**identity, "pairs": dataset.catalogue.identity()}
    dataset.check_index()
    if isinstance(tokens, RemoteFile) and tokens.version.etag is not None:
        return {**identity, "bin_etag": tokens.version.etag}
    sample = sampled_hash_of(tokens)
    dataset.check_tokens()
    return {**identity, "bin_sample": sample}
