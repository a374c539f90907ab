"""Telling a dataset from another that took its place."""

from __future__ import annotations

import hashlib
from typing import Any

from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.storage.local import ByteSource, MappedFile

_NUM_PROBES = 32
_PROBE_BYTES = 512


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
        "idx_sample": _sampled_hash(index),
        "bin_sample": _sampled_hash(dataset.bin_reader),
    }


def _sampled_hash(source: ByteSource) -> str:
    """Returns the hash of pieces spread over the source, the first and the last bytes among them."""
    digest = hashlib.sha256()
    last = max(source.num_bytes - _PROBE_BYTES, 0)
    for probe in range(_NUM_PROBES):
        start = last * probe // (_NUM_PROBES - 1)
        digest.update(source.read(start, min(_PROBE_BYTES, source.num_bytes - start)).data)
    return digest.hexdigest()
