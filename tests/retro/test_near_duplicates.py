"""Similar chunks and documents: literal reports, a slow twin, real texts, and what cannot be compared."""

from __future__ import annotations

import numpy as np
import pytest

from tokenloom import ConfigError
from tokenloom.retro.embedders import as_embedder
from tokenloom.retro.near_duplicates import (
    ChunkPairs,
    ChunkPlace,
    SimilarChunks,
    SimilarDocuments,
    contamination_report,
    joined_pairs,
    similar_chunks,
)
from tokenloom.retro.vector_index import VectorIndex


def index_of(vectors, string="Flat"):
    index = VectorIndex.train(string, vectors)
    return index.assemble([index.encode(vectors)])


def pairs_in(found):
    return list(zip(found.first.tolist(), found.second.tolist(), strict=True))


def clustered(rng, count):
    """Vectors around a few centres, some of them equal, some of them zero."""
    vectors = rng.standard_normal((5, 8))[rng.integers(0, 5, count)] + 0.2 * rng.standard_normal((count, 8))
    vectors[:: count // 3] = vectors[0]
    vectors[1] = 0
    vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)
    return vectors.astype(np.float32)


def cosines_of(first, second):
    return first.astype(np.float64) @ second.astype(np.float64).T


@pytest.mark.parametrize("threshold", [0.9, 0.99])
def test_pairs_between_corpora_are_those_of_the_slow_twin(rng, threshold):
    first, second = clustered(rng, 30), clustered(rng, 40)
    found = similar_chunks(first, index_of(second), second, threshold=threshold, num_candidates=40)
    cosines = cosines_of(first, second)
    expected = np.argwhere(cosines >= threshold - 1e-6).tolist()
    certain = np.argwhere(cosines >= threshold + 1e-6).tolist()
    assert {tuple(pair) for pair in certain} <= set(pairs_in(found)) <= {tuple(pair) for pair in expected}
    assert pairs_in(found) == sorted(set(pairs_in(found)))
    assert np.allclose(found.similarities, cosines[found.first, found.second], atol=1e-6)
    assert found.num_full == 0


def test_pairs_inside_a_corpus_stand_once_and_never_with_themselves(rng):
    vectors = clustered(rng, 50)
    index = index_of(vectors)
    blocks = [
        similar_chunks(vectors[start:stop], index, vectors, threshold=0.9, num_candidates=50, own_start=start)
        for start, stop in ((0, 20), (20, 20), (20, 50))
    ]
    found = joined_pairs(blocks)
    cosines = np.triu(cosines_of(vectors, vectors), k=1)
    certain, possible = ({tuple(pair) for pair in np.argwhere(cosines >= 0.9 + by).tolist()} for by in (1e-6, -1e-6))
    assert certain <= set(pairs_in(found)) <= possible
    assert len(found) == len(set(pairs_in(found)))
    assert (found.first < found.second).all()


def test_equal_vectors_are_exactly_similar():
    vectors = np.array([[0.1, 0.7], [0.3, 0.1], [0.1, 0.7]], dtype=np.float32)
    found = similar_chunks(vectors, index_of(vectors), vectors, threshold=1.0, own_start=0)
    assert (pairs_in(found), found.similarities.tolist()) == ([(0, 2)], [1.0])


def test_the_length_of_vectors_does_not_matter():
    vectors = np.array([[1, 1], [3, 3], [3, -3]], dtype=np.float32)
    found = similar_chunks(vectors[:1], index_of(vectors), vectors, threshold=0.99, num_candidates=3)
    assert (pairs_in(found), found.similarities.round(12).tolist()) == ([(0, 0), (0, 1)], [1.0, 1.0])


def test_vectors_without_direction_are_similar_to_none():
    vectors = np.zeros((3, 2), dtype=np.float32)
    assert len(similar_chunks(vectors, index_of(vectors), vectors, threshold=0.1, own_start=0)) == 0


def test_chunks_that_may_have_more_similar_ones_are_counted():
    vectors = np.ones((9, 2), dtype=np.float32)
    vectors[6:] = -1
    index = index_of(vectors)
    for num_candidates, num_full in ((1, 9), (2, 9), (3, 6), (5, 6), (6, 0), (8, 0), (99, 0)):
        found = similar_chunks(vectors, index, vectors, threshold=0.9, own_start=0, num_candidates=num_candidates)
        assert found.num_full == num_full
    assert len(found) == 15 + 3


def test_nothing_is_similar_to_nothing():
    none, some = np.empty((0, 2), dtype=np.float32), np.ones((3, 2), dtype=np.float32)
    for queries, vectors in ((none, some), (some, none), (none, none)):
        found = similar_chunks(queries, index_of(vectors), vectors, threshold=0.5)
        assert (len(found), found.num_full) == (0, 0)
    assert len(joined_pairs([])) == 0


