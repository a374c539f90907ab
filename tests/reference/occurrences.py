"""Where documents are read in walks: the readable twin of the kernels, which looks at every sample of a walk."""

import itertools
from collections.abc import Iterable
from typing import Any

import numpy as np

from tokenloom.kernels.walks import sample_numbers

Occurrence = tuple[int, int, int, int, int, int]
"""Walk, document, window, start, length, slot."""


def scanned(reader: Any, walks: Iterable[int], documents: Iterable[int], *, num_windows: int) -> list[Occurrence]:
    """Returns where documents are read, sorted.

    Args:
        reader: a `SpanReader`, whose pairs are open.
        walks: numbers of walks.
        documents: numbers of documents.
        num_windows: samples of each walk.
    """
    wanted, found = set(documents), []
    for walk in walks:
        numbers = sample_numbers(np.full(num_windows, walk), np.arange(num_windows))
        *columns, offsets = reader.spans(numbers, keep_empty=False)
        spans = list(zip(*(column.tolist() for column in columns), strict=True))
        for window, (first, last) in enumerate(itertools.pairwise(offsets.tolist())):
            slot = 0
            for document, start, length in spans[first:last]:
                if document in wanted:
                    found.append((walk, document, window, start, length, slot))
                slot += length
    return sorted(found)


def rows_of(columns: Iterable[Any]) -> list[Occurrence]:
    """Returns what a kernel found, sorted."""
    return sorted(zip(*(column.tolist() for column in columns), strict=True))
