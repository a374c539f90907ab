"""Rows of CSV in bytes, compared with Python's `csv`."""

from __future__ import annotations

import csv
import io
import itertools

from hypothesis import given
from hypothesis import strategies as st

from tokenloom.inputs.delimited_rows import (
    RowScanner,
    fields_of,
    grammar_of,
    rows_of_bytes,
)

GRAMMAR = grammar_of(b",")

MESSES = st.lists(st.sampled_from(['"', '""', ",", "\n", "\r\n", "a", "é", " ", "\t", "b\x0bc"]), max_size=30).map(
    "".join
)
"""Text in which nothing need fit together."""


def read(row: bytes) -> list[str] | None:
    fields = fields_of(GRAMMAR, row.removesuffix(b"\n"))
    return None if fields is None else [each.decode() for each in fields]


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    bounds = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[start:stop] for start, stop in itertools.pairwise(bounds)]


@given(text=MESSES)
def test_rows_and_fields_are_those_of_csv(text: str):
    """Where the strict reader goes through; else the lenient one ends its rows where ours end."""
    data = text.encode()
    rows = list(rows_of_bytes(GRAMMAR, data))
    assert b"".join(rows) == data
    found = [[] if row in (b"\n", b"\r\n") else read(row) for row in rows]
    try:
        expected = list(csv.reader(io.StringIO(text, newline="\n"), strict=True))
    except csv.Error:
        assert None in found
        lenient = list(csv.reader(io.StringIO(text, newline="\n")))
        assert len(lenient) == len(found)
        for ours, theirs in zip(found, lenient, strict=True):
            assert ours is None or ours == theirs
    else:
        assert found == expected


@given(text=MESSES, cuts=st.lists(st.integers(0, 100), max_size=8))
def test_rows_end_at_the_same_places_however_the_bytes_come(text: str, cuts: list[int]):
    data = text.encode()
    expected = [row for row in rows_of_bytes(GRAMMAR, data) if row.endswith(b"\n")]
    scanner = RowScanner(grammar=GRAMMAR)
    ends, before = [], 0
    for piece in pieces(data, cuts):
        at = 0
        while (at := scanner.first_end(piece, at)) >= 0:
            ends.append(before + at)
        before += len(piece)
    starts = [0, *ends][: len(ends)]
    found = [data[start:stop] for start, stop in zip(starts, ends, strict=True)]
    if scanner.in_quotes:  # what an open quote swallows is one row, without an end
        expected = expected[: len(found)]
    assert found == expected
