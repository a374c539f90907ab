"""An order of documents in which similar ones follow each other: a walk over nearest neighbors, each visited once.

From each document the walk goes to the most similar one among its neighbors that it has not visited. Where there is
none it begins anew, at the first document that is left. It is a function of the vectors: every call gives the same.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tokenloom.machine import usable_processors
from tokenloom.numbers import checked_integer
from tokenloom.progress import task as shown_task
from tokenloom.retro.near_duplicates import cosines
from tokenloom.retro.search import Searchable

Float32s = NDArray[np.float32]
Int32s = NDArray[np.int32]
Int64s = NDArray[np.int64]

_QUERIES_AT_ONCE = 1 << 13
_STEPS_AT_ONCE = 1 << 14


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NeighborOrder:
    """An order of documents, and how much it brings together.

    Attributes:
        order: int64[num_documents], each document once.
        num_walks: how often the walk began; one more than its jumps.
        similarity_before: the mean cosine of documents that follow each other in the pair.
        similarity: the same in this order.
    """

    order: Int64s
    num_walks: int
    similarity_before: float
    similarity: float


def order_by_neighbors(vectors: Float32s, index: Searchable, *, num_neighbors: int = 20) -> NeighborOrder:
    """Returns an order in which similar documents follow each other.

    Memory: some 40 bytes per document, 8,000 vectors, and what the index takes; neighbors are in a temporary file.

    Args:
        vectors: float32[num_documents, dimension], of length 1, or zeros for documents that say nothing; may be mapped.
        index: over these.
        num_neighbors: neighbors of a document that the walk may go to; more make fewer jumps.

    Raises:
        ConfigError: the number is not positive.
        StorageError: the temporary file cannot be written.
    """
    k = checked_integer("num_neighbors", num_neighbors, at_least=1)
    with tempfile.TemporaryFile() as file:
        neighbors = _neighbors(vectors, index, k, file)
        order, num_walks = _walk(neighbors)
    return NeighborOrder(
        order=order,
        num_walks=num_walks,
        similarity_before=_similarity(vectors, np.arange(len(vectors), dtype=np.int64)),
        similarity=_similarity(vectors, order),
    )


def _neighbors(vectors: Float32s, index: Searchable, k: int, file: object) -> Int32s:
    """Returns the nearest others of each document: int32[num_documents, k] in a file, -1 for none."""
    shape = (len(vectors), k)
    neighbors: Int32s = np.memmap(file, dtype=np.int32, shape=shape) if len(vectors) else np.empty(shape, np.int32)  # type: ignore[call-overload]
    num_threads = usable_processors()
    with shown_task("neighbors of documents", unit="documents", total=len(vectors)) as advance:
        for start in range(0, len(vectors), _QUERIES_AT_ONCE):
            queries = np.ascontiguousarray(vectors[start : start + _QUERIES_AT_ONCE])
            ids = index.search(queries, k + 1, num_threads=num_threads).ids
            own = np.arange(start, start + len(queries))[:, None]
            is_other = ids != own
            # Of a document that is not among its own neighbors, having many equals, the last one is left out.
            is_other[is_other.all(axis=1), -1] = False
            found = ids[is_other].reshape(len(queries), k)
            found[~queries.any(axis=1)] = -1
            neighbors[start : start + len(queries)] = found
            advance(len(queries))
    return neighbors


def _walk(neighbors: Int32s) -> tuple[Int64s, int]:
    """Returns the documents in the order of the walk, and how often it began."""
    num_documents = len(neighbors)
    order = np.empty(num_documents, dtype=np.int64)
    is_visited = bytearray(num_documents)
    num_walks, first_left, current = 0, 0, -1
    with shown_task("walk", unit="documents", total=num_documents) as advance:
        for place in range(num_documents):
            if current >= 0:
                for number in neighbors[current].tolist():
                    if number >= 0 and not is_visited[number]:
                        current = number
                        break
                else:
                    current = -1
            if current < 0:
                first_left = current = is_visited.index(0, first_left)
                num_walks += 1
            is_visited[current] = 1
            order[place] = current
            if place % _STEPS_AT_ONCE == _STEPS_AT_ONCE - 1:
                advance(_STEPS_AT_ONCE)
    return order, num_walks


def _similarity(vectors: Float32s, order: Int64s) -> float:
    """Returns the mean cosine of documents that follow each other; 0 of fewer than two."""
    if len(order) < 2:
        return 0.0
    return float(cosines(vectors, order[:-1], vectors, order[1:]).mean())
