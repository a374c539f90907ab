"""Which records gave no document, blank lines and bad records, as runs of their numbers: many of them take no memory.

With it and the order of the documents, the record of each is known; where all records are documents, which is nearly
everywhere, nothing is stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

LeftOut = NDArray[np.int64]
"""int64[num_runs, 2], rising: the number of the first record of a run, from 0, and how many records the run has."""


def none_left_out() -> LeftOut:
    """Returns that all records gave a document."""
    return np.empty((0, 2), dtype=np.int64)


def left_out_of(numbers: Sequence[int] | NDArray[np.int64]) -> LeftOut:
    """Returns runs of records.

    Args:
        numbers: their numbers from 0, rising.

    Example:
        >>> left_out_of([0, 1, 5]).tolist()
        [[0, 2], [5, 1]]
    """
    each = np.array(numbers, dtype=np.int64)
    return _merged(np.stack([each, np.ones_like(each)], axis=1))


def num_left_out(left_out: LeftOut) -> int:
    """Returns how many records gave no document."""
    return int(left_out[:, 1].sum())


def joined_left_out(parts: Iterable[tuple[LeftOut, int]]) -> LeftOut:
    """Returns what was left out of parts that follow each other.

    Args:
        parts: what was left out of each, and how many records it has.
    """
    shifted = [none_left_out()]
    num_before = 0
    for left_out, num_records in parts:
        if len(left_out):
            shifted.append(left_out + np.array([num_before, 0], dtype=np.int64))
        num_before += num_records
    return _merged(np.concatenate(shifted))


def documents_between(left_out: LeftOut, start: int, stop: int) -> NDArray[np.int64]:
    """Returns the records [start, stop) that gave documents: int64[num_runs, 2], first record and count of each run.

    Example:
        >>> documents_between(np.array([[1, 2], [5, 1]]), 0, 8).tolist()
        [[0, 1], [3, 2], [6, 2]]
    """
    stops = left_out.sum(axis=1)
    first, last = np.searchsorted(stops, start, side="right"), np.searchsorted(left_out[:, 0], stop)
    starts = np.concatenate([[start], stops[first:last]])
    ends = np.concatenate([left_out[first:last, 0], [stop]])
    runs = np.stack([starts, ends - starts], axis=1).astype(np.int64)
    kept: NDArray[np.int64] = runs[runs[:, 1] > 0]
    return kept


def _merged(runs: LeftOut) -> LeftOut:
    """Returns the same runs, those that touch as one."""
    if len(runs) < 2:
        return runs
    stops = runs.sum(axis=1)
    is_first = np.concatenate([[True], runs[1:, 0] != stops[:-1]])
    firsts = runs[is_first, 0]
    is_last = np.concatenate([is_first[1:], [True]])
    return np.stack([firsts, stops[is_last] - firsts], axis=1)
