"""The counts of many pairs, from their headers."""

from __future__ import annotations

from collections.abc import Sequence

from tokenloom.indexed.layout import HEADER_BYTES, idx_path, parse_header, prefix_of
from tokenloom.storage.resolve import read_start


def sequence_counts(prefixes: Sequence[str]) -> dict[str, list[int]]:
    """Returns {prefix: [sequences, document boundaries]}, what `sequences_per_dataset` of a configuration takes.

    One read of 34 bytes per pair.

    Raises:
        StorageError: an index cannot be opened.
        DatasetFormatError: a header is foreign or truncated.
    """
    counts = {}
    for prefix in map(prefix_of, prefixes):
        path = idx_path(prefix)
        header = parse_header(read_start(path, HEADER_BYTES), path=path)
        counts[prefix] = [header.num_sequences, header.num_boundaries]
    return counts
