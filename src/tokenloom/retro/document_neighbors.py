"""The chunks and documents that are most like a document: in its own pair, or in the database of a project.

Chunks of the document itself are never among them. A neighboring document is ranked by how well it covers the whole
document: for each chunk the similarity of the most similar chunk there, and of these the mean by tokens.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import ConfigError
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.layout import prefix_of
from tokenloom.indexed.origins import read_origins
from tokenloom.machine import usable_processors
from tokenloom.numbers import checked_integer
from tokenloom.retro.chunk_maker import ChunkMaker
from tokenloom.retro.document_numbers import DocumentNumbers, checked_document
from tokenloom.retro.index_build import check_made_with, filled_path
from tokenloom.retro.near_duplicates import cosines
from tokenloom.retro.pair_vectors import PairVectors, embedded, of_length_1, origins_of, spans_of
from tokenloom.retro.project import RetroProject
from tokenloom.retro.search import neighbors_outside, without_own_documents
from tokenloom.retro.vector_index import VectorIndex

Float32s = NDArray[np.float32]
Float64s = NDArray[np.float64]
Int64s = NDArray[np.int64]
UInt32s = NDArray[np.uint32]

_CANDIDATES = 100
"""Chunks that are looked at for each chunk of the document, to rank documents."""

_MOST_SEARCHED = 2048
"""Neighbors that are asked of an index, those of the document itself included."""

_QUERIES_AT_ONCE = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownChunk:
    """A chunk, and what it says.

    Attributes:
        prefix: prefix of its pair.
        document: number of its document there.
        start, end: its tokens [start, end) in the document.
        origin: the record that the document was made of, as `FILE:N`; None if that is not known.
        text: its text.
    """

    prefix: str
    document: int
    start: int
    end: int
    origin: str | None
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkNeighbor:
    """A chunk that is like another one.

    Attributes:
        similarity: the cosine of their vectors.
        chunk: it.
    """

    similarity: float
    chunk: ShownChunk


@dataclass(frozen=True, slots=True, kw_only=True)
class NeighborsOfChunk:
    """The chunks that are most like one of the document.

    Attributes:
        chunk: that one.
        neighbors: the others, the most similar first.
    """

    chunk: ShownChunk
    neighbors: tuple[ChunkNeighbor, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NeighborDocument:
    """A document that is like another one.

    Attributes:
        prefix: prefix of its pair.
        document: its number there.
        origin: the record that it was made of; None if that is not known.
        similarity: how well it covers the other one, see above.
        num_chunks: chunks of the other one that have a neighbor in it.
        own: the chunk of the other one that is most like one in it.
        nearest: that one.
    """

    prefix: str
    document: int
    origin: str | None
    similarity: float
    num_chunks: int
    own: ShownChunk
    nearest: ChunkNeighbor


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentNeighbors:
    """What is most like a document.

    Attributes:
        prefix: prefix of its pair.
        document: its number.
        origin: the record that it was made of; None if that is not known.
        embedder: what made the vectors.
        num_chunks: its chunks that say something to that.
        num_searched: chunks among which was searched.
        documents: the documents, the most similar first; empty where chunks were asked for.
        chunks: the neighbors of each of its chunks; empty where documents were asked for.
    """

    prefix: str
    document: int
    origin: str | None
    embedder: str
    num_chunks: int
    num_searched: int
    documents: tuple[NeighborDocument, ...] = ()
    chunks: tuple[NeighborsOfChunk, ...] = ()


@dataclass(frozen=True, kw_only=True)
class _Found:
    """What a search found for the chunks of a document.

    Attributes:
        own_prefix: prefix of its pair.
        document: its number.
        chunks: what made texts and vectors.
        own: uint32[num_chunks, 5], its chunks.
        ids: int64[num_chunks, num_candidates], rows of `table`, the most similar first; -1 for none.
        similarities: float64[num_chunks, num_candidates], their cosines; 0 at -1.
        table: uint32[num_all, 5], all chunks; may be mapped.
        pairs: the data sets of the table.
    """

    own_prefix: str
    document: int
    chunks: ChunkMaker
    own: UInt32s
    ids: Int64s
    similarities: Float64s
    table: UInt32s
    pairs: tuple[IndexedDataset, ...]


def neighbors_in_pair(vectors: PairVectors, document: int, *, k: int, of_chunks: bool = False) -> DocumentNeighbors:
    """Returns what in a pair is most like one of its documents; all chunks are compared, and memory does not grow.

    Args:
        vectors: the chunks of the pair.
        document: number of the document; negative ones count from the end.
        k: how many documents, or chunks of each of its chunks.
        of_chunks: whether chunks are wanted.

    Raises:
        IndexError: there is no such document.
    """
    document = checked_document(vectors.pair, document)
    wanted = _num_candidates(k, of_chunks=of_chunks)
    rows = vectors.rows_of(document)
    queries = np.ascontiguousarray(vectors.vectors[rows.start : rows.stop])
    ids = np.full((len(queries), wanted), -1, dtype=np.int64)
    for start in range(0, len(queries), _QUERIES_AT_ONCE):
        part = slice(start, start + _QUERIES_AT_ONCE)
        ids[part] = neighbors_outside(queries[part], vectors.vectors, rows, wanted, num_threads=usable_processors()).ids
    found = _Found(
        own_prefix=vectors.prefix,
        document=document,
        chunks=vectors.chunks,
        own=np.asarray(vectors.table[rows.start : rows.stop]),
        ids=ids,
        similarities=_similarities(queries, vectors.vectors, ids),
        table=vectors.table,
        pairs=(vectors.pair,),
    )
    return _described(found, k, of_chunks=of_chunks)


def neighbors_in_project(
    project: RetroProject,
    prefix: str,
    document: int,
    chunks: ChunkMaker,
    *,
    index: str | None = None,
    k: int,
    of_chunks: bool = False,
    nprobe: int | None = None,
    notice: Callable[[str], None] | None = None,
) -> DocumentNeighbors:
    """Returns what in the database of a project is most like a document, as its index finds it.

    Vectors of chunks are made anew, of the document and of what the index proposes, so that similarities are cosines.

    Args:
        project: the project.
        prefix: prefix of a pair; chunks of the document are left out if it is one of the project's.
        document: number of the document; negative ones count from the end.
        chunks: what made texts and vectors of the project.
        index: what `faiss.index_factory` took; None for what the project's settings say.
        k: how many documents, or chunks of each of its chunks.
        of_chunks: whether chunks are wanted.
        nprobe: lists that are searched, for IVF; None for what the index has.
        notice: called with a sentence that says what is read.

    Raises:
        IndexError: there is no such document.
        ConfigError: the project does not say its index, or was made with another embedder or tokenizer.
        StorageError: the database or the index cannot be read, or is of another embedder.
    """
    prefix = prefix_of(prefix)
    pair = IndexedDataset(prefix)
    document = checked_document(pair, document)
    string = index or project.config.get("retro_index_str")
    if not isinstance(string, str):
        message = f"expected the index of the project `{project.folder}` in its settings, found none"
        raise ConfigError(message, hint='name what it was made from, such as "IVF4096,Flat"')
    check_made_with(project, string, chunks)
    database = project.database("train", chunk_length=chunks.chunk_length, eod_token_id=chunks.eod)
    database.check()
    database.load_doc_tuples()
    path = filled_path(project, string)
    if notice is not None:
        notice(f"reading `{path}`: {len(database):,} chunks")
    filled = VectorIndex.open(path, string=string, dimension=chunks.embedder.dimension, num_vectors=len(database))
    filled.set_effort(nprobe=nprobe)
    sequences = DocumentNumbers(pair).sequences_of(document)
    own, queries = embedded(pair, chunks, spans_of(pair, chunks, sequences))
    number = _number_of(project, prefix)
    wanted = _num_candidates(k, of_chunks=of_chunks)
    # Indices know the vectors as the embedder gives them, not those of length 1.
    asked = chunks.embed(chunks.span_texts(pair, own[:, 1:4].astype(np.int64)))
    ids = np.full((len(own), wanted), -1, dtype=np.int64)
    for start in range(0, len(own), _QUERIES_AT_ONCE):
        part = slice(start, start + _QUERIES_AT_ONCE)
        near = filled.search(asked[part], min(wanted + len(own), _MOST_SEARCHED), num_threads=usable_processors()).ids
        ids[part] = without_own_documents(
            near,
            database.doc_tuples,
            groups=np.zeros(len(near), dtype=np.int64),
            own_documents=np.array([[0, number, sequences.start]], dtype=np.int64),
            num_saved=wanted,
        )
    proposed, places = np.unique(ids[ids >= 0], return_inverse=True)
    vectors = _vectors_of(chunks, chunks.texts(database.gather(proposed)))
    dense = np.full_like(ids, -1)
    dense[ids >= 0] = places
    similarities = _similarities(queries, vectors, dense)
    order = np.argsort(-similarities, axis=1, kind="stable")
    found = _Found(
        own_prefix=prefix,
        document=document,
        chunks=chunks,
        own=own,
        ids=np.take_along_axis(ids, order, axis=1),
        similarities=np.take_along_axis(similarities, order, axis=1),
        table=database.chunks,
        pairs=project.datasets,
    )
    return _described(found, k, of_chunks=of_chunks)


def _num_candidates(k: int, *, of_chunks: bool) -> int:
    k = checked_integer("k", k, at_least=1)
    return k if of_chunks else max(k, _CANDIDATES)


def _vectors_of(chunks: ChunkMaker, texts: list[str]) -> Float32s:
    parts = [np.empty((0, chunks.embedder.dimension), dtype=np.float32)]
    parts += [
        of_length_1(chunks.embed(texts[start : start + _QUERIES_AT_ONCE]))
        for start in range(0, len(texts), _QUERIES_AT_ONCE)
    ]
    return np.concatenate(parts)


def _similarities(queries: Float32s, vectors: Float32s, ids: Int64s) -> Float64s:
    """Returns the cosines of queries and vectors: float64 of the shape of `ids`, 0 at -1."""
    rows, columns = np.nonzero(ids >= 0)
    found = np.zeros(ids.shape)
    found[rows, columns] = cosines(queries, rows, vectors, ids[rows, columns])
    return found


def _number_of(project: RetroProject, prefix: str) -> int:
    """Returns the number of the data set that a prefix is; -1 for none."""
    paths = [os.path.realpath(project.data_prefix(info.prefix) + ".idx") for info in project.infos]
    path = os.path.realpath(f"{prefix}.idx")
    return paths.index(path) if path in paths else -1


def _described(found: _Found, k: int, *, of_chunks: bool) -> DocumentNeighbors:
    said = _Texts(found)
    return DocumentNeighbors(
        prefix=found.own_prefix,
        document=found.document,
        origin=said.own_origin,
        embedder=found.chunks.embedder.name,
        num_chunks=len(found.own),
        num_searched=len(found.table),
        chunks=_by_chunk(found, said, k) if of_chunks else (),
        documents=() if of_chunks else _by_document(found, said, k),
    )


def _by_chunk(found: _Found, said: _Texts, k: int) -> tuple[NeighborsOfChunk, ...]:
    return tuple(
        NeighborsOfChunk(
            chunk=said.own(row),
            neighbors=tuple(
                ChunkNeighbor(similarity=float(found.similarities[row, column]), chunk=said.other(int(number)))
                for column, number in enumerate(found.ids[row, :k].tolist())
                if number >= 0
            ),
        )
        for row in range(len(found.own))
    )


def _by_document(found: _Found, said: _Texts, k: int) -> tuple[NeighborDocument, ...]:
    rows, columns = np.nonzero(found.ids >= 0)
    if not len(rows):
        return ()
    ids, similarities = found.ids[rows, columns], found.similarities[rows, columns]
    places = found.table[ids][:, :2].astype(np.int64)
    documents, numbers = np.unique((places[:, 0] << 32) | places[:, 1], return_inverse=True)
    order = np.lexsort((ids, -similarities, rows, numbers))
    first = np.ones(len(order), dtype=np.bool_)
    first[1:] = (np.diff(numbers[order]) != 0) | (np.diff(rows[order]) != 0)
    best = order[first]  # of each document and chunk the most similar pair
    lengths = (found.own[:, 3] - found.own[:, 2]).astype(np.float64)
    covered = np.bincount(numbers[best], weights=similarities[best] * lengths[rows[best]]) / lengths.sum()
    counts = np.bincount(numbers[best])
    described = []
    for number in np.lexsort((documents, -covered))[:k].tolist():
        of_it = best[numbers[best] == number]
        nearest = of_it[np.lexsort((rows[of_it], -similarities[of_it]))[0]]
        chunk = said.other(int(ids[nearest]))
        described.append(
            NeighborDocument(
                prefix=chunk.prefix,
                document=chunk.document,
                origin=chunk.origin,
                similarity=float(covered[number]),
                num_chunks=int(counts[number]),
                own=said.own(int(rows[nearest])),
                nearest=ChunkNeighbor(similarity=float(similarities[nearest]), chunk=chunk),
            )
        )
    return tuple(described)


class _Texts:
    """Chunks with what they say, one at a time."""

    def __init__(self, found: _Found) -> None:
        self._found = found
        self._pair = IndexedDataset(found.own_prefix)
        self._numbers = [DocumentNumbers(pair) for pair in found.pairs]
        [self.own_origin] = origins_of(read_origins(found.own_prefix), [found.document])
        self._origins = [read_origins(pair.path_prefix) for pair in found.pairs]

    def own(self, row: int) -> ShownChunk:
        """Returns a chunk of the document."""
        return self._shown(self._pair, self._found.own[row], self._found.document, self.own_origin)

    def other(self, number: int) -> ShownChunk:
        """Returns a chunk of the table."""
        row = np.asarray(self._found.table[number])
        dataset = int(row[0])
        [document] = self._numbers[dataset].of_sequences(row[1:2]).tolist()
        [origin] = origins_of(self._origins[dataset], [document])
        return self._shown(self._found.pairs[dataset], row, document, origin)

    def _shown(self, pair: IndexedDataset, row: UInt32s, document: int, origin: str | None) -> ShownChunk:
        [text] = self._found.chunks.span_texts(pair, row[None, 1:4].astype(np.int64))
        start, end = row[2:4].tolist()
        return ShownChunk(prefix=pair.path_prefix, document=document, start=start, end=end, origin=origin, text=text)
