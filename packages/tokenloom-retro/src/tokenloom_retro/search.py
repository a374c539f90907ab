"""Neighbors of many chunks without those of their own documents; exact ones, and how many of these an index finds."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import ConfigError
from tokenloom.numbers import checked_integer
from tokenloom_retro import faiss_library
from tokenloom_retro.embedders import check_embeddings
from tokenloom_retro.vector_index import Neighbors

Float32s = NDArray[np.float32]
Int64s = NDArray[np.int64]
Bools = NDArray[np.bool_]

_NEIGHBORS_AT_A_TIME = 1 << 20
"""Neighbors whose documents are looked at together: some 40 MB."""

_VECTORS_AT_A_TIME = 1 << 16
"""Vectors that are compared with all queries together; 64 MB where they are 256 wide."""


def without_own_documents(
    neighbors: Int64s,
    chunk_documents: NDArray[np.integer],
    *,
    groups: Int64s,
    own_documents: Int64s,
    num_saved: int,
) -> Int64s:
    """Returns the first neighbors of each query that are of other documents than its own, in the order they come in.

    Example:
        >>> neighbors = np.array([[0, 3, -1], [2, 1, 3]])
        >>> chunk_documents = np.array([[0, 7], [0, 8], [1, 7], [1, 7]], dtype=np.uint32)
        >>> own = np.array([[0, 0, 7], [1, 1, 7]])  # query 0 is of document 7 of data set 0, query 1 of that of 1
        >>> queries = np.arange(2)
        >>> without_own_documents(neighbors, chunk_documents, groups=queries, own_documents=own, num_saved=2).tolist()
        [[3, -1], [1, -1]]

    Args:
        neighbors: int64[num_queries, num_found], rows of the chunk table, the nearest first; -1 for none.
        chunk_documents: integers[num_chunks, 2], data set and document of each row of the table.
        groups: int64[num_queries], the group that each query belongs to: its sample, whose documents are its own.
        own_documents: int64[num_pairs, 3], group, data set and document; in any order, and as often as it may be.
        num_saved: how many neighbors are kept of each query.

    Returns:
        int64[num_queries, num_saved], -1 where there are no more.

    Raises:
        ConfigError: a neighbor is not in the table; or there is not one group per query.
    """
    checked_integer("num_saved", num_saved, at_least=1)
    if neighbors.ndim != 2 or groups.shape != (len(neighbors),):
        message = (
            f"expected neighbors of shape [num_queries, num_found] and a group per query, "
            f"found shapes {list(neighbors.shape)} and {list(groups.shape)}"
        )
        raise ConfigError(message)
    if neighbors.size and int(neighbors.max()) >= len(chunk_documents):
        message = f"expected neighbors among {len(chunk_documents)} chunks, found {int(neighbors.max())}"
        raise ConfigError(message, hint="the index is of another chunk table")
    own_keys, own_numbers = np.unique(_keys(own_documents[:, 1:]), return_inverse=True)
    own_pairs = np.unique(own_documents[:, 0].astype(np.int64) * len(own_keys) + own_numbers)
    saved = np.full((len(neighbors), num_saved), -1, dtype=np.int64)
    if not len(chunk_documents):
        return saved
    step = max(1, _NEIGHBORS_AT_A_TIME // max(1, neighbors.shape[1]))
    for start in range(0, len(neighbors), step):
        rows = slice(start, start + step)
        is_kept = neighbors[rows] >= 0
        keys = _keys(chunk_documents[neighbors[rows]])  # -1 takes any document, and is not kept
        if len(own_keys):
            numbers = np.minimum(np.searchsorted(own_keys, keys), len(own_keys) - 1)
            pairs = groups[rows, None] * len(own_keys) + numbers
            is_kept &= (own_keys[numbers] != keys) | ~_is_among(pairs, own_pairs)
        _save_first(neighbors[rows], is_kept, saved[rows])
    return saved


def exact_neighbors(queries: Float32s, vectors: Float32s, k: int, *, num_threads: int = 1) -> Neighbors:
    """Returns the nearest vectors of each query, all being compared, in memory that does not grow with them.

    Equal distances are in the order of the vectors. They are rounded in linear algebra, to some 1e-7 of the squared
    lengths; vectors that are equal may thus be told apart, and come in either order.

    Args:
        queries: float32[num_queries, dimension].
        vectors: float32[num_vectors, dimension], which may be mapped: read once, a stretch after the other.
        k: neighbors of each.
        num_threads: pieces of the queries that are searched at a time; it changes no bit.

    Raises:
        ConfigError: these are no such vectors, or not finite; `k` is not positive.
    """
    k = checked_integer("k", k, at_least=1)
    dimension = vectors.shape[1] if vectors.ndim == 2 else 0
    check_embeddings(queries, dimension, where="vectors to search for")
    ids = np.full((len(queries), k), -1, dtype=np.int64)
    distances = np.full((len(queries), k), np.inf, dtype=np.float32)
    for start in range(0, len(vectors), _VECTORS_AT_A_TIME):
        stretch = np.ascontiguousarray(vectors[start : start + _VECTORS_AT_A_TIME])
        check_embeddings(stretch, dimension, where=f"vectors {start} to {start + len(stretch) - 1}")

        def search(piece: slice, start: int = start, stretch: Float32s = stretch) -> None:
            asked = np.ascontiguousarray(queries[piece])
            near, found = faiss_library.library().knn(asked, stretch, min(k, len(stretch)))
            found += start
            both_ids = np.concatenate([ids[piece], found], axis=1)
            both = np.concatenate([distances[piece], near], axis=1)
            order = np.lexsort((both_ids, both), axis=1)[:, :k]
            ids[piece] = np.take_along_axis(both_ids, order, axis=1)
            distances[piece] = np.take_along_axis(both, order, axis=1)

        faiss_library.by_pieces(search, len(queries), num_threads)
    return Neighbors(ids=ids, distances=distances)


def recall(found: Int64s, exact: Int64s) -> float:
    """Returns which share of the exact neighbors were found; 1 if there are none.

    Where vectors are equal, one of them may be among the exact ones and another be found, which counts as missed.

    Example:
        >>> recall(np.array([[4, 2, 9], [1, 0, -1]]), np.array([[2, 4], [1, 5]]))
        0.75

    Args:
        found: int64[num_queries, any], -1 for none.
        exact: int64[num_queries, k], -1 for none.

    Raises:
        ConfigError: they are of different numbers of queries.
    """
    if len(found) != len(exact):
        message = f"expected neighbors of as many queries, found {len(found)} and {len(exact)}"
        raise ConfigError(message)
    num_found = 0
    step = max(1, _NEIGHBORS_AT_A_TIME // max(1, found.shape[1] * exact.shape[1]))
    for start in range(0, len(exact), step):
        rows = slice(start, start + step)
        is_found = (found[rows, None, :] == exact[rows, :, None]).any(axis=2)
        num_found += int((is_found & (exact[rows] >= 0)).sum())
    num_exact = int((exact >= 0).sum())
    return num_found / num_exact if num_exact else 1.0


def _keys(documents: NDArray[np.integer]) -> Int64s:
    """Returns one number per data set and document: int64[...] of integers[..., 2]."""
    keys: Int64s = (documents[..., 0].astype(np.int64) << 32) | documents[..., 1].astype(np.int64)
    return keys


def _is_among(numbers: Int64s, rising: Int64s) -> Bools:
    places = np.minimum(np.searchsorted(rising, numbers), len(rising) - 1)
    found: Bools = rising[places] == numbers
    return found


def _save_first(neighbors: Int64s, is_kept: Bools, saved: Int64s) -> None:
    """Writes the first neighbors that are kept into rows of -1."""
    places = np.cumsum(is_kept, axis=1) - 1
    rows, columns = np.nonzero(is_kept & (places < saved.shape[1]))
    saved[rows, places[rows, columns]] = neighbors[rows, columns]
