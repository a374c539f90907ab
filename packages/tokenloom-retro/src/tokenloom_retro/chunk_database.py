"""The chunks of a database by index: the document and token range of each chunk, and its tokens."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from tokenloom.datasets.sample_arrays import recycled_empty
from tokenloom.errors import ConfigError, DatasetFormatError, TokenizerError, TokenloomError
from tokenloom.indexed.dataset import span_reader
from tokenloom.kernels.storage import Watch
from tokenloom.numbers import checked_integer
from tokenloom.storage.local import spread_evenly
from tokenloom_retro.hdf5 import file_of, open_array

MISSING = -1  # index of a missing chunk
CHUNKS = "chunks"  # name of the array in a file

_COLUMNS = ("dataset", "document", "start", "stop", "embedding length")
_SHAPE = (None, len(_COLUMNS))

_CHECKED_CHUNKS = 64  # each may cost a page fault or two on a cold cache

_REBUILD = "the database was built from other data or with another chunk length; rebuild it"


class DBDataset:
    """The chunks of a database.

    `database[i]` returns one chunk as in Megatron; `gather` reads the tokens of many chunks with one kernel call per
    dataset. Thread-safe, fork-safe and picklable: unpickling maps the file again.

    Args:
        db_path: path of the HDF5 file, for error messages.
        indexed_datasets: the pairs that the chunks are read from, by dataset index.
        chunks: array or h5py dataset uint32[num_chunks, 5]: dataset, document, first token, end token (exclusive),
            number of embedder tokens.
        chunk_length: tokens per chunk; shorter chunks are padded.
        eod_token_id: end-of-document id, used for padding.
        vocab_size: vocabulary size to check token ids against; None for no check.

    Attributes:
        chunks: uint32[num_chunks, 5], see above.
        max_chunk_length: tokens per chunk.
        doc_tuples: uint32[num_chunks, 2], dataset and document of each chunk; set by `load_doc_tuples`.

    Raises:
        ConfigError: `chunks` does not have five columns.
        StorageError: the file cannot be read.
    """

    def __init__(
        self,
        db_path: str,
        indexed_datasets: Sequence[Any],
        chunks: Any,
        chunk_length: int,
        eod_token_id: int,
        *,
        vocab_size: int | None = None,
    ) -> None:
        shape: tuple[int, ...] = getattr(chunks, "shape", ())
        if len(shape) != 2 or shape[1] != len(_COLUMNS):
            raise ConfigError(f"chunks must have the columns {', '.join(_COLUMNS)}, got shape {list(shape)}")
        self.db_path = db_path
        self.indexed_datasets: list[Any] = list(indexed_datasets)
        self._file: str | None = file_of(chunks)
        if self._file is not None:
            chunks = open_array(self._file, CHUNKS, shape=_SHAPE)
        self.chunks: NDArray[Any] = np.asarray(chunks)
        self.max_chunk_length: int = checked_integer("chunk_length", chunk_length, at_least=1)
        self.eod_token_id: int = checked_integer("eod_token_id", eod_token_id)
        self.vocab_size = vocab_size
        self.doc_tuples: NDArray[Any]
        self._watch = Watch([self.chunks])

    @classmethod
    def open(cls, path: str, indexed_datasets: Sequence[Any], *, chunk_length: int, eod_token_id: int) -> Self:
        """Memory-maps the chunks of a file; see the class for arguments and errors."""
        database = cls(path, indexed_datasets, open_array(path, CHUNKS, shape=_SHAPE), chunk_length, eod_token_id)
        database._file = path
        return database

    def __len__(self) -> int:
        return len(self.chunks)

    def __repr__(self) -> str:
        return f"DBDataset({self.db_path!r}, chunks={len(self)}, chunk_length={self.max_chunk_length})"

    def __getitem__(self, chunk_id: int) -> dict[str, Any]:
        """Returns a chunk: `doc_id`, index of its document in the dataset, and `text`, int64[chunk_length]."""
        number = operator.index(chunk_id)
        if not -len(self) <= number < len(self):
            raise self._no_chunk(number)
        number %= len(self)
        return {"doc_id": int(self.chunks[number, 1]), "text": self.gather(np.array(number))}

    def gather(self, chunk_ids: Sequence[int] | NDArray[np.integer[Any]]) -> NDArray[np.int64]:
        """Returns the tokens of chunks, padded with the end-of-document token: int64[..., chunk_length].

        Args:
            chunk_ids: integers[...], chunk indices in any order; -1 gives only padding.

        Raises:
            IndexError: an index is out of range.
            DatasetFormatError: a chunk is outside of the datasets, or too long.
            TokenizerError: a token is outside of the vocabulary.
            StorageError: the datasets cannot be read, or have changed.
        """
        ids = np.asarray(chunk_ids, dtype=np.int64)
        flat = ids.reshape(-1)
        width = self.max_chunk_length
        out = recycled_empty((len(flat), width), np.int64)
        out.fill(self.eod_token_id)
        there = np.flatnonzero(flat != MISSING)
        numbers = flat[there]
        rows = self._rows(numbers)
        lengths = rows[:, 3] - rows[:, 2]
        wrong = (lengths <= 0) | (lengths > width)
        if wrong.any():
            row = int(np.argmax(wrong))
            message = f"chunk {numbers[row]} of `{self.db_path}` must have 1 to {width} tokens, got {lengths[row]}"
            raise DatasetFormatError(message, hint=_REBUILD)
        by_length = np.argsort(lengths != width, kind="stable")  # chunks of full length first, which are copied as rows
        for dataset in np.unique(rows[:, 0]).tolist():
            own = by_length[rows[by_length, 0] == dataset]
            tokens = self._tokens_of(dataset, numbers[own], rows[own])
            num_full = int(np.count_nonzero(lengths[own] == width))
            full, short = there[own[:num_full]], own[num_full:]
            out[full] = tokens[: num_full * width].reshape(num_full, width)
            filled_up = out[there[short]]
            filled_up[np.arange(width) < lengths[short, None]] = tokens[num_full * width :]
            out[there[short]] = filled_up
        return out.reshape(*ids.shape, width)

    def following(self, chunk_ids: NDArray[np.integer[Any]], num_chunks: int) -> NDArray[np.int64]:
        """Returns the index of each chunk and of the chunks that follow in its document: int64[..., num_chunks].

        After the last chunk of a document, and for the index -1, the result is -1. Chunks without text are skipped.
        """
        ids = np.asarray(chunk_ids, dtype=np.int64)
        there = ids != MISSING
        self._check_numbers(ids[there])
        wanted = ids[..., None] + np.arange(num_chunks, dtype=np.int64)
        inside = there[..., None] & (wanted < len(self))
        documents = np.full((*wanted.shape, 2), MISSING, dtype=np.int64)
        documents[inside] = self.documents_of(wanted[inside])
        return np.where(inside & (documents == documents[..., :1, :]).all(axis=-1), wanted, MISSING)

    def documents_of(self, chunk_ids: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
        """Returns the dataset index and document index of each chunk: int64[num_chunks, 2]."""
        return self._rows(np.asarray(chunk_ids, dtype=np.int64))[:, :2]

    def load_doc_tuples(self) -> None:
        """Sets `doc_tuples`, which takes 8 bytes of memory per chunk."""
        self.doc_tuples = np.ascontiguousarray(self.chunks[:, :2], dtype=np.uint32)
        self._watch.check()

    def check(self) -> None:
        """Checks up to 64 chunks, spread evenly, against the datasets, the chunk length and the tokenizer.

        Raises:
            DatasetFormatError: chunks are outside of the datasets, or too long.
            TokenizerError: tokens are outside of the vocabulary, or a chunk contains an end-of-document token.
        """
        if not len(self):
            return
        numbers = spread_evenly(len(self), _CHECKED_CHUNKS)
        tokens = self.gather(numbers)
        for number, row, chunk in zip(numbers.tolist(), self._rows(numbers).tolist(), tokens, strict=True):
            dataset, document, start, stop = row[:4]
            lengths = getattr(self.indexed_datasets[dataset], "sequence_lengths", None)
            is_last = lengths is not None and stop == int(lengths[document])
            if is_last and int(chunk[stop - start - 1]) == self.eod_token_id:
                message = f"chunk {number} of `{self.db_path}` contains the end-of-document token {self.eod_token_id}"
                hint = "use the end-of-document token of the build, or rebuild the database"
                raise TokenizerError(message, hint=hint)

    def _tokens_of(self, dataset: int, numbers: NDArray[np.int64], rows: NDArray[np.int64]) -> NDArray[Any]:
        """Returns the tokens of chunks of one dataset, concatenated."""
        if dataset >= len(self.indexed_datasets):
            found = f"dataset {dataset}, but there are {len(self.indexed_datasets)} datasets"
            raise DatasetFormatError(f"chunk {numbers[0]} of `{self.db_path}` is in {found}", hint=_REBUILD)
        source = self.indexed_datasets[dataset]
        starts, lengths = np.ascontiguousarray(rows[:, 2]), rows[:, 3] - rows[:, 2]
        try:
            tokens = span_reader(source)(source, np.ascontiguousarray(rows[:, 1]), starts, lengths)
        except TokenloomError:
            raise
        except IndexError as error:
            message = f"`{self.db_path}` has chunks outside of {_named(source)}: {error}"
            raise DatasetFormatError(message, hint=_REBUILD) from error
        if self.vocab_size is not None and tokens.size and not 0 <= tokens.min() <= tokens.max() < self.vocab_size:
            place = int(np.argmax((tokens < 0) | (tokens >= self.vocab_size)))
            number = int(numbers[np.searchsorted(np.cumsum(lengths), place, side="right")])
            where = f"chunk {number} of `{self.db_path}`, in {_named(source)}"
            message = f"{where}: token {tokens[place]} out of range: the tokenizer has {self.vocab_size} ids"
            raise TokenizerError(message, hint="use the tokenizer that the database was built with")
        return tokens

    def _rows(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the table rows of chunks, int64[num_chunks, 5]."""
        self._check_numbers(numbers)
        rows = self.chunks[numbers].astype(np.int64)
        self._watch.check()
        return rows

    def _check_numbers(self, numbers: NDArray[np.int64]) -> None:
        outside = (numbers < 0) | (numbers >= len(self))
        if outside.any():
            raise self._no_chunk(int(numbers[np.argmax(outside)]))

    def _no_chunk(self, number: int) -> IndexError:
        return IndexError(f"chunk {number} out of range: `{self.db_path}` has {len(self)} chunks")

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        del state["_watch"]
        if self._file is not None:  # do not pickle 20 bytes per chunk
            state["chunks"] = len(self)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if isinstance(self.chunks, int):
            assert self._file is not None
            self.chunks = open_array(self._file, CHUNKS, shape=(self.chunks, len(_COLUMNS)))
        self._watch = Watch([self.chunks])


def _named(source: Any) -> str:
    return f"`{getattr(source, 'path_prefix', type(source).__name__)}`"
