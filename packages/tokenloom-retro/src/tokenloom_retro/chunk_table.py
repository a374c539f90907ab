"""Chunks of documents, from lengths alone, and how their tables are split, counted and merged.

A document without its last token, where that ends it, is cut into chunks of `chunk_length` tokens; the last one may be
shorter. A chunk whose text has no tokens for the embedder is invalid: it is kept in a table of its own, and never
retrieved. All of it is NumPy: 40 million chunks/s on one core for documents of a chunk or two, 150 for longer ones.
"""

from __future__ import annotations

import os
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import ConfigError
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.numbers import checked_integer, parse_number
from tokenloom.storage.atomic import storage_errors
from tokenloom_retro.hdf5 import open_rows
from tokenloom_retro.project import RetroProject

Int64s = NDArray[np.int64]
UInt32s = NDArray[np.uint32]
UInt64s = NDArray[np.uint64]
Bools = NDArray[np.bool_]

_BELOW = 1 << 32
"""More than a table can hold: its columns are uint32."""

_COLUMNS = 4
"""Columns of a block's tables: document, start, end, and tokens for the embedder."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChunkBlock:
    """The chunks of consecutive documents, as the block files of a project hold them.

    Attributes:
        chunks_valid: uint32[num_valid, 4], the document of each chunk, its first token and the one after its last (both
            counted in the document), and how many tokens its text has for the embedder.
        chunks_invalid: uint32[num_invalid, 4], the chunks whose texts have none.
        doc_offsets: uint64[num_documents, 2], each document, and the valid chunks of this block up to its end.
    """

    chunks_valid: UInt32s
    chunks_invalid: UInt32s
    doc_offsets: UInt64s


def documents_in(dataset: IndexedDataset, start: int, stop: int, *, eod: int) -> tuple[Int64s, Bools]:
    """Returns the lengths of documents [start, stop), and which of them end with a token, in one read of last tokens.

    Documents are counted by their sequences, as samples and the reference count them: those without text have none.

    Args:
        dataset: tokenized documents of a sequence each, or none.
        start: the first document.
        stop: the document after the last one.
        eod: the token that ends a document.

    Returns:
        lengths: int64[num_documents], tokens per document, the last one included.
        ends_with_eod: bool[num_documents]; a document without tokens does not end with one.

    Raises:
        ConfigError: a document has several sequences.
    """
    boundaries = dataset.document_indices
    first = bisect_right(boundaries, start) - 1
    counts = np.diff(np.array(boundaries[first : bisect_left(boundaries, stop) + 1]))
    if len(counts) and int(counts.max()) > 1:
        message = (
            f"`{dataset.path_prefix}`: expected documents of one sequence each, "
            f"found {int(counts.max())} sequences in document {first + int(counts.argmax())}"
        )
        raise ConfigError(message, hint="tokenize the corpus without splitting sentences")
    lengths = dataset.sequence_lengths[start:stop].astype(np.int64)
    ends_with_eod = np.zeros(len(lengths), dtype=np.bool_)
    filled = np.flatnonzero(lengths)
    last = dataset.gather(filled + start, lengths[filled] - 1, np.ones(len(filled), dtype=np.int64))
    ends_with_eod[filled] = last == eod
    return lengths, ends_with_eod


def chunk_spans(lengths: Int64s, ends_with_eod: Bools, chunk_length: int, *, first_document: int = 0) -> UInt32s:
    """Returns the chunks of consecutive documents, in their order.

    Example:
        >>> chunk_spans(np.array([5, 1, 4]), np.array([True, True, False]), 2).tolist()
        [[0, 0, 2], [0, 2, 4], [2, 0, 2], [2, 2, 4]]

    Args:
        lengths: int64[num_documents], tokens per document.
        ends_with_eod: bool[num_documents], whether the last token ends the document and belongs to no chunk.
        chunk_length: tokens of a chunk.
        first_document: number of the first document.

    Returns:
        uint32[num_chunks, 3]: the document of each chunk, its first token, and the one after its last.

    Raises:
        ConfigError: the chunk length is not positive; a number does not fit the table.
    """
    size = checked_integer("chunk_length", chunk_length, at_least=1)
    kept = lengths - ends_with_eod
    if len(kept) and max(first_document + len(kept), int(kept.max())) > _BELOW - size:
        last, longest = first_document + len(kept) - 1, int(kept.max())
        message = f"expected documents and tokens below {_BELOW}, found document {last} and one of {longest} tokens"
        raise ConfigError(message, hint="split the data set")
    num_chunks = -(-kept // size)
    ends = np.cumsum(num_chunks)
    spans = np.empty((int(ends[-1]) if len(ends) else 0, 3), dtype=np.uint32)
    spans[:, 0] = np.repeat(np.arange(first_document, first_document + len(kept), dtype=np.uint32), num_chunks)
    before = np.repeat((ends - num_chunks).astype(np.uint32), num_chunks)
    # Rows are counted modulo 2**32, as are those before a document: the difference is right beyond that.
    np.multiply(np.arange(len(spans), dtype=np.uint32) - before, np.uint32(size), out=spans[:, 1])
    np.add(spans[:, 1], np.uint32(size), out=spans[:, 2])
    filled = np.flatnonzero(num_chunks)
    spans[ends[filled] - 1, 2] = kept[filled]
    return spans


def chunk_block(spans: UInt32s, num_tokens: Int64s, documents: range) -> ChunkBlock:
    """Returns the tables of a block: chunks with and without tokens for the embedder, and chunks by document.

    Args:
        spans: uint32[num_chunks, 3], as `chunk_spans` gives them.
        num_tokens: int64[num_chunks], how many tokens the text of each has for the embedder.
        documents: the documents of the block, those without chunks included.
    """
    rows = np.empty((len(spans), _COLUMNS), dtype=np.uint32)
    rows[:, :3] = spans
    rows[:, 3] = num_tokens
    is_valid = num_tokens > 0
    valid = rows[is_valid]
    doc_offsets = np.empty((len(documents), 2), dtype=np.uint64)
    doc_offsets[:, 0] = np.arange(documents.start, documents.stop)
    doc_offsets[:, 1] = np.searchsorted(valid[:, 0], np.arange(documents.start, documents.stop), side="right")
    return ChunkBlock(chunks_valid=valid, chunks_invalid=rows[~is_valid], doc_offsets=doc_offsets)


def train_fraction(split: str) -> float:
    """Returns which part of each data set's documents is retrieved: the first of three weights, which is a percentage.

    The reference reads "98,2,0" so, and fails at weights whose sum is another.

    Example:
        >>> train_fraction("98,2,0")
        0.98

    Raises:
        ConfigError: the first weight is no number, or not above 0 and at most 100.
    """
    percent = parse_number(split.split(",")[0].strip(), f"the first weight of split {split!r}")
    if not 0 < percent <= 100:
        message = f"split {split!r}: expected a percentage above 0 and at most 100 for train, found {percent:g}"
        raise ConfigError(message, hint='weights must add up to 100 here, such as "98,2,0"')
    return percent / 100


def num_train_documents(num_documents: int, split: str) -> int:
    """Returns how many documents are of the train split, rounded down as the reference rounds."""
    return int(train_fraction(split) * num_documents)


def num_train_chunks(chunks_valid: UInt32s, num_documents: int) -> int:
    """Returns how many chunks of a block are of the first documents.

    Args:
        chunks_valid: uint32[num_chunks, 4], in the order of their documents.
        num_documents: documents of the train split.
    """
    return int(np.searchsorted(chunks_valid[:, 0], num_documents))


def num_sampled_chunks(num_vectors: int, ratios: Sequence[float]) -> list[int]:
    """Returns how many chunks of each data set an index is trained on, rounded down as the reference rounds.

    Example:
        >>> num_sampled_chunks(1000, [2.0, 1.0])
        [666, 333]

    Args:
        num_vectors: chunks to train on.
        ratios: weights of the data sets.

    Raises:
        ConfigError: a weight is not positive.
    """
    if any(not ratio > 0 for ratio in ratios):
        message = f"expected weights above 0, found {[float(ratio) for ratio in ratios]}"
        raise ConfigError(message)
    total = sum(ratios)
    return [int(num_vectors * ratio / total) for ratio in ratios]


def merged_chunks(dataset: int, chunks_valid: UInt32s) -> UInt32s:
    """Returns rows of a merged table: the number of their data set, and what the block says.

    Args:
        dataset: number of the data set.
        chunks_valid: uint32[num_chunks, 4].

    Returns:
        uint32[num_chunks, 5]: data set, document, start, end, and tokens for the embedder.
    """
    merged = np.empty((len(chunks_valid), 1 + _COLUMNS), dtype=np.uint32)
    merged[:, 0] = dataset
    merged[:, 1:] = chunks_valid
    return merged


def merged_offsets(dataset: int, doc_offsets: UInt64s, *, chunks_before: int) -> UInt64s:
    """Returns rows of a merged table of documents.

    Args:
        dataset: number of the data set.
        doc_offsets: uint64[num_documents, 2], of a block.
        chunks_before: rows of the merged table before those of the block.

    Returns:
        uint64[num_documents, 3]: data set, document, and the rows of the table up to its end.
    """
    merged = np.empty((len(doc_offsets), 3), dtype=np.uint64)
    merged[:, 0] = dataset
    merged[:, 1] = doc_offsets[:, 0]
    merged[:, 2] = doc_offsets[:, 1] + np.uint64(chunks_before)
    return merged


def individual_paths(project: RetroProject, prefix: str) -> list[str]:
    """Returns the paths of the files of one data set, in the order of their documents.

    Raises:
        StorageError: their folder cannot be read.
    """
    folder = project.individual_folder(prefix)
    with storage_errors("list", folder):
        names = sorted(name for name in os.listdir(folder) if name.endswith(".hdf5") and not name.startswith("."))
    return [os.path.join(folder, name) for name in names]


def individual_chunks(
    project: RetroProject, prefix: str, *, number: int, name: str = "chunks_valid"
) -> NDArray[np.uint32]:
    """Returns the chunks of one data set, uint32[num_chunks, 5], as the database has them.

    Args:
        project: the project.
        prefix: prefix of the data set.
        number: its number, which becomes the first column.
        name: "chunks_valid", or "chunks_invalid" for those that are left out.

    Raises:
        StorageError: a file cannot be read.
    """
    parts = [open_rows(path, name, columns=_COLUMNS) for path in individual_paths(project, prefix)]
    return merged_chunks(number, np.concatenate([np.empty((0, _COLUMNS), dtype=np.uint32), *parts]))


def individual_document_offsets(project: RetroProject, prefix: str, *, number: int) -> NDArray[np.uint64]:
    """Returns where the chunks of each document end: uint64[num_documents, 3].

    A row is the number of the data set, that of the document, and the chunks of it and all before it.

    Raises:
        StorageError: a file cannot be read.
    """
    offsets, num_chunks = [np.empty((0, 3), dtype=np.uint64)], 0
    for path in individual_paths(project, prefix):
        part = open_rows(path, "doc_offsets", columns=2).astype(np.uint64)
        offsets.append(merged_offsets(number, part, chunks_before=num_chunks))
        num_chunks = int(offsets[-1][-1, 2]) if len(part) else num_chunks
    return np.concatenate(offsets)
