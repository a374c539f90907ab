"""Rows of CSV in bytes, compared with Python's `csv`."""

from __future__ import annotations

import csv
import io
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenloom.inputs.delimited_rows import (
    RowScanner,
    columns_of_rows,
    fields_of,
    grammar_of,
    num_rows_of,
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


@pytest.mark.parametrize(
    ("row", "fields"),
    [
        (b"a,b", [b"a", b"b"]),
        (b"a,", [b"a", b""]),
        (b",", [b"", b""]),
        (b'"a,b",c', [b"a,b", b"c"]),
        (b'"say ""no""",""', [b'say "no"', b""]),
        (b'"two\nlines",x\r', [b"two\nlines", b"x"]),
        (b'a"b, "c"', [b'a"b', b' "c"']),
        (b'"a"b,c', None),
        (b'"a', None),
        (b"a\rb,c", None),
    ],
)
def test_the_fields_of_a_row(row: bytes, fields: list[bytes] | None):
    assert fields_of(GRAMMAR, row) == fields


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


@given(text=MESSES)
def test_the_last_end_is_the_last_of_all(text: str):
    data = text.encode()
    scanner, ends = RowScanner(grammar=GRAMMAR), [0]
    while (end := scanner.first_end(data, ends[-1])) >= 0:
        ends.append(end)
    assert RowScanner(grammar=GRAMMAR).last_end(data) == ends[-1]
    assert num_rows_of(GRAMMAR, data[: ends[-1]]) == len(ends) - 1


@given(text=MESSES, num_columns=st.integers(1, 3))
def test_whole_columns_are_those_of_the_rows(text: str, num_columns: int):
    data = text.encode()
    rows = [read(row) for row in rows_of_bytes(GRAMMAR, data)]
    columns = columns_of_rows(GRAMMAR, data, num_columns)
    if columns is not None:
        assert [[each.decode() for each in row] for row in zip(*columns, strict=True)] == rows


@given(rows=st.lists(st.lists(st.text(), min_size=2, max_size=2), min_size=1), end=st.sampled_from(["\n", "\r\n"]))
def test_what_csv_writes_is_read_as_whole_columns(rows: list[list[str]], end: str):
    sink = io.StringIO(newline="")
    csv.writer(sink, lineterminator=end, quoting=csv.QUOTE_ALL).writerows(rows)
    columns = columns_of_rows(GRAMMAR, sink.getvalue().encode("utf-8", "replace"), 2)
    assert columns is not None
    assert [list(row) for row in zip(*columns, strict=True)] == [
        [each.encode("utf-8", "replace") for each in row] for row in rows
    ]


def test_a_quote_at_the_end_of_a_piece_may_be_doubled_in_the_next():
    scanner = RowScanner(grammar=GRAMMAR)
    assert [scanner.first_end(piece) for piece in (b'"a"', b'"\n', b'"\nb\n')] == [-1, -1, 2]
