"""Pairs that are looked at."""

from __future__ import annotations

import pytest
from tests.datasets.conversations import FIRST, write_conversations
from tests.indexed.manifest.manifests import write_recorded
from tests.indexed.origins import add_origins
from tests.indexed.pairs import write_pair
from tests.inspect.drawn import origins_of

from tokenloom.errors import DatasetNotFoundError
from tokenloom.inspect.open_pairs import OpenPair, OpenPairs, Place

CORPUS = [[[1, 2, 3]], [], [[4, 5, 6, 7], [8, 9]], [[10, 11]]]
"""Rows of the index: 0, 1, 2 and 3; document 1 has none, document 2 has two."""


def test_a_row_is_a_sequence_of_a_document(tmp_path):
    pair = OpenPair(write_pair(tmp_path / "corpus", CORPUS))
    assert [pair.place(row) for row in range(4)] == [Place(0, 0, 1), Place(2, 0, 2), Place(2, 1, 2), Place(3, 0, 1)]


def test_what_is_not_beside_a_pair_is_not_known(tmp_path):
    pair = OpenPair(write_pair(tmp_path / "corpus", CORPUS))
    assert (pair.manifest, pair.origins, pair.roles, pair.origin(0)) == (None, None, None, None)


def test_what_is_beside_a_pair_is_opened(tmp_path):
    pair = OpenPair(write_recorded(tmp_path / "corpus", CORPUS))
    add_origins(pair.prefix, origins_of("raw/a.jsonl", [(0, 5), (-1, 0), (0, 9), (0, 10)]))
    assert pair.manifest is not None
    assert [pair.origin(document) for document in range(4)] == [
        "raw/a.jsonl:5",
        None,
        "raw/a.jsonl:9",
        "raw/a.jsonl:10",
    ]
    talks = OpenPair(write_conversations(tmp_path / "chat", [FIRST]))
    assert talks.roles is not None
    assert [(start, stop, kind.name) for start, stop, kind in talks.roles.of(0)] == [(0, 2, "prompt"), (2, 4, "answer")]


def test_images_are_found_without_being_told_of(tmp_path):
    assert OpenPair(write_pair(tmp_path / "modes", CORPUS, multimodal=True)).data.multimodal
    assert not OpenPair(write_pair(tmp_path / "text", CORPUS)).data.multimodal


def test_pairs_that_were_asked_for_last_stay_open(tmp_path):
    prefixes = [write_pair(tmp_path / name, CORPUS) for name in "abc"]
    pairs = OpenPairs(most=2)
    first, second = pairs.get(prefixes[0]), pairs.get(prefixes[1])
    assert pairs.get(prefixes[0]) is first
    pairs.get(prefixes[2])
    assert pairs.get(prefixes[0]) is first
    assert pairs.get(prefixes[1]) is not second


def test_a_missing_pair_is_an_error(tmp_path):
    with pytest.raises(DatasetNotFoundError, match=f"^no file `{tmp_path}/absent.idx`"):
        OpenPairs().get(f"{tmp_path}/absent")
