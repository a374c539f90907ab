"""Runs of the records that gave no document, against lists of their numbers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenloom.inputs.left_out import (
    blank_lines,
    documents_between,
    joined_left_out,
    left_out_of,
    none_left_out,
    num_left_out,
)

SETS = st.sets(st.integers(0, 40)).map(sorted)


def numbers_in(runs: np.ndarray) -> list[int]:
    return [number for first, count in runs.tolist() for number in range(first, first + count)]


def test_numbers_become_the_fewest_runs():
    assert left_out_of([0, 1, 2, 5, 7, 8]).tolist() == [[0, 3], [5, 1], [7, 2]]
    assert left_out_of([]).tolist() == none_left_out().tolist() == []


def test_what_follows_is_counted_on_and_touching_runs_are_one():
    parts = [(left_out_of([1, 3]), 4), (none_left_out(), 0), (left_out_of([0, 2]), 5), (left_out_of([0]), 1)]
    assert joined_left_out(parts).tolist() == [[1, 1], [3, 2], [6, 1], [9, 1]]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", []),
        (b"a", []),
        (b"a\n", []),
        (b"\n", [[0, 1]]),
        (b" \t\r\x0b\x0c", [[0, 1]]),
        (b"a\n\n \nb\n \n", [[1, 2], [4, 1]]),
        (b"\n" * 3_000_000, [[0, 3_000_000]]),
        (b"a\n\n" * 600_000, [[2 * number + 1, 1] for number in range(600_000)]),
    ],
)
def test_blank_lines(data: bytes, expected: list[list[int]]):
    assert blank_lines(data).tolist() == expected


@given(st.lists(st.binary(max_size=3).map(lambda line: line.replace(b"\n", b" ")), max_size=12), st.booleans())
def test_blank_lines_are_those_that_python_finds(lines: list[bytes], is_ended: bool):
    data = b"\n".join(lines) + (b"\n" if is_ended and lines else b"")
    found = data.split(b"\n")[: None if data[-1:] not in (b"", b"\n") else -1]
    assert numbers_in(blank_lines(data)) == [number for number, line in enumerate(found) if not line.strip()]


@given(SETS, st.integers(0, 45), st.integers(0, 45))
def test_documents_are_all_other_records(numbers: list[int], one: int, other: int):
    start, stop = sorted((one, other))
    runs = documents_between(left_out_of(numbers), start, stop)
    assert numbers_in(runs) == [number for number in range(start, stop) if number not in numbers]
    assert num_left_out(left_out_of(numbers)) == len(numbers)
    assert (runs[:, 1] > 0).all()
