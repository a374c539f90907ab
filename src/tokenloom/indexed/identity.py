"""Telling a dataset from another that took its place."""

from __future__ import annotations

from typing import Any

from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.storage.local import MappedFile
from tokenloom.storage.sampling import sampled_hash


def dataset_identity(dataset: IndexedDataset) -> dict[str, Any]:
    """Returns what tells the data of a pair from other data: both sizes, the header's counts, and a hash of samples.

    JSON-serialisable; the same for a copy elsewhere, whatever the times of the files. Reads a fixed number of bytes.
    Two pairs that differ only between the samples look alike.
    """
    header = dataset.index.header
    index = MappedFile(dataset.idx_path)
    return {
        "dtype": header.dtype.name,
        "num_sequences": header.num_sequences,
        "num_boundaries": header.num_boundaries,
        "idx_bytes": index.num_bytes,
        "bin_bytes": dataset.bin_reader.num_bytes,
        "idx_sample": sampled_hash(index.read, index.num_bytes),
        "bin_sample": sampled_hash(dataset.bin_reader.read, dataset.bin_reader.num_bytes),
    }
