"""The chunks of a pair and their vectors, made once and kept beside it: what is asked without a project.

Everything is in one HDF5 file, which is mapped: chunks in the order of their documents, their vectors of length 1, and
a vector per document, the direction of the mean of those of its chunks. A chunk whose text says nothing to the embedder
is left out.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import ConfigError
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.identity import dataset_identity
from tokenloom.indexed.layout import prefix_of
from tokenloom.indexed.origins import Origins, read_origins
from tokenloom.jobs.running import Runner
from tokenloom.progress import task as shown_task
from tokenloom.retro.block_job import MadeBlock, make_blocks
from tokenloom.retro.block_plan import Arrays
from tokenloom.retro.chunk_maker import ChunkMaker
from tokenloom.retro.chunk_table import chunk_spans, documents_in
from tokenloom.retro.document_numbers import DocumentNumbers
from tokenloom.retro.hdf5 import hdf5_in, open_array
from tokenloom.retro.output import NewOutput, OutputManifest, same_output
from tokenloom.storage.addresses import is_remote

Float32s = NDArray[np.float32]
Int64s = NDArray[np.int64]
UInt32s = NDArray[np.uint32]

SUFFIX = ".neighbors"
"""What is behind the prefix of a pair in the name of the folder beside it."""

_FILE = "vectors.hdf5"
_TASK = "vectors of chunks"
_CHUNKS, _VECTORS, _DOCUMENTS = "chunks", "vectors", "documents"
_COLUMNS = 5

_CHUNKS_AT_ONCE = 1024
_CHUNKS_OF_BLOCK = 1 << 15
"""Chunks of a block, about: 32 MB where vectors are 256 wide."""


@dataclass(frozen=True)
class VectorTask:
    """Chunks and vectors of the documents of a pair; a row is a document with a sequence.

    Attributes:
        chunks: what makes texts and vectors.
        prefix: prefix of the pair.
        unit: what a row is.
    """

    chunks: ChunkMaker
    prefix: str
    unit: str = "documents"

    @property
    def name(self) -> str:
        """What is made."""
        return f"vectors of `{self.prefix}`"

    @cached_property
    def num_rows(self) -> int:
        """The documents of the pair that have a sequence."""
        return len(IndexedDataset(self.prefix))

    @cached_property
    def block_size(self) -> int:
        """Documents of a block: as many as have some 30,000 chunks in the mean."""
        num_chunks = IndexedDataset(self.prefix).num_tokens / self.chunks.chunk_length
        return max(1, min(self.num_rows, int(self.num_rows * _CHUNKS_OF_BLOCK / max(1.0, num_chunks))))

    def identity(self) -> dict[str, Any]:
        """Returns what decides chunks and vectors."""
        return {
            **self.chunks.identity(),
            "data": dataset_identity(IndexedDataset(self.prefix)),
            "block_size": self.block_size,
        }

    def maker(self, num_workers: int) -> _VectorMaker:
        """Returns what cuts and embeds documents."""
        return _VectorMaker(self)


class _VectorMaker:
    """Cuts documents into chunks, and makes their vectors."""

    def __init__(self, task: VectorTask) -> None:
        self._task = task

    def __enter__(self) -> Self:
        self._pair = IndexedDataset(self._task.prefix)
        return self

    def __exit__(self, *_: object) -> None:
        del self._pair

    def make(self, start: int, stop: int, advance: Callable[[int], None]) -> Arrays:
        """Returns chunks, their vectors, and the vectors of documents [start, stop)."""
        spans = spans_of(self._pair, self._task.chunks, range(start, stop))
        chunks, vectors = [np.empty((0, _COLUMNS), dtype=np.uint32)], [_no_vectors(self._task.chunks)]
        done = start
        for first in range(0, len(spans), _CHUNKS_AT_ONCE):
            rows, found = embedded(self._pair, self._task.chunks, spans[first : first + _CHUNKS_AT_ONCE])
            chunks.append(rows)
            vectors.append(found)
            at = int(spans[min(first + _CHUNKS_AT_ONCE, len(spans)) - 1, 0])
            advance(at - done)
            done = at
        advance(stop - done)
        table, all_vectors = np.concatenate(chunks), np.concatenate(vectors)
        means = _means(table, all_vectors, range(start, stop))
        return {_CHUNKS: table, _VECTORS: all_vectors, _DOCUMENTS: means}


def spans_of(pair: IndexedDataset, chunks: ChunkMaker, documents: range) -> Int64s:
    """Returns the chunks of documents, counted by sequences: int64[num_chunks, 3], document, first token and end.

    Raises:
        ConfigError: a document has several sequences; or there are no such documents.
    """
    lengths, ends_with_eod = documents_in(pair, documents.start, documents.stop, eod=chunks.eod)
    spans = chunk_spans(lengths, ends_with_eod, chunks.chunk_length, first_document=documents.start)
    return spans.astype(np.int64)


def embedded(pair: IndexedDataset, chunks: ChunkMaker, spans: Int64s) -> tuple[UInt32s, Float32s]:
    """Returns rows of a chunk table, and the vectors of these, for those chunks that say something.

    Args:
        pair: the pair.
        chunks: what makes texts and vectors.
        spans: int64[num_chunks, 3], see `spans_of`.

    Returns:
        rows: uint32[num_found, 5], the number 0 of the data set, document, start, end, tokens for the embedder.
        vectors: float32[num_found, dimension], of length 1, or zeros.

    Raises:
        ConfigError: the embedder returns something else than vectors.
    """
    texts = chunks.span_texts(pair, spans)
    counts = chunks.count_tokens(texts)
    says = np.flatnonzero(counts)
    rows = np.zeros((len(says), _COLUMNS), dtype=np.uint32)
    rows[:, 1:4], rows[:, 4] = spans[says], counts[says]
    return rows, of_length_1(chunks.embed([texts[row] for row in says.tolist()]))


def of_length_1(vectors: Float32s) -> Float32s:
    """Returns vectors of the same directions and length 1; zeros stay zeros."""
    lengths = np.sqrt(np.square(vectors, dtype=np.float64).sum(axis=1, keepdims=True))
    scaled = np.zeros_like(vectors)
    np.divide(vectors, lengths, out=scaled, where=lengths > 0, casting="same_kind")
    return scaled


def _no_vectors(chunks: ChunkMaker) -> Float32s:
    return np.empty((0, chunks.embedder.dimension), dtype=np.float32)


def _means(table: UInt32s, vectors: Float32s, documents: range) -> Float32s:
    """Returns a vector per document, of length 1: the mean of those of its chunks, by their tokens."""
    means = np.zeros((len(documents), vectors.shape[1]), dtype=np.float32)
    if len(table):
        weights = (table[:, 3] - table[:, 2]).astype(np.float32)
        found, firsts = np.unique(table[:, 1], return_index=True)
        sums = np.add.reduceat(vectors * weights[:, None], firsts, axis=0)
        means[found.astype(np.int64) - documents.start] = of_length_1(sums)
    return means


class PairVectors:
    """The chunks of a pair and their vectors, mapped; `open_pair_vectors` gives one. Safe from several threads.

    Attributes:
        prefix: prefix of the pair.
        folder: folder of the file.
        chunks: what made texts and vectors.
        pair: the pair.
        numbers: the numbers of its documents.
        table: uint32[num_chunks, 5], the chunk table; its column of data sets is 0, that of documents has sequences.
        vectors: float32[num_chunks, dimension], of length 1, or zeros.
        documents: float32[num_sequences, dimension], a vector per document with a sequence, likewise.
        crc32: checksum of the file.
    """

    def __init__(self, prefix: str, folder: str, chunks: ChunkMaker, manifest: OutputManifest) -> None:
        path, dimension = os.path.join(folder, _FILE), chunks.embedder.dimension
        self.prefix = prefix
        self.folder = folder
        self.chunks = chunks
        self.pair: IndexedDataset = IndexedDataset(prefix)
        self.numbers: DocumentNumbers = DocumentNumbers(self.pair)
        num_chunks, num_documents = manifest.counts["num_chunks"], manifest.counts["num_documents"]
        self.table: UInt32s = open_array(path, _CHUNKS, shape=(num_chunks, _COLUMNS))
        self.vectors: Float32s = open_array(path, _VECTORS, shape=(num_chunks, dimension), kind="floats")
        self.documents: Float32s = open_array(path, _DOCUMENTS, shape=(num_documents, dimension), kind="floats")
        self.crc32: int = manifest.files[0].crc32

    def __len__(self) -> int:
        """The number of chunks."""
        return len(self.table)

    @cached_property
    def _documents_of_chunks(self) -> UInt32s:
        """The sequence of each chunk, in memory: 4 bytes a chunk."""
        return np.ascontiguousarray(self.table[:, 1])

    @cached_property
    def _origins(self) -> Origins | None:
        return read_origins(self.prefix)

    def rows_of(self, document: int) -> range:
        """Returns the chunks of a document; none of one that is empty."""
        sequences = self.numbers.sequences_of(document)
        start, stop = np.searchsorted(self._documents_of_chunks, [sequences.start, sequences.stop]).tolist()
        return range(start, stop)

    def texts(self, ids: Int64s) -> list[str]:
        """Returns the texts of chunks."""
        return self.chunks.span_texts(self.pair, self.table[ids, 1:4].astype(np.int64))

    def origins_of(self, documents: Sequence[int]) -> list[str | None]:
        """Returns the record that each document was made of, as `FILE:N` with N from 1; None if that is not known."""
        return origins_of(self._origins, documents)


def origins_of(origins: Origins | None, documents: Sequence[int]) -> list[str | None]:
    """Returns the record that each document was made of, as `FILE:N` with N from 1; None if that is not known."""
    if origins is None or not len(documents):
        return [None] * len(documents)
    files, records = origins.locate(np.array(documents, dtype=np.int64))
    pairs = zip(files.tolist(), records.tolist(), strict=True)
    return [None if file < 0 else f"{origins.files[file].path}:{record}" for file, record in pairs]


def open_pair_vectors(
    prefix: str,
    chunks: ChunkMaker,
    *,
    cache: str | None = None,
    runner: Runner | None = None,
    restart: bool = False,
    notice: Callable[[str], None] | None = None,
) -> PairVectors:
    """Returns the chunks of a pair and their vectors; makes what of them is missing, or was made of something else.

    They lie in `PREFIX.neighbors/EMBEDDER-LENGTH`, and are used again. Making them is a job of blocks: it may be killed
    anywhere, goes on with the same call, and is shared by processes that see the folder. Memory: a block of some 30,000
    chunks, or the longest document, in each process.

    Args:
        prefix: prefix of the pair, of documents of one sequence each, or none.
        chunks: what makes texts and vectors.
        cache: folder to make that of the pair in; None for the folder of the pair.
        runner: makes the blocks; None for this machine.
        restart: gives up what an earlier call began and did not finish, which may be of other data.
        notice: called with a sentence that says what is made, or read, and where.

    Raises:
        ConfigError: a document has several sequences; the pair is in object storage and there is no `cache`; or an
            earlier call with other data or settings did not finish, and no `restart`.
        DatasetNotFoundError: there is no such pair.
        TokenloomError: reading or writing failed; what was made is kept.
    """
    prefix = prefix_of(prefix)
    folder = _folder_of(prefix, chunks, cache)
    task = VectorTask(chunks, prefix)
    identity = {**task.identity(), "num_rows": task.num_rows}
    is_made = (found := same_output(folder, _TASK, identity)) is not None
    if notice is not None:
        notice(_words(task, folder, is_made=is_made))
    if found is None:
        found = make_blocks(
            task,
            f"{folder}.job",
            lambda made: _published(made, folder, identity, chunks),
            finished=lambda: same_output(folder, _TASK, identity),
            pending=[os.path.join(folder, "")],
            runner=runner,
            restart=restart,
        )
    return PairVectors(prefix, folder, chunks, found)


def _folder_of(prefix: str, chunks: ChunkMaker, cache: str | None) -> str:
    if cache is None and is_remote(prefix):
        message = f"expected a folder for the vectors of `{prefix}`, which is in object storage"
        raise ConfigError(message, hint="name a local one as the cache")
    beside = f"{prefix}{SUFFIX}" if cache is None else os.path.join(cache, f"{os.path.basename(prefix)}{SUFFIX}")
    embedder = re.sub(r"[^A-Za-z0-9_.=-]+", "_", chunks.embedder.name)
    return os.path.join(beside, f"{embedder}-{chunks.chunk_length}")


def _words(task: VectorTask, folder: str, *, is_made: bool) -> str:
    by = f"chunks of {task.chunks.chunk_length} tokens, embedded by `{task.chunks.embedder.name}`"
    if is_made:
        return f"reading `{folder}`: {by}"
    again = ", in place of those of other data or settings" if os.path.exists(os.path.join(folder, _FILE)) else ""
    return f"making `{folder}`: {by}, of {task.num_rows:,} documents{again}; it is kept, to be used again"


def _published(made: Sequence[MadeBlock], folder: str, identity: dict[str, Any], chunks: ChunkMaker) -> OutputManifest:
    """Makes one file of all blocks, a block in memory at a time; what was made of something else goes."""
    num_chunks = sum(len(block) for block in _arrays_of(made, _CHUNKS, _COLUMNS))
    num_documents = identity["num_rows"]
    dimension = chunks.embedder.dimension
    with NewOutput(folder, _TASK) as output:
        pending = output.file(_FILE)
        shown = shown_task("file of vectors", unit="chunks", total=num_chunks)
        with shown as advance, hdf5_in(pending) as file:
            for name, rows, columns, dtype in (
                (_CHUNKS, num_chunks, _COLUMNS, np.uint32),
                (_VECTORS, num_chunks, dimension, np.float32),
                (_DOCUMENTS, num_documents, dimension, np.float32),
            ):
                target, row = file.create_dataset(name, (rows, columns), dtype=dtype), 0
                for block in _arrays_of(made, name, columns):
                    target[row : row + len(block)] = block
                    row += len(block)
                    if name == _VECTORS:
                        advance(len(block))
        blocks = [block.report.arrays_crc32 for block in made]
        counts = {"num_chunks": num_chunks, "num_documents": num_documents}
        return output.publish(identity, counts, blocks=blocks, overwrite=True)


def _arrays_of(made: Sequence[MadeBlock], name: str, columns: int) -> Iterator[NDArray[Any]]:
    for block in made:
        kind: Any = "integers" if name == _CHUNKS else "floats"
        yield open_array(block.path, name, shape=(None, columns), kind=kind)
