"""Cuts documents into chunks, given the documents' lengths; splits, counts and merges tables of chunks.

The end-of-document token of a document is dropped; the other tokens are cut into chunks of `chunk_length` tokens; the
last chunk may be shorter. A chunk that has no tokens for the embedder is invalid: invalid chunks are stored in another
table and never retrieved. One core makes 40 million chunks/s if documents have one or two chunks, else 150 million.
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

_BELOW = 1 << 32  # columns are uint32
_COLUMNS = 4  # document, start, end, and number of embedder tokens


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChunkBlock:
    """The chunks of consecutive documents, as stored in block files.

    Attributes:
        chunks_valid: uint32[num_valid, 4]: document, first token and end token (exclusive), number of embedder tokens.
        chunks_invalid: uint32[num_invalid, 4], chunks without embedder tokens.
        doc_offsets: uint64[num_documents, 2]: document, number of the block's valid chunks up to the document's end.
    """

    chunks_valid: UInt32s
    chunks_invalid: UInt32s
    doc_offsets: UInt64s


def documents_in(dataset: IndexedDataset, start: int, stop: int, *, eod: int) -> tuple[Int64s, Bools]:
    """Returns, for documents [start, stop), their lengths, int64, and whether they end with `eod`, bool.

    The index of a document is the index of its sequence, as in Megatron; documents without a sequence have no index.

    Raises:
        ConfigError: a document has several sequences.
    """
    boundaries = dataset.document_indices
    first = bisect_right(boundaries, start) - 1
    counts = np.diff(np.array(boundaries[first : bisect_left(boundaries, stop) + 1]))
    if len(counts) and int(counts.max()) > 1:
        document = first + int(counts.argmax())
        message = f"`{dataset.path_prefix}`: document {document} must have one sequence, got {int(counts.max())}"
        raise ConfigError(message, hint="tokenize the corpus without splitting sentences")
    lengths = dataset.sequence_lengths[start:stop].astype(np.int64)
    ends_with_eod = np.zeros(len(lengths), dtype=np.bool_)
    filled = np.flatnonzero(lengths)
    last = dataset.gather(filled + start, lengths[filled] - 1, np.ones(len(filled), dtype=np.int64))
    ends_with_eod[filled] = last == eod
    return lengths, ends_with_eod


def chunk_spans(lengths: Int64s, ends_with_eod: Bools, chunk_length: int, *, first_document: int = 0) -> UInt32s:
    """Returns the chunks of consecutive documents: uint32[num_chunks, 3], document, first token, end (exclusive).

    Example:
        >>> chunk_spans(np.array([5, 1, 4]), np.array([True, True, False]), 2).tolist()
        [[0, 0, 2], [0, 2, 4], [2, 0, 2], [2, 2, 4]]

    Args:
        lengths: int64[num_documents], tokens per document.
        ends_with_eod: bool[num_documents], whether the last token is an end-of-document token, which is dropped.
        chunk_length: tokens per chunk.
        first_document: index of the first document.

    Raises:
        ConfigError: the chunk length is not positive, or a document index or length exceeds uint32.
    """
    size = checked_integer("chunk_length", chunk_length, at_least=1)
    kept = lengths - ends_with_eod
    if len(kept) and max(first_document + len(kept), int(kept.max())) > _BELOW - size:
        raise ConfigError(f"more than {_BELOW} documents, or one document with more tokens", hint="split the dataset")
    num_chunks = -(-kept // size)
    ends = np.cumsum(num_chunks)
    spans = np.empty((int(ends[-1]) if len(ends) else 0, 3), dtype=np.uint32)
    spans[:, 0] = np.repeat(np.arange(first_document, first_document + len(kept), dtype=np.uint32), num_chunks)
    before = np.repeat((ends - num_chunks).astype(np.uint32), num_chunks)
    # Row numbers wrap modulo 2**32 on both sides, so their differences are correct.
    np.multiply(np.arange(len(spans), dtype=np.uint32) - before, np.uint32(size), out=spans[:, 1])
    np.add(spans[:, 1], np.uint32(size), out=spans[:, 2])
    filled = np.flatnonzero(num_chunks)
    spans[ends[filled] - 1, 2] = kept[filled]
    return spans


def chunk_block(spans: UInt32s, num_tokens: Int64s, documents: range) -> ChunkBlock:
    """Returns the tables of a block, given `spans` of `chunk_spans` and the number of embedder tokens of each chunk."""
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
    """Returns the share of documents in the retrieval database: the first of three percentages, divided by 100.

    The sum of the percentages is not checked here; Megatron fails if it is not 100.

    Example:
        >>> train_fraction("98,2,0")
        0.98

    Raises:
        ConfigError: the first percentage is not a number in (0, 100].
    """
    percent = parse_number(split.split(",")[0].strip(), f"the first weight of split {split!r}")
    if not 0 < percent <= 100:
        message = f"split {split!r}: the share of train must be in (0, 100] percent, got {percent:g}"
        raise ConfigError(message, hint='use percentages that add up to 100, such as "98,2,0"')
    return percent / 100


def num_train_documents(num_documents: int, split: str) -> int:
    """Returns how many of `num_documents` documents are in the train split, rounded down as in Megatron."""
    return int(train_fraction(split) * num_documents)


def num_train_chunks(chunks_valid: UInt32s, num_documents: int) -> int:
    """Returns how many chunks of a block, uint32[num_chunks, 4], are in the first `num_documents` documents."""
    return int(np.searchsorted(chunks_valid[:, 0], num_documents))


def num_sampled_chunks(num_vectors: int, ratios: Sequence[float]) -> list[int]:
    """Returns how many of `num_vectors` chunks to take from each dataset, by its weight, rounded down as in Megatron.

    Example:
        >>> num_sampled_chunks(1000, [2.0, 1.0])
        [666, 333]

    Raises:
        ConfigError: a weight is not positive.
    """
    if any(not ratio > 0 for ratio in ratios):
        raise ConfigError(f"weights must be above 0, got {[float(ratio) for ratio in ratios]}")
    total = sum(ratios)
    return [int(num_vectors * ratio / total) for ratio in ratios]


def merged_chunks(dataset: int, chunks_valid: UInt32s) -> UInt32s:
    """Returns rows of a merged table, uint32[num_chunks, 5]: the dataset index, then the columns of the block."""
    return np.insert(chunks_valid.astype(np.uint32, copy=False), 0, dataset, axis=1)


def merged_offsets(dataset: int, doc_offsets: UInt64s, *, chunks_before: int) -> UInt64s:
    """Returns rows of a merged table of documents, uint64[num_documents, 3].

    Columns: dataset, document, and number of chunks up to the end of the document, including `chunks_before`, the
    number of chunks before the block.
    """
    merged = np.insert(doc_offsets.astype(np.uint64, copy=False), 0, dataset, axis=1)
    merged[:, 2] += np.uint64(chunks_before)
    return merged


def individual_paths(project: RetroProject, prefix: str) -> list[str]:
    """Returns the paths of the block files of one dataset, in order."""
    folder = project.individual_folder(prefix)
    with storage_errors("list", folder):
        names = sorted(name for name in os.listdir(folder) if name.endswith(".hdf5") and not name.startswith("."))
    return [os.path.join(folder, name) for name in names]


def individual_chunks(
    project: RetroProject, prefix: str, *, number: int, name: str = "chunks_valid"
) -> NDArray[np.uint32]:
    """Returns the chunks of one dataset as database rows, uint32[num_chunks, 5]; `number` is the dataset index."""
    parts = [open_rows(path, name, columns=_COLUMNS) for path in individual_paths(project, prefix)]
    return merged_chunks(number, np.concatenate([np.empty((0, _COLUMNS), dtype=np.uint32), *parts]))


def individual_document_offsets(project: RetroProject, prefix: str, *, number: int) -> NDArray[np.uint64]:
    """Returns uint64[num_documents, 3]: dataset, document, and number of chunks up to the end of the document."""
    offsets, num_chunks = [np.empty((0, 3), dtype=np.uint64)], 0
    for path in individual_paths(project, prefix):
        part = open_rows(path, "doc_offsets", columns=2).astype(np.uint64)
        offsets.append(merged_offsets(number, part, chunks_before=num_chunks))
        num_chunks = int(offsets[-1][-1, 2]) if len(part) else num_chunks
    return np.concatenate(offsets)
