"""Pairs of chunks that say nearly the same, between two corpora or inside one, and the documents that share them.

An index proposes candidates, and the vectors themselves decide: a pair counts if the cosine of its two vectors, in
double precision, is at least the threshold. An exact index ("Flat") misses none, as long as a chunk has fewer similar
ones than candidates; `num_full` counts those that may have more.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import ConfigError
from tokenloom.numbers import checked_integer, checked_number
from tokenloom.retro.embedders import check_embeddings
from tokenloom.retro.search import Searchable

Float32s = NDArray[np.float32]
Float64s = NDArray[np.float64]
Int64s = NDArray[np.int64]
UInt32s = NDArray[np.uint32]

_PAIRS_AT_A_TIME = 1 << 14
"""Pairs whose vectors are compared together: 64 MB in double precision where they are 256 wide."""

_COLUMNS = 5
"""Columns of a chunk table: data set, document, start, end, tokens for the embedder."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChunkPairs:
    """Similar chunks, ordered by the first and then the second; each pair once.

    Attributes:
        first: int64[num_pairs], chunks that were asked for.
        second: int64[num_pairs], chunks of the index; inside one corpus the one of the larger number.
        similarities: float64[num_pairs], cosines from the threshold to 1.
        num_full: chunks that were asked for whose candidates were all similar, so that there may be more than these.
    """

    first: Int64s
    second: Int64s
    similarities: Float64s
    num_full: int

    def __len__(self) -> int:
        return len(self.first)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkPlace:
    """Where a chunk is: tokens [start, end) of a document of a data set."""

    dataset: int
    document: int
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SimilarChunks:
    """Two similar chunks, with the cosine of their vectors."""

    first: ChunkPlace
    second: ChunkPlace
    similarity: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SimilarDocuments:
    """Two documents that share similar chunks.

    Attributes:
        first, second: data set and document.
        num_pairs: pairs of similar chunks.
        first_share: which share of the first document's tokens is in chunks that have a similar one in the second.
        second_share: the same of the second document.
        similarity: the largest cosine of their pairs.
    """

    first: tuple[int, int]
    second: tuple[int, int]
    num_pairs: int
    first_share: float
    second_share: float
    similarity: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ContaminationReport:
    """What of one corpus is in another, or twice in itself.

    Attributes:
        threshold: the least cosine of a pair.
        num_chunks: chunks that were asked for.
        num_found: those of them with a similar chunk.
        num_pairs: pairs of similar chunks.
        num_document_pairs: pairs of documents that share enough of either.
        num_full: chunks that may have more similar ones than were looked at.
        chunks: the most similar pairs of chunks, as many as were asked for; ties in the order of the chunks.
        documents: the pairs of documents that share most of either, as many as were asked for; ties in their order.
    """

    threshold: float
    num_chunks: int
    num_found: int
    num_pairs: int
    num_document_pairs: int
    num_full: int
    chunks: tuple[SimilarChunks, ...]
    documents: tuple[SimilarDocuments, ...]


def check_threshold(threshold: float) -> None:
    """Raises unless the least cosine of a pair is above 0 and at most 1.

    Raises:
        ConfigError: it is not.
    """
    if not 0 < checked_number("threshold", threshold) <= 1:
        message = f"expected a threshold above 0 and at most 1, found {threshold!r}"
        raise ConfigError(message)


