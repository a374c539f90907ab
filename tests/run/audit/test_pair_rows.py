"""Documents of sources as rows of pairs."""

from __future__ import annotations

import numpy as np
from tests.run.locks import make_lock, source_of

from tokenloom.run.audit.pair_rows import PairRows


def test_documents_count_over_the_pairs_of_a_source():
    rows = PairRows.of([[("a", 2), ("b", 3)], [("c", 4)]])
    sources, documents = np.array([0, 0, 0, 1], dtype=np.int32), np.array([1, 2, 4, 3])
    pairs, found = rows.locate(sources, documents)
    assert [rows.prefixes[pair] for pair in pairs] == ["a", "b", "b", "c"]
    assert found.tolist() == [1, 0, 2, 3]
    assert [rows.source_of(pair) for pair in range(3)] == [0, 0, 1]


def test_pairs_without_documents_hold_none():
    rows = PairRows.of([[("a", 0), ("b", 1), ("c", 0), ("d", 1)]])
    pairs, found = rows.locate(np.zeros(2, dtype=np.int32), np.arange(2))
    assert pairs.tolist() == [1, 3]
    assert found.tolist() == [0, 0]


def test_pairs_of_a_lock():
    rows = PairRows.of_lock(make_lock(source_of("web", "a", "b"), source_of("code", "c")))
    assert rows.prefixes == ("a", "b", "c")
    assert rows.first_documents.tolist() == [0, 10, 0]
