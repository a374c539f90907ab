"""Neighbors without own documents: literal rows, a slow twin; exact neighbors; and the share of them that is found."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tokenloom import ConfigError
from tokenloom.retro import search
from tokenloom.retro.search import exact_neighbors, neighbors_outside, recall, without_own_documents
from tokenloom.retro.vector_index import VectorIndex

CHUNK_DOCUMENTS = np.array([[0, 7], [0, 7], [0, 8], [1, 7], [1, 9]], dtype=np.uint32)


def left_of(neighbors, own, *, groups=None, num_saved=3, chunk_documents=CHUNK_DOCUMENTS):
    neighbors = np.array(neighbors, dtype=np.int64)
    groups = np.arange(len(neighbors)) if groups is None else np.array(groups)
    own = np.array(own, dtype=np.int64).reshape(-1, 3)
    found = without_own_documents(neighbors, chunk_documents, groups=groups, own_documents=own, num_saved=num_saved)
    assert found.dtype == np.int64
    return found.tolist()


def test_neighbors_of_the_same_document_are_left_out():
    assert left_of([[0, 2, 1, 3]], [(0, 0, 7)]) == [[2, 3, -1]]
    assert left_of([[4, 3, 2, 1]], [(0, 0, 9)]) == [[4, 3, 2]]


def test_a_document_of_another_data_set_is_another_document():
    assert left_of([[0, 3]], [(0, 1, 7)]) == [[0, -1, -1]]


def test_a_sample_may_have_several_documents_and_several_chunks():
    own = [(5, 0, 7), (5, 1, 9), (6, 0, 8), (5, 0, 7)]
    found = left_of([[0, 1, 2, 3, 4]] * 3, own, groups=[5, 6, 5], num_saved=4)
    assert found == [[2, 3, -1, -1], [0, 1, 3, 4], [2, 3, -1, -1]]


def test_documents_of_other_samples_stay():
    assert left_of([[0], [0]], [(0, 0, 7), (1, 0, 8)], num_saved=1) == [[-1], [0]]


def test_missing_neighbors_stay_missing():
    assert left_of([[-1, -1], [-1, 4]], [(0, 1, 9)], num_saved=1) == [[-1], [4]]
    assert left_of([[-1, -1]], [], chunk_documents=CHUNK_DOCUMENTS[:0], num_saved=1) == [[-1]]
    assert left_of(np.empty((0, 3)), [(0, 0, 7)]) == []


def test_without_own_documents_all_stay():
    assert left_of([[4, 2], [0, 1]], []) == [[4, 2, -1], [0, 1, -1]]


def test_numbers_of_documents_may_take_all_32_bits():
    documents = np.array([[0, 2**32 - 1], [1, 2**32 - 1], [2**31 - 1, 0]], dtype=np.uint32)
    assert left_of([[0, 1, 2]], [(0, 1, 2**32 - 1), (0, 2**31 - 1, 0)], chunk_documents=documents) == [[0, -1, -1]]


@given(st.data(), st.integers(1, 6), st.integers(1, 8))
def test_what_is_left_is_that_of_the_slow_twin(data, num_saved, num_found):
    chunk_documents = data.draw(arrays(np.uint32, (12, 2), elements=st.integers(0, 3)))
    neighbors = data.draw(arrays(np.int64, (7, num_found), elements=st.integers(-1, 11)))
    groups = data.draw(arrays(np.int64, 7, elements=st.integers(0, 3)))
    own = data.draw(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 3)), max_size=9))
    expected = []
    for row, group in zip(neighbors.tolist(), groups.tolist(), strict=True):
        left = [i for i in row if i >= 0 and (group, *chunk_documents[i].tolist()) not in own][:num_saved]
        expected.append(left + [-1] * (num_saved - len(left)))
    found = left_of(neighbors, own, groups=groups, num_saved=num_saved, chunk_documents=chunk_documents)
    assert found == expected


def test_few_at_a_time_are_as_many_at_once(rng, monkeypatch):
    neighbors = rng.integers(-1, 5, size=(100, 4))
    own = np.stack([np.arange(100), rng.integers(0, 2, 100), rng.integers(7, 10, 100)], axis=1)
    expected = left_of(neighbors, own)
    found = neighbors.copy()
    monkeypatch.setattr(search, "_NEIGHBORS_AT_A_TIME", 9)
    assert left_of(neighbors, own) == expected
    assert recall(found, neighbors) == 1


def test_neighbors_of_another_table_are_refused():
    with pytest.raises(ConfigError, match="expected neighbors among 5 chunks, found 5"):
        left_of([[5]], [])
    with pytest.raises(ConfigError, match=r"and a group per query, found shapes \[1, 1\] and \[2\]"):
        left_of([[4]], [], groups=[0, 1])
    with pytest.raises(ConfigError, match="expected num_saved of at least 1, found 0"):
        left_of([[4]], [], num_saved=0)


def distances_of(queries, vectors):
    """Returns all squared distances, in double precision."""
    return ((queries[:, None].astype(np.float64) - vectors[None].astype(np.float64)) ** 2).sum(axis=2)


def test_exact_neighbors_are_the_nearest(rng, monkeypatch):
    monkeypatch.setattr(search, "_VECTORS_AT_A_TIME", 100)
    vectors = rng.standard_normal((330, 8)).astype(np.float32)
    queries = rng.standard_normal((50, 8)).astype(np.float32)
    found = exact_neighbors(queries, vectors, 5)
    expected = np.sort(distances_of(queries, vectors), axis=1)[:, :5]
    assert np.allclose(found.distances, expected, rtol=1e-5, atol=1e-5)
    assert np.allclose(np.take_along_axis(distances_of(queries, vectors), found.ids, axis=1), expected, atol=1e-4)


@settings(max_examples=30)
@given(st.integers(1, 12), st.integers(1, 9), st.integers(1, 30))
def test_equal_distances_are_in_the_order_of_the_vectors(k, cut, count):
    vectors = np.zeros((count, 2), dtype=np.float32)
    vectors[::3, 0] = 3
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "_VECTORS_AT_A_TIME", cut)
        found = exact_neighbors(np.zeros((1, 2), dtype=np.float32), vectors, k)
    order = np.lexsort((np.arange(count), vectors[:, 0]))[:k].tolist()
    assert found.ids[0].tolist() == order + [-1] * (k - len(order))
    assert found.distances[0].tolist() == [float(vectors[i, 0] ** 2) for i in order] + [np.inf] * (k - len(order))


def test_threads_change_no_bit(rng):
    vectors = rng.standard_normal((3000, 8)).astype(np.float32)
    found = [exact_neighbors(vectors, vectors, 4, num_threads=threads) for threads in (1, 3)]
    assert found[0].ids.tobytes() == found[1].ids.tobytes()
    assert found[0].distances.tobytes() == found[1].distances.tobytes()


def test_an_exact_index_finds_the_exact_neighbors(rng):
    vectors = rng.standard_normal((2000, 16)).astype(np.float32)
    index = VectorIndex.train("Flat", vectors)
    index = index.assemble([index.encode(vectors)])
    assert recall(index.search(vectors[:300], 10).ids, exact_neighbors(vectors[:300], vectors, 10).ids) > 0.999


def test_vectors_that_cannot_be_compared_are_refused(rng):
    vectors = rng.standard_normal((10, 4)).astype(np.float32)
    with pytest.raises(ConfigError, match=r"expected float32 of shape \[num_vectors, 4\], found shape \[10, 3\]"):
        exact_neighbors(vectors[:, :3], vectors, 1)
    vectors[7, 2] = np.nan
    with pytest.raises(ConfigError, match="vectors 0 to 9: expected finite numbers, found nan in vector 7 of 10"):
        exact_neighbors(vectors[:3], vectors, 1)


def test_recall_is_the_share_of_exact_neighbors():
    assert recall(np.array([[1, 2, 3]]), np.array([[3, 1, 2]])) == 1
    assert recall(np.array([[1, -1, -1]]), np.array([[3, 1, -1]])) == 0.5
    assert recall(np.array([[-1]]), np.array([[-1]])) == 1
    assert recall(np.empty((0, 2), dtype=np.int64), np.empty((0, 3), dtype=np.int64)) == 1
    with pytest.raises(ConfigError, match="expected neighbors of as many queries, found 1 and 2"):
        recall(np.array([[1]]), np.array([[1], [2]]))


def test_neighbors_outside_some_rows_are_the_others_in_their_order():
    vectors = np.array([[0], [1], [2], [3], [4]], dtype=np.float32)
    found = neighbors_outside(vectors[2:3], vectors, range(1, 3), 4)
    assert found.ids.tolist() == [[3, 0, 4, -1]]
    assert found.distances.tolist() == [[1, 4, 4, np.inf]]
    assert neighbors_outside(vectors[:1], vectors, range(5), 2).ids.tolist() == [[-1, -1]]
