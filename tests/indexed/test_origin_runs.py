"""Runs of documents from consecutive records: cut, chosen and joined as lists are."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.indexed.origins import records_of, runs_of

from tokenloom.errors import ConfigError
from tokenloom.indexed.origins import OriginFile, joined_runs, selected_runs

RUNS = st.lists(st.tuples(st.integers(-1, 2), st.integers(1, 5), st.integers(0, 3)), max_size=8).map(runs_of)


@given(RUNS)
def test_joining_changes_no_document(runs):
    joined = joined_runs(runs)
    assert records_of(joined) == records_of(runs)
    assert len(joined_runs(joined)) == len(joined)
    assert joined["num_documents"].all()


@given(RUNS, st.randoms(use_true_random=False))
def test_selecting_is_that_of_lists(runs, random):
    records = records_of(runs)
    kept = [random.random() < 0.5 for _ in records]
    chosen = selected_runs(runs, np.array(kept, dtype=np.bool_))
    assert records_of(chosen) == [record for record, keep in zip(records, kept, strict=True) if keep]


def test_a_file_has_counts_and_a_unit():
    with pytest.raises(ConfigError, match="expected a unit out of line, row, file, pair, found 'page'"):
        OriginFile(path="a", num_bytes=1, unit="page")
    with pytest.raises(ConfigError, match="num_records of the file"):
        OriginFile(path="a", num_bytes=1, unit="row", num_records=-1)
