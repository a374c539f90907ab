"""Pairs without a project: vectors, neighbors of a document, near duplicates, an order by neighbors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.retro.making import LetterEmbedder, letters, maker
from tests.support import write_corpus

from tokenloom.retro.document_neighbors import neighbors_in_pair
from tokenloom.retro.neighbor_order import order_by_neighbors
from tokenloom.retro.pair_duplicates import (
    NearDuplicates,
    describe_near_duplicates,
    find_near_duplicates,
    read_near_duplicates,
)
from tokenloom.retro.pair_index import open_pair_index
from tokenloom.retro.pair_vectors import PairVectors, of_length_1, open_pair_vectors
from tokenloom.retro.search import ExactIndex

pytestmark = pytest.mark.slow


def vectors_of(folder: Path, name: str, texts: list[str]) -> PairVectors:
    return open_pair_vectors(write_corpus(folder / name, map(letters, texts)), maker())


def test_vectors_of_chunks_have_length_1(tmp_path: Path):
    found = vectors_of(tmp_path, "corpus", ["abcdef", "", "zzzz", "bc"])
    assert found.table.tolist() == [[0, 0, 0, 4, 4], [0, 0, 4, 6, 2], [0, 3, 0, 2, 2]]
    assert np.array_equal(found.vectors, of_length_1(LetterEmbedder().embed(["abcd", "ef", "bc"])))
    assert np.allclose(np.linalg.norm(found.vectors, axis=1), 1)


def test_vectors_of_other_data_are_made_again(tmp_path: Path):
    assert len(vectors_of(tmp_path, "corpus", ["abcdef"])) == 2
    assert len(vectors_of(tmp_path, "corpus", ["abcabcabc"])) == 3


def test_the_document_that_covers_most_of_another_is_its_first_neighbor(tmp_path: Path):
    vectors = vectors_of(tmp_path, "corpus", ["abcdefgh", "mmmm", "abcdefgh", "abcdnnnn", "zzzz"])
    found = neighbors_in_pair(vectors, 0, k=2)
    assert [(each.document, each.num_chunks) for each in found.documents] == [(2, 2), (3, 2)]
    assert found.documents[0].similarity == pytest.approx(1)
    assert (found.documents[0].own.text, found.documents[0].nearest.chunk.text) == ("abcd", "abcd")


def test_a_document_that_is_alone_has_no_neighbors(tmp_path: Path):
    assert neighbors_in_pair(vectors_of(tmp_path, "corpus", ["ab", "zz"]), 0, k=3).documents == ()


def report(folder: Path) -> NearDuplicates:
    corpus = vectors_of(folder, "corpus", ["abcdmmmm", "zzzz", "ponmabcd", "ijklijkl", "ab"])
    benchmark = vectors_of(folder, "benchmark", ["efgh", "abcdabcd"])
    index = open_pair_index(corpus, num_queries=len(benchmark))
    found = find_near_duplicates(corpus, benchmark, index, threshold=0.99)
    return describe_near_duplicates(found, corpus, benchmark, threshold=0.99, index="exact")


def test_chunks_of_a_benchmark_are_found_in_a_corpus(tmp_path: Path):
    found = report(tmp_path)
    places = [(each.first.document, each.first.start, each.second.document, each.second.start) for each in found.chunks]
    assert places == [(1, 0, 0, 0), (1, 0, 2, 4), (1, 4, 0, 0), (1, 4, 2, 4)]
    assert {each.first.text for each in found.chunks} == {each.second.text for each in found.chunks} == {"abcd"}
    assert (found.num_chunks, found.num_found, found.num_pairs, found.num_document_pairs) == (3, 2, 4, 2)


def test_a_file_of_near_duplicates_is_read_back(tmp_path: Path):
    found = report(tmp_path)
    (tmp_path / "found.json").write_bytes(found.to_json())
    assert read_near_duplicates(str(tmp_path / "found.json")) == found


def test_the_walk_goes_to_the_most_similar_document_that_is_left():
    angles = np.array([0.0, 2.0, 0.1, 2.2, 0.3])
    vectors = of_length_1(np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32))
    found = order_by_neighbors(vectors, ExactIndex(vectors), num_neighbors=2)
    assert (found.order.tolist(), found.num_walks) == ([0, 2, 4, 1, 3], 2)


def test_each_document_comes_once_where_all_are_equal():
    vectors = of_length_1(np.ones((40, 4), dtype=np.float32))
    found = order_by_neighbors(vectors, ExactIndex(vectors), num_neighbors=3)
    assert sorted(found.order.tolist()) == list(range(40))
