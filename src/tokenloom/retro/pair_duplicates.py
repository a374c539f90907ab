"""Near duplicates of a benchmark in a corpus, or inside a corpus, with texts and places; as JSON and as Parquet."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import InputError
from tokenloom.machine import usable_processors
from tokenloom.optional import require
from tokenloom.progress import task as shown_task
from tokenloom.retro.document_neighbors import ShownChunk
from tokenloom.retro.near_duplicates import ChunkPairs, contamination_report, joined_pairs, similar_chunks
from tokenloom.retro.pair_vectors import PairVectors
from tokenloom.retro.search import Searchable
from tokenloom.storage.atomic import PendingFile, storage_errors
from tokenloom.storage.json_files import UnusableJsonError, read_json
from tokenloom.storage.typed_json import from_versioned, versioned_members_of

Int64s = NDArray[np.int64]

_VERSION = 1
_QUERIES_AT_ONCE = 1 << 13
_ROWS_AT_ONCE = 1 << 12


@dataclass(frozen=True, slots=True, kw_only=True)
class DuplicateChunks:
    """Two chunks that say nearly the same.

    Attributes:
        similarity: the cosine of their vectors.
        first: of the benchmark; inside a corpus, the one of the smaller number.
        second: of the corpus.
    """

    similarity: float
    first: ShownChunk
    second: ShownChunk


@dataclass(frozen=True, slots=True, kw_only=True)
class DuplicateDocuments:
    """Two documents that share such chunks.

    Attributes:
        first, second: their numbers, in the benchmark and in the corpus.
        num_pairs: pairs of similar chunks.
        first_share, second_share: which share of the tokens of each is in them.
        similarity: the largest of the pairs.
    """

    first: int
    second: int
    num_pairs: int
    first_share: float
    second_share: float
    similarity: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NearDuplicates:
    """What of a benchmark is in a corpus, or twice in a corpus.

    Attributes:
        corpus: prefix of the corpus.
        benchmark: prefix of the benchmark; None inside a corpus.
        embedder: what made the vectors.
        chunk_length: tokens of a chunk.
        index: what proposed the pairs: "exact", or what `faiss.index_factory` took.
        threshold: the least cosine of a pair.
        num_chunks: chunks that were asked for.
        num_found: those of them with a similar chunk.
        num_pairs: pairs of similar chunks; inside a corpus those of two documents.
        num_inside_documents: pairs inside one document, which are not counted in `num_pairs`; 0 of a benchmark.
        least_tokens: the tokens that both chunks of a pair have at least.
        num_short: pairs of which one has fewer, which are not counted either.
        num_document_pairs: pairs of documents that share similar chunks.
        num_full: chunks that may have more similar ones than were looked at.
        chunks: the most similar pairs of chunks.
        documents: the pairs of documents that share most of either.
    """

    corpus: str
    benchmark: str | None
    embedder: str
    chunk_length: int
    index: str
    threshold: float
    num_chunks: int
    num_found: int
    num_pairs: int
    num_inside_documents: int
    least_tokens: int
    num_short: int
    num_document_pairs: int
    num_full: int
    chunks: tuple[DuplicateChunks, ...]
    documents: tuple[DuplicateDocuments, ...]

    def to_json(self) -> bytes:
        """Returns it as `read_near_duplicates` reads it."""
        return json.dumps(versioned_members_of(self, _VERSION)).encode() + b"\n"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FoundPairs:
    """Similar chunks.

    Attributes:
        pairs: those that count.
        num_inside_documents: pairs that were left out because both are of one document of the corpus.
        num_short: pairs that were left out because one is too short.
    """

    pairs: ChunkPairs
    num_inside_documents: int
    num_short: int


def find_near_duplicates(
    corpus: PairVectors,
    benchmark: PairVectors | None,
    index: Searchable,
    *,
    threshold: float,
    num_candidates: int = 100,
    least_tokens: int = 1,
) -> FoundPairs:
    """Returns the similar chunks of a benchmark and a corpus, or of two documents of a corpus.

    Memory: some 8,000 vectors with their candidates, and 24 bytes per pair that is found.

    Args:
        corpus: the corpus.
        benchmark: what is looked for in it; None for the corpus itself.
        index: over the vectors of the corpus, see `open_pair_index`.
        threshold: the least cosine, above 0 and at most 1.
        num_candidates: neighbors that are looked at of each chunk.
        least_tokens: pairs count of which both chunks have so many tokens: the ends of documents are often alike.

    Raises:
        ConfigError: the threshold is out of range, or the index is of other vectors.
    """
    asked, num_threads, parts = corpus if benchmark is None else benchmark, usable_processors(), []
    with shown_task("near duplicates", unit="chunks", total=len(asked)) as advance:
        for start in range(0, len(asked), _QUERIES_AT_ONCE):
            queries = np.ascontiguousarray(asked.vectors[start : start + _QUERIES_AT_ONCE])
            found = similar_chunks(
                queries,
                index,
                corpus.vectors,
                threshold=threshold,
                num_candidates=num_candidates,
                own_start=start if benchmark is None else None,
                num_threads=num_threads,
            )
            parts.append(found if benchmark is None else replace(found, first=found.first + start))
            advance(len(queries))
    pairs = joined_pairs(parts)
    is_short = np.minimum(_lengths(asked, pairs.first), _lengths(corpus, pairs.second)) < least_tokens
    is_inside = np.zeros(len(pairs), dtype=np.bool_)
    if benchmark is None:
        is_inside = corpus.table[pairs.first, 1] == corpus.table[pairs.second, 1]
    is_kept = ~is_short & ~is_inside
    kept = replace(
        pairs, first=pairs.first[is_kept], second=pairs.second[is_kept], similarities=pairs.similarities[is_kept]
    )
    num_inside = int((is_inside & ~is_short).sum())
    return FoundPairs(pairs=kept, num_inside_documents=num_inside, num_short=int(is_short.sum()))


def _lengths(vectors: PairVectors, ids: Int64s) -> Int64s:
    rows = vectors.table[ids]
    return rows[:, 3].astype(np.int64) - rows[:, 2]


def describe_near_duplicates(
    found: FoundPairs,
    corpus: PairVectors,
    benchmark: PairVectors | None,
    *,
    threshold: float,
    index: str,
    least_tokens: int = 1,
    most: int = 1000,
) -> NearDuplicates:
    """Returns what pairs say, with the texts of the most similar ones.

    Args:
        found: as `find_near_duplicates` gives them.
        corpus, benchmark, threshold, least_tokens: what they were found with.
        index: what proposed them, in words.
        most: pairs of chunks, and of documents, that are listed.
    """
    asked, pairs = corpus if benchmark is None else benchmark, found.pairs

    report = contamination_report(
        pairs, np.asarray(asked.table), np.asarray(corpus.table), threshold=threshold, most=most
    )
    sequences = np.array([(each.first[1], each.second[1]) for each in report.documents], dtype=np.int64).reshape(-1, 2)
    own, others = asked.numbers.of_sequences(sequences[:, 0]), corpus.numbers.of_sequences(sequences[:, 1])
    order = np.lexsort((pairs.second, pairs.first, -pairs.similarities))[:most]
    firsts, seconds = shown_chunks(asked, pairs.first[order]), shown_chunks(corpus, pairs.second[order])
    return NearDuplicates(
        corpus=corpus.prefix,
        benchmark=None if benchmark is None else benchmark.prefix,
        embedder=corpus.chunks.embedder.name,
        chunk_length=corpus.chunks.chunk_length,
        index=index,
        threshold=float(threshold),
        num_chunks=report.num_chunks,
        num_found=report.num_found,
        num_pairs=report.num_pairs,
        num_inside_documents=found.num_inside_documents,
        least_tokens=least_tokens,
        num_short=found.num_short,
        num_document_pairs=report.num_document_pairs,
        num_full=report.num_full,
        chunks=tuple(
            DuplicateChunks(similarity=similarity, first=first, second=second)
            for similarity, first, second in zip(pairs.similarities[order].tolist(), firsts, seconds, strict=True)
        ),
        documents=tuple(
            DuplicateDocuments(
                first=first,
                second=second,
                num_pairs=each.num_pairs,
                first_share=each.first_share,
                second_share=each.second_share,
                similarity=each.similarity,
            )
            for each, first, second in zip(report.documents, own.tolist(), others.tolist(), strict=True)
        ),
    )


def shown_chunks(vectors: PairVectors, ids: Int64s) -> list[ShownChunk]:
    """Returns chunks with their places and texts."""
    rows = vectors.table[ids].astype(np.int64)
    rows[:, 1] = vectors.numbers.of_sequences(rows[:, 1])
    texts, origins = vectors.texts(ids), vectors.origins_of(rows[:, 1].tolist())
    return [
        ShownChunk(prefix=vectors.prefix, document=document, start=start, end=end, origin=origin, text=text)
        for (document, start, end), origin, text in zip(rows[:, 1:4].tolist(), origins, texts, strict=True)
    ]


def read_near_duplicates(path: str) -> NearDuplicates:
    """Returns what `NearDuplicates.to_json` wrote.

    Raises:
        InputError: the file holds something else.
        StorageError: it cannot be read.
    """
    try:
        with storage_errors("read", path):
            return from_versioned(NearDuplicates, read_json(path), _VERSION)
    except UnusableJsonError as error:
        message = f"`{path}` holds no near duplicates{error}"
        raise InputError(message, hint="`tokenloom near-duplicates … -o FILE.json` writes such a file") from error


def write_parquet(path: str, pairs: ChunkPairs, corpus: PairVectors, benchmark: PairVectors | None) -> None:
    """Writes all pairs as rows of Parquet, with both texts and places; whole or not at all. What is there is replaced.

    Columns: similarity, and of `first_` and `second_` document, start, end, origin and text. Memory: some 4,000 rows.

    Raises:
        MissingExtraError: `pyarrow` is not installed.
        StorageError: it cannot be written.
    """
    arrow, parquet = require("pyarrow", extra="parquet"), require("pyarrow.parquet", extra="parquet")
    places = [("document", arrow.int64()), ("start", arrow.int64()), ("end", arrow.int64())]
    columns = [*places, ("origin", arrow.string()), ("text", arrow.string())]
    fields = [(f"{side}_{name}", kind) for side in ("first", "second") for name, kind in columns]
    schema = arrow.schema([("similarity", arrow.float64()), *fields])
    asked = corpus if benchmark is None else benchmark
    shown = shown_task("pairs", unit="rows", total=len(pairs))
    with PendingFile(path) as pending, storage_errors("write", path), shown as advance, ExitStack() as stack:
        sink = arrow.PythonFile(pending.stream, mode="w")
        writer = stack.enter_context(parquet.ParquetWriter(sink, schema, compression="zstd"))
        for start in range(0, len(pairs), _ROWS_AT_ONCE):
            part = slice(start, start + _ROWS_AT_ONCE)
            values: dict[str, Sequence[Any]] = {"similarity": pairs.similarities[part].tolist()}
            for side, vectors, ids in (("first", asked, pairs.first), ("second", corpus, pairs.second)):
                chunks = shown_chunks(vectors, ids[part])
                values |= {f"{side}_{name}": [getattr(each, name) for each in chunks] for name, _ in columns}
            writer.write_table(arrow.table(values, schema=schema))
            advance(len(values["similarity"]))
