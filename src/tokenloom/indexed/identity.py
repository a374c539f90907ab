"""Telling a dataset from another that took its place."""

from __future__ import annotations

import time
from typing import Any

from tokenloom.errors import StorageError
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.storage.extents import ExtentSource
from tokenloom.storage.local import MappedFile, PositionalFile
from tokenloom.storage.objects import RemoteFile
from tokenloom.storage.sampling import sampled_hash_of
from tokenloom.storage.versions import version_of

_SETTLED_NS = 2_000_000_000
"""A file that was changed within so many nanoseconds may be changed again, and its time of change stay what it is."""


def dataset_identity(dataset: IndexedDataset) -> dict[str, Any]:
    """Returns what tells the data of a pair from other data: both sizes, the header's counts, and a hash of samples.

    JSON-serialisable; the same for a copy elsewhere, whatever the times of the files. Reads a fixed number of bytes, of
    local files that are still what they were when they were opened only once.
    Two pairs that differ only between the samples look alike. Tokens in object storage are told by their etag instead,
    where the store has one: samples of them would cost a round trip each. Of a catalogue, each pair is told by what was
    recorded of it, which it must still be.
    """
    is_settled = _is_settled(dataset)
    if not is_settled or dataset.identity_found is None:
        dataset.identity_found = _identity(dataset)
    return dict(dataset.identity_found)


def _is_settled(dataset: IndexedDataset) -> bool:
    """Whether both files are local, are what they were when they were opened, and would show that they changed."""
    for source in (dataset.index_source(), dataset.byte_source):
        if not isinstance(source, (MappedFile, PositionalFile)):
            return False
        try:
            found = version_of(source.path)
        except StorageError:
            return False
        if found != source.version or time.time_ns() - found.modified_ns < _SETTLED_NS:
            return False
    return True


def _identity(dataset: IndexedDataset) -> dict[str, Any]:
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
