"""The counts of pairs, from their headers."""

from __future__ import annotations

import pytest
from tests.indexed.pairs import write_pair

from tokenloom.errors import DatasetFormatError, StorageError
from tokenloom.indexed.counts import sequence_counts


def test_counts_are_sequences_and_boundaries(tmp_path):
    one = write_pair(tmp_path / "one", [[[1, 2], [3]], [], [[4]]])
    none = write_pair(tmp_path / "none", [])
    assert sequence_counts([one, f"{none}.idx"]) == {one: [3, 4], none: [0, 1]}


def test_a_header_that_is_none_is_named(tmp_path):
    with pytest.raises(StorageError, match=r"nowhere\.idx"):
        sequence_counts([str(tmp_path / "nowhere")])
    (tmp_path / "short.idx").write_bytes(b"MMIDIDX")
    with pytest.raises(DatasetFormatError, match=r"short\.idx"):
        sequence_counts([str(tmp_path / "short")])