def similar_chunks(
    queries: Float32s,
    index: Searchable,
    vectors: Float32s,
    *,
    threshold: float,
    num_candidates: int = 100,
    own_start: int | None = None,
    num_threads: int = 1,
) -> ChunkPairs:
    """Returns which chunks of an index are similar to some others.

    Candidates are the nearest by distance, which for vectors of length 1 are those of the largest cosine. Vectors of
    zeros are similar to none.

    Args:
        queries: float32[num_queries, dimension], a block of chunks.
        index: the index over `vectors`.
        vectors: float32[num_vectors, dimension], which may be mapped; those of candidates are read.
        threshold: the least cosine, above 0 and at most 1.
        num_candidates: neighbors that are looked at of each chunk.
        own_start: row of `vectors` that the first query is, if the queries are rows of it; then no chunk is compared
            with itself, and the pair of two chunks is given once. None for chunks of another corpus.
        num_threads: see `VectorIndex.search`.

    Raises:
        ConfigError: these are no such vectors; the index is over others; or a setting is out of range.
    """
    check_threshold(threshold)
    checked_integer("num_candidates", num_candidates, at_least=1)
    check_embeddings(queries, index.dimension, where="vectors to search for")
    if vectors.shape != (len(index), index.dimension):
        message = f"expected the vectors of the index, [{len(index)}, {index.dimension}], found {list(vectors.shape)}"
        raise ConfigError(message)
    if own_start is not None and not 0 <= own_start <= len(vectors) - len(queries):
        message = f"expected queries that are among {len(vectors)} vectors, found {len(queries)} from {own_start} on"
        raise ConfigError(message)
    own = own_start is not None
    found = index.search(queries, num_candidates + own, num_threads=num_threads).ids  # the chunk itself is one of them
    rows, columns = np.nonzero(found >= 0)
    second = found[rows, columns]
    first = rows + (own_start or 0)
    if own:
        is_other = first != second
        rows, first, second = rows[is_other], first[is_other], second[is_other]
    similarities = cosines(queries, rows, vectors, second)
    is_similar = similarities >= threshold
    num_similar = np.bincount(rows[is_similar], minlength=len(queries))
    num_full = int((num_similar >= num_candidates).sum()) if num_candidates < len(vectors) - own else 0
    first, second, similarities = first[is_similar], second[is_similar], similarities[is_similar]
    if own:
        first, second = np.minimum(first, second), np.maximum(first, second)
    return _once(first, second, similarities, num_full)


def joined_pairs(parts: Iterable[ChunkPairs]) -> ChunkPairs:
    """Returns the pairs of all blocks of a corpus, each once; `first` must count from the start of the corpus."""
    given = list(parts)
    empty = np.empty(0, dtype=np.int64)
    return _once(
        np.concatenate([empty, *(part.first for part in given)]),
        np.concatenate([empty, *(part.second for part in given)]),
        np.concatenate([empty.astype(np.float64), *(part.similarities for part in given)]),
        sum(part.num_full for part in given),
    )


def contamination_report(
    pairs: ChunkPairs,
    first_table: UInt32s,
    second_table: UInt32s,
    *,
    threshold: float,
    most: int = 1000,
    least_share: float = 0.0,
) -> ContaminationReport:
    """Returns what pairs of similar chunks say about two corpora.

    Args:
        pairs: similar chunks, of the whole corpora.
        first_table: uint32[num_chunks, 5], the chunk table of those that were asked for; in the order of documents.
        second_table: uint32[num_chunks, 5], the chunk table of the index; the same one inside a corpus.
        threshold: what was asked for, to be recorded.
        most: pairs of chunks, and of documents, that are listed.
        least_share: documents count of which this share of the tokens, of either, is in similar chunks.

    Raises:
        ConfigError: a table has not five columns, or a pair is of a chunk that its table does not have.
    """
    for name, table, chunks in (("first", first_table, pairs.first), ("second", second_table, pairs.second)):
        if table.ndim != 2 or table.shape[1] != _COLUMNS:
            message = f"expected {_COLUMNS} columns in the {name} chunk table, found shape {list(table.shape)}"
            raise ConfigError(message)
        if len(chunks) and int(chunks.max()) >= len(table):
            message = f"expected pairs of {len(table)} chunks of the {name} table, found chunk {int(chunks.max())}"
            raise ConfigError(message)
    most = checked_integer("most", most, at_least=0)
    order = np.lexsort((pairs.second, pairs.first, -pairs.similarities))[:most]
    similar = tuple(
        SimilarChunks(
            first=_place(first_table[pairs.first[number]]),
            second=_place(second_table[pairs.second[number]]),
            similarity=float(pairs.similarities[number]),
        )
        for number in order.tolist()
    )
    num_documents, documents = _similar_documents(pairs, first_table, second_table, least_share, most)
    return ContaminationReport(
        threshold=threshold,
        num_chunks=len(first_table),
        num_found=len(np.unique(pairs.first)),
        num_pairs=len(pairs),
        num_document_pairs=num_documents,
        num_full=pairs.num_full,
        chunks=similar,
        documents=documents,
    )


