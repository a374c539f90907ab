"""Ids and texts in a pair, stretch by stretch."""

from __future__ import annotations

import numpy as np
import pytest
from tests.run.audit.greedy import Greedy
from tests.support import write_corpus

from tokenloom.errors import ConfigError
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.run.audit.token_scan import StableIds, fit, places_of_ids, stretches


def places(pair, ids, **settings):
    found = list(places_of_ids(pair, ids, **settings))
    rows, starts = (
        [number for each in found for number in getattr(each, name).tolist()] for name in ("rows", "starts")
    )
    return list(zip(rows, starts, strict=True))


@pytest.mark.parametrize("mmap", [True, False])
@pytest.mark.parametrize("at_once", [1, 3, 7, 1000])
def test_every_place_is_found_once_however_data_are_cut(tmp_path, rng, at_once, mmap):
    documents = [rng.integers(0, 3, size=size).tolist() for size in rng.integers(0, 40, size=30)]
    pair = IndexedDataset(write_corpus(tmp_path / "data", documents), mmap=mmap)
    for ids in ([1], [1, 0], [2, 2, 1, 0]):
        expected = [
            (number, start)
            for number, document in enumerate(documents)
            for start in range(len(document) - len(ids) + 1)
            if document[start : start + len(ids)] == ids
        ]
        assert places(pair, ids, at_once=at_once) == expected
        for row, start in [(0, 0), (3, 1), (29, 0), (30, 0), *expected[:: 1 + len(expected) // 3]]:  # from any place on
            behind = [place for place in expected if place >= (row, start)]
            assert places(pair, ids, row=row, start=start, at_once=at_once) == behind


@pytest.mark.parametrize("at_once", [1, 4, 100])
def test_a_search_goes_on_where_a_stretch_ended(tmp_path, rng, at_once):
    documents = [rng.integers(0, 2, size=size).tolist() for size in (0, 9, 30, 1, 0, 5)]
    pair = IndexedDataset(write_corpus(tmp_path / "data", documents))
    found, row, start = [], 0, 0
    while row < len(pair):
        stretch = next(places_of_ids(pair, [1, 1], row=row, start=start, at_once=at_once))
        found += list(zip(stretch.rows.tolist(), stretch.starts.tolist(), strict=True))
        row, start = stretch.next_row, stretch.next_start
    assert found == places(pair, [1, 1])


def test_ids_that_tokens_cannot_be_are_not_looked_for(tmp_path):
    pair = IndexedDataset(write_corpus(tmp_path / "data", [[1, 2]]))
    assert list(places_of_ids(pair, [70000])) == []
    assert [fit([1], dtype) for dtype in (np.uint8, np.float32)] == [True, False]
    assert list(stretches(np.empty(0, dtype=np.int32), overlap=0)) == []


def test_a_text_that_is_too_short():
    for text in ("", "a", "the"):
        with pytest.raises(ConfigError, match="expected a text of some words, found"):
            StableIds.of(text, Greedy())
    stable = StableIds.of("the cats sat on the mat", Greedy())
    assert Greedy().detokenize(list(stable.ids)) in "the cats sat on the mat"
    assert stable.before > 1 < stable.behind