def test_mapped_vectors_are_as_good_as_those_in_memory(rng, tmp_path):
    vectors = clustered(rng, 40)
    vectors.tofile(tmp_path / "vectors")
    mapped = np.memmap(tmp_path / "vectors", dtype=np.float32, mode="r").reshape(vectors.shape)
    index = index_of(vectors)
    found = similar_chunks(mapped[:20], index, mapped, threshold=0.9, own_start=0)
    assert pairs_in(found) == pairs_in(similar_chunks(vectors[:20], index, vectors, threshold=0.9, own_start=0))


def test_a_copied_passage_is_found_in_real_texts():
    passage = "A job cuts its input into shards, and a shard's bytes follow from its inputs and settings alone. "
    corpus = ["The weather was fine on the day of the regatta.", passage, "Return the sum of the list."]
    benchmark = ["Name three rivers of Asia.", passage.replace("alone", "only")]
    embedder = as_embedder("wordllama")
    vectors = embedder.embed(corpus)
    found = similar_chunks(embedder.embed(benchmark), index_of(vectors), vectors, threshold=0.9)
    assert pairs_in(found) == [(1, 1)]


FIRST = np.array([[0, 0, 0, 64, 9], [0, 0, 64, 80, 9], [0, 3, 0, 10, 9]], dtype=np.uint32)
SECOND = np.array([[0, 0, 0, 64, 9], [1, 0, 0, 64, 9], [1, 0, 64, 128, 9], [1, 1, 0, 5, 9]], dtype=np.uint32)

PAIRS = ChunkPairs(
    first=np.array([0, 0, 1, 2]),
    second=np.array([1, 2, 2, 0]),
    similarities=np.array([0.95, 0.9, 1.0, 0.95]),
    num_full=2,
)


def test_a_report_names_the_places_of_both_texts():
    report = contamination_report(PAIRS, FIRST, SECOND, threshold=0.9)
    assert (report.num_chunks, report.num_found, report.num_pairs, report.num_full) == (3, 3, 4, 2)
    assert [(pair.similarity, pair.first.document) for pair in report.chunks] == [
        (1.0, 0),
        (0.95, 0),
        (0.95, 3),
        (0.9, 0),
    ]
    assert report.chunks[0] == SimilarChunks(
        first=ChunkPlace(dataset=0, document=0, start=64, end=80),
        second=ChunkPlace(dataset=1, document=0, start=64, end=128),
        similarity=1.0,
    )


def test_a_report_says_how_much_documents_share():
    report = contamination_report(PAIRS, FIRST, SECOND, threshold=0.9)
    assert report.num_document_pairs == 2
    assert report.documents == (
        SimilarDocuments(first=(0, 0), second=(1, 0), num_pairs=3, first_share=1.0, second_share=1.0, similarity=1.0),
        SimilarDocuments(first=(0, 3), second=(0, 0), num_pairs=1, first_share=1.0, second_share=1.0, similarity=0.95),
    )
    one = ChunkPairs(first=np.array([0]), second=np.array([2]), similarities=np.array([0.9]), num_full=0)
    [document] = contamination_report(one, FIRST, SECOND, threshold=0.9).documents
    assert (document.first_share, document.second_share) == (64 / 80, 0.5)


def test_a_report_lists_no_more_than_was_asked_for():
    report = contamination_report(PAIRS, FIRST, SECOND, threshold=0.9, most=1)
    assert (len(report.chunks), len(report.documents)) == (1, 1)
    assert (report.num_pairs, report.num_document_pairs) == (4, 2)
    one = ChunkPairs(first=np.array([1]), second=np.array([2]), similarities=np.array([0.9]), num_full=0)
    assert contamination_report(one, FIRST, SECOND, threshold=0.9, least_share=0.6).documents == ()
    assert len(contamination_report(one, FIRST, SECOND, threshold=0.9, least_share=0.5).documents) == 1


def test_a_report_of_nothing():
    nothing = joined_pairs([])
    for table in (FIRST, FIRST[:0]):
        report = contamination_report(nothing, table, SECOND[:0], threshold=0.9)
        assert (report.num_chunks, report.num_found, report.chunks, report.documents) == (len(table), 0, (), ())


def test_what_cannot_be_compared_is_refused():
    vectors = np.ones((3, 2), dtype=np.float32)
    index = index_of(vectors)
    with pytest.raises(ConfigError, match=r"expected a threshold above 0 and at most 1, found 1\.5"):
        similar_chunks(vectors, index, vectors, threshold=1.5)
    with pytest.raises(ConfigError, match=r"expected the vectors of the index, \[3, 2\], found \[2, 2\]"):
        similar_chunks(vectors, index, vectors[:2], threshold=0.5)
    with pytest.raises(ConfigError, match="expected queries that are among 3 vectors, found 3 from 1 on"):
        similar_chunks(vectors, index, vectors, threshold=0.5, own_start=1)
    with pytest.raises(ConfigError, match=r"expected 5 columns in the second chunk table, found shape \[4, 4\]"):
        contamination_report(PAIRS, FIRST, SECOND[:, :4], threshold=0.9)
    with pytest.raises(ConfigError, match="expected pairs of 2 chunks of the first table, found chunk 2"):
        contamination_report(PAIRS, FIRST[:2], SECOND, threshold=0.9)