def _similar_documents(
    pairs: ChunkPairs, first_table: UInt32s, second_table: UInt32s, least_share: float, most: int
) -> tuple[int, tuple[SimilarDocuments, ...]]:
    """Returns how many pairs of documents share enough, and those that share most."""
    first_numbers, first_tokens = _documents_of(first_table)
    second_numbers, second_tokens = _documents_of(second_table)
    keys = first_numbers[pairs.first] * max(1, len(second_tokens)) + second_numbers[pairs.second]
    found, places, counts = np.unique(keys, return_inverse=True, return_counts=True)
    similarities = np.zeros(len(found))
    np.maximum.at(similarities, places, pairs.similarities)
    firsts, seconds = np.divmod(found, max(1, len(second_tokens)))
    first_shares = _tokens_in(places, pairs.first, first_table, len(found)) / first_tokens[firsts]
    second_shares = _tokens_in(places, pairs.second, second_table, len(found)) / second_tokens[seconds]
    either = np.maximum(first_shares, second_shares)
    order = np.lexsort((found, -either))
    order = order[either[order] >= least_share]
    first_rows, second_rows = _first_rows(first_numbers), _first_rows(second_numbers)
    return len(order), tuple(
        SimilarDocuments(
            first=_document(first_table[first_rows[firsts[number]]]),
            second=_document(second_table[second_rows[seconds[number]]]),
            num_pairs=int(counts[number]),
            first_share=float(first_shares[number]),
            second_share=float(second_shares[number]),
            similarity=float(similarities[number]),
        )
        for number in order[:most].tolist()
    )


def _documents_of(table: UInt32s) -> tuple[Int64s, Int64s]:
    """Returns a number per document for each chunk, int64[num_chunks], and the tokens of each, int64[num_documents]."""
    keys = (table[:, 0].astype(np.int64) << 32) | table[:, 1]
    documents, numbers = np.unique(keys, return_inverse=True)
    tokens = np.zeros(len(documents), dtype=np.int64)
    np.add.at(tokens, numbers, _lengths(table))
    return numbers, tokens


def _first_rows(numbers: Int64s) -> Int64s:
    """Returns a chunk of each document."""
    rows: Int64s = np.unique(numbers, return_index=True)[1]
    return rows


def _tokens_in(places: Int64s, chunks: Int64s, table: UInt32s, num_places: int) -> Int64s:
    """Returns the tokens of the chunks at each place, each chunk counted once: int64[num_places]."""
    once = np.unique(np.stack([places, chunks], axis=1), axis=0)
    tokens = np.zeros(num_places, dtype=np.int64)
    np.add.at(tokens, once[:, 0], _lengths(table[once[:, 1]]))
    return tokens


def _lengths(table: UInt32s) -> Int64s:
    return table[:, 3].astype(np.int64) - table[:, 2]


def _place(row: UInt32s) -> ChunkPlace:
    dataset, document, start, end = row[:4].tolist()
    return ChunkPlace(dataset=dataset, document=document, start=start, end=end)


def _document(row: UInt32s) -> tuple[int, int]:
    return int(row[0]), int(row[1])


def cosines(queries: Float32s, rows: Int64s, vectors: Float32s, ids: Int64s) -> Float64s:
    """Returns the cosines of pairs of vectors, in double precision; 0 where one has no direction.

    Args:
        queries: float32[num_queries, dimension].
        rows: int64[num_pairs], rows of `queries`.
        vectors: float32[num_vectors, dimension], which may be mapped.
        ids: int64[num_pairs], rows of `vectors`.

    Returns:
        float64[num_pairs], at most 1.
    """
    found = np.zeros(len(rows))
    for start in range(0, len(rows), _PAIRS_AT_A_TIME):
        part = slice(start, start + _PAIRS_AT_A_TIME)
        one, other = queries[rows[part]].astype(np.float64), vectors[ids[part]].astype(np.float64)
        products = np.einsum("ij,ij->i", one, other)
        lengths = np.sqrt(np.einsum("ij,ij->i", one, one) * np.einsum("ij,ij->i", other, other))
        np.divide(products, lengths, out=found[part], where=lengths > 0)
    return np.minimum(found, 1.0)


def _once(first: Int64s, second: Int64s, similarities: Float64s, num_full: int) -> ChunkPairs:
    """Returns pairs in their order, without those that stand there twice."""
    order = np.lexsort((second, first))
    first, second, similarities = first[order], second[order], similarities[order]
    is_new = np.ones(len(first), dtype=np.bool_)
    is_new[1:] = (first[1:] != first[:-1]) | (second[1:] != second[:-1])
    return ChunkPairs(first=first[is_new], second=second[is_new], similarities=similarities[is_new], num_full=num_full)
