"""Documents in an order in which similar ones follow each other: literal walks, a slow twin, and equal documents."""

from __future__ import annotations

import numpy as np
import pytest

from tokenloom.retro.neighbor_order import order_by_neighbors
from tokenloom.retro.pair_vectors import of_length_1
from tokenloom.retro.search import ExactIndex


def unit(rows) -> np.ndarray:
    return of_length_1(np.array(rows, dtype=np.float32))


def slow_walk(vectors: np.ndarray, k: int) -> tuple[list[int], int]:
    near = [ids[ids != row][:k].tolist() for row, ids in enumerate(ExactIndex(vectors).search(vectors, k + 1).ids)]
    order, left, num_walks = [], list(range(len(vectors))), 0
    while left:
        free = [number for number in near[order[-1]] if number in left] if order and vectors[order[-1]].any() else []
        num_walks += not free
        order.append(free[0] if free else left[0])
        left.remove(order[-1])
    return order, num_walks


def test_the_walk_goes_to_the_most_similar_document_that_is_left():
    angles = np.array([0.0, 2.0, 0.1, 2.2, 0.3])
    vectors = unit(np.stack([np.cos(angles), np.sin(angles)], axis=1))
    found = order_by_neighbors(vectors, ExactIndex(vectors), num_neighbors=2)
    assert (found.order.tolist(), found.num_walks) == ([0, 2, 4, 1, 3], 2)
    assert found.similarity == pytest.approx(np.cos([0.1, 0.2, 1.7, 0.2]).mean())
    assert found.similarity_before == pytest.approx(np.cos([2.0, 1.9, 2.1, 1.9]).mean())


@pytest.mark.parametrize("k", [1, 3, 60])
def test_the_walk_is_that_of_a_slow_twin(rng: np.random.Generator, k: int):
    vectors = unit(rng.standard_normal((50, 6)))
    vectors[::9] = 0
    found = order_by_neighbors(vectors, ExactIndex(vectors), num_neighbors=k)
    assert (found.order.tolist(), found.num_walks) == slow_walk(vectors, k)
    again = order_by_neighbors(vectors, ExactIndex(vectors), num_neighbors=k)
    assert np.array_equal(again.order, found.order)


@pytest.mark.parametrize("count", [0, 1, 40])
def test_each_document_comes_once_where_all_are_equal(count: int):
    vectors = unit(np.ones((count, 4)))
    found = order_by_neighbors(vectors, ExactIndex(vectors), num_neighbors=3)
    assert sorted(found.order.tolist()) == list(range(count))
