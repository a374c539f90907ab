"""Runs of documents from consecutive records: cut, chosen and joined as lists are."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.indexed.origins import records_of

from tokenloom.errors import ConfigError
from tokenloom.indexed.origin_blocks import OriginFile, OriginRuns

RUNS = st.lists(st.tuples(st.integers(-1, 2), st.integers(1, 5), st.integers(0, 3)), max_size=8).map(OriginRuns.of)


@given(RUNS)
def test_joining_changes_no_document(runs):
    joined = runs.joined()
    assert records_of(joined) == records_of(runs)
    assert len(joined.joined()) == len(joined)
    assert joined.num_documents.all()


@given(RUNS, st.randoms(use_true_random=False))
def test_selecting_and_cutting_are_those_of_lists(runs, random):
    records = records_of(runs)
    kept = [random.random() < 0.5 for _ in records]
    chosen = runs.select(np.array(kept, dtype=np.bool_))
    assert records_of(chosen) == [record for record, keep in zip(records, kept, strict=True) if keep]
    start, stop = sorted(random.randint(0, len(records)) for _ in range(2))
    assert records_of(runs.clipped(start, stop)) == records[start:stop]
    size = random.randint(1, 4)
    pieces = list(runs.pieces(size))
    assert records_of(OriginRuns.concatenated(pieces)) == records
    assert all(piece.num_documents.sum() == size for piece in pieces[:-1])


@given(RUNS)
def test_files_get_other_numbers(runs):
    numbers = np.array([5, 3, 3], dtype=np.int32)
    expected = [(numbers[file] if file >= 0 else -1, record) for file, record in records_of(runs)]
    assert records_of(runs.renumbered(numbers)) == expected


def test_a_file_has_counts_and_a_unit():
    with pytest.raises(ConfigError, match="expected a unit out of line, row, file, pair, found 'page'"):
        OriginFile(path="a", num_bytes=1, unit="page")
    with pytest.raises(ConfigError, match="num_records of the file"):
        OriginFile(path="a", num_bytes=1, unit="row", num_records=-1)
