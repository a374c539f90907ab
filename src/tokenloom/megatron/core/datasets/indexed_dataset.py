"""`megatron.core.datasets.indexed_dataset`: reads and writes `.bin`/`.idx` pairs."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from typing import IO, Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray

from tokenloom.errors import ConfigError, DatasetFormatError, TokenRangeError
from tokenloom.indexed import dataset as plain
from tokenloom.indexed.dataset import DatasetFiles, LazyAttribute
from tokenloom.indexed.layout import HEADER_BYTES, DType, Header, Index, parse_header, parse_index
from tokenloom.indexed.layout import MAGIC as _INDEX_HEADER  # noqa: F401
from tokenloom.indexed.layout import bin_path as get_bin_path
from tokenloom.indexed.layout import idx_path as get_idx_path  # noqa: F401
from tokenloom.indexed.layout import prefix_of as _prefix_of
from tokenloom.indexed.writing.concatenate import open_checked
from tokenloom.indexed.writing.outputs import IndexWriter as _RowsWriter
from tokenloom.indexed.writing.outputs import dataset_paths
from tokenloom.megatron.core.datasets.object_storage_utils import (  # noqa: F401
    ObjectStorageConfig,
    S3Config,
    cache_index_file,
    dataset_exists,
    get_index_cache_path,
    get_object_storage_access,
    is_object_storage_path,
    parse_s3_path,
)
from tokenloom.megatron.core.datasets.utils import log_single_rank, logger  # noqa: F401
from tokenloom.overrides import overrides
from tokenloom.storage.atomic import PendingFile
from tokenloom.storage.local import Bytes, ByteSource, MappedFile, PositionalFile, map_file
from tokenloom.storage.objects import PendingObject, RemoteFile
from tokenloom.storage.resolve import open_pending, remove
from tokenloom.storage.secrets import queries_for_child, remember
from tokenloom.storage.settings import ObjectStorageSettings

_DEFAULT_CHUNK_BYTES = 256 << 20
"""Megatron's default of `bin_chunk_nbytes`; for this value, tokenloom uses its own default block size."""

_COPY_BYTES = 64 << 20


# --- the index --------------------------------------------------------------------------------------------------------


class _IndexReader(Index):
    """The contents of an `.idx` file; `reader[i]` is (byte offset, length in tokens, mode) of sequence i."""

    def __init__(
        self,
        idx_path: str,
        multimodal: bool,
        sequences_per_dataset: Sequence[int] | None = None,
        dtype_code: int | None = None,
    ) -> None:
        data = map_file(os.fspath(idx_path))
        header = parse_header(data[:HEADER_BYTES].tobytes(), path=idx_path)
        if sequences_per_dataset:
            expected = (*sequences_per_dataset, header.dtype_code if dtype_code is None else dtype_code)
            if expected != (found := (header.num_sequences, header.num_boundaries, header.dtype_code)):
                message = f"`{idx_path}`: expected num_sequences, num_boundaries, dtype_code {expected}, found {found}"
                raise DatasetFormatError(message, hint="recreate the counts with `tokenloom sequences-per-dataset`")
        self._copy(parse_index(data, header, path=idx_path, bin_bytes=None, multimodal=multimodal))

    def _copy(self, index: Index, **changes: Any) -> Self:
        """Copies the fields of another index; `changes` override fields by name."""
        Index.__init__(self, **{field.name: getattr(index, field.name) for field in fields(Index)} | changes)
        return self

    @property
    def dtype(self) -> Any:
        """The NumPy scalar type of the tokens."""
        return self.header.dtype.type

    @property
    def dtype_size(self) -> int:
        return self.header.dtype.itemsize

    @property
    def sequence_count(self) -> int:
        return self.header.num_sequences

    @property
    def document_count(self) -> int:
        """Length of `document_indices`: the number of documents plus 1."""
        return self.header.num_boundaries

    def __getitem__(self, idx: int) -> tuple[np.int64, np.int32, np.int8 | None]:
        mode = None if self.sequence_modes is None else self.sequence_modes[idx]
        return self.sequence_pointers[idx], self.sequence_lengths[idx], mode


class _IndexWriter:
    """A context manager that writes an `.idx` file and publishes it atomically on exit; an error discards the file."""

    def __init__(self, idx_path: str, dtype: Any) -> None:
        self.idx_path = idx_path
        self.dtype = dtype

    def __enter__(self) -> Self:
        self._dtype_code = DType.code_from_dtype(self.dtype)  # raises before the file is created
        self._file: PendingFile | PendingObject = open_pending(os.fspath(self.idx_path), durable=False)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._file.publish()
        else:
            self._file.discard()

    def write(
        self,
        sequence_lengths: Sequence[int] | NDArray[Any],
        sequence_modes: Sequence[int] | NDArray[Any] | None,
        document_indices: Sequence[int] | NDArray[Any],
    ) -> None:
        """Writes the whole index; raises `OverflowError` if a length, mode or document end does not fit its dtype."""
        lengths, boundaries = np.array(sequence_lengths, dtype=np.int32), np.array(document_indices, dtype=np.int64)
        modes = None if sequence_modes is None else np.array(sequence_modes, dtype=np.int8)
        if not len(boundaries) or (boundaries[0], boundaries[-1]) != (0, len(lengths)):
            ends = f"got {boundaries[:1]} to {boundaries[-1:]}"
            message = f"`{self.idx_path}`: `document_indices` must run from 0 to {len(lengths)} sequences, {ends}"
            raise ConfigError(message, hint="call `end_document` after the last item of each document")
        if modes is not None and len(modes) != len(lengths):
            raise ConfigError(f"`{self.idx_path}`: expected {len(lengths)} modes, one per sequence, found {len(modes)}")
        header = Header(dtype_code=self._dtype_code, num_sequences=len(lengths), num_boundaries=len(boundaries))
        rows = _RowsWriter(self._file, header, multimodal=modes is not None)
        rows.add_rows(lengths, modes)
        rows.add_boundaries(boundaries[1:])
        rows.finish()


# --- readers of tokens ------------------------------------------------------------------------------------------------


class _BinReader(ABC):
    """A reader of a `.bin` file."""

    @abstractmethod
    def read(self, dtype: Any, count: int, offset: int) -> NDArray[Any]:
        """Returns dtype[count], read from byte `offset`."""


class _SourceReader(_BinReader):
    """A reader over a tokenloom byte source."""

    source: ByteSource
    _path: str

    @classmethod
    def _over(cls, bin_path: str, source: ByteSource) -> Self:
        """Returns a reader over an open byte source; does not call `__init__`."""
        reader = cls.__new__(cls)
        reader._path, reader.source = bin_path, source
        return reader

    def read(self, dtype: Any, count: int, offset: int) -> NDArray[Any]:
        """Returns dtype[count] from byte `offset`, as a read-only view if mapped; reads to the end if `count` < 0."""
        wanted, begin, size = np.dtype(dtype), int(offset), self.source.num_bytes
        num_bytes = wanted.itemsize * (int(count) if count >= 0 else (size - begin) // wanted.itemsize)
        if not 0 <= begin <= size - num_bytes:
            raise ValueError(f"bytes [{begin}, {begin + num_bytes}) out of range: `{self._path}` has {size} bytes")
        return self.source.read(begin, num_bytes).view(wanted)


class _MMapBinReader(_SourceReader):
    """A reader that returns views of a memory-mapped local file."""

    def __init__(self, bin_path: str) -> None:
        self._path, self.source = bin_path, MappedFile(os.fspath(bin_path))


class _FileBinReader(_SourceReader):
    """A reader that reads a local file with `pread`; ignores the retry arguments."""

    def __init__(self, bin_path: str, num_max_retries: int = 3, sleep_duration_start: float = 10) -> None:
        self._path, self.source = bin_path, PositionalFile(os.fspath(bin_path))


class _S3BinReader(_SourceReader):
    """A reader that reads exact byte ranges of an `s3://` object."""

    def __init__(self, bin_path: str, object_storage_config: Any) -> None:
        self._path, self.source = bin_path, RemoteFile(bin_path, _settings_of(object_storage_config))


class _MultiStorageClientBinReader(_S3BinReader):
    """A reader of an object at any address except `s3://`, such as `msc://`."""


OBJECT_STORAGE_BIN_READERS: dict[str, Any] = {"s3": _S3BinReader, "msc": _MultiStorageClientBinReader}
"""The reader class of each URL scheme; programs may add entries."""


class _ReaderSource:
    """A byte source over the `bin_reader` that a program assigned; `source` gives only the size in bytes."""

    mapped = None

    def __init__(self, reader: Any, source: ByteSource, dtype: np.dtype[Any]) -> None:
        self.reader = reader
        self.num_bytes = source.num_bytes
        self._dtype = dtype

    def read(self, offset: int, length: int) -> Bytes:
        size = self._dtype.itemsize
        first, stop = offset // size, -(-(offset + length) // size)
        numbers = self.reader.read(dtype=self._dtype.type, count=stop - first, offset=first * size)
        data = np.ascontiguousarray(numbers, dtype=self._dtype).view(np.uint8)
        return data[offset - first * size :][:length]

    def read_many(self, offsets: Sequence[int], lengths: Sequence[int]) -> Iterator[Bytes]:
        return map(self.read, offsets, lengths)


def _settings_of(config: Any) -> ObjectStorageSettings | None:
    """Converts an `ObjectStorageConfig` of Megatron or of this package to `ObjectStorageSettings`."""
    if config is None or isinstance(config, ObjectStorageSettings):
        return config
    settings = ObjectStorageSettings(cache_path=config.path_to_idx_cache)
    if (size := config.bin_chunk_nbytes) == _DEFAULT_CHUNK_BYTES:
        return settings
    return replace(settings, block_bytes=size, cache_bytes=max(settings.cache_bytes, size))


# --- datasets ---------------------------------------------------------------------------------------------------------


class _OutsideSequence(IndexError, ValueError):
    """The error for a range outside a sequence; callers written for Megatron catch `ValueError`."""


class IndexedDataset(plain.IndexedDataset, torch.utils.data.Dataset[Any]):  # type: ignore[misc]  # torch has no types
    """`tokenloom.IndexedDataset` with Megatron's interface.

    `index[i]` is (byte offset, length, mode) of sequence i; `bin_reader.read(dtype, count, offset)` reads tokens.
    Programs may replace or override `index` and `bin_reader`. `dataset[i]` and `get` do not call each other: a subclass
    that changes the tokens must override both.

    Other arguments and errors are those of `tokenloom.IndexedDataset`.

    Args:
        object_storage_config, s3_config: an `ObjectStorageConfig`; `s3_config` is the older name. Needs `mmap=False`.
        dtype_code: dtype code that the `.idx` file must have; ignored without `sequences_per_dataset`.
    """

    opened_names: ClassVar[frozenset[str]] = plain.IndexedDataset.opened_names | {"_reader", "_source"}

    index: Any
    _reader: Any = LazyAttribute("_open", when="_counts")

    _storage: ObjectStorageSettings | None = None
    _pickled_files: DatasetFiles | None = None

    def __init__(
        self,
        path_prefix: str,
        multimodal: bool = False,
        mmap: bool = True,
        object_storage_config: Any = None,
        s3_config: Any = None,
        fast_cache_load: bool = False,
        sequences_per_dataset: Sequence[int] | None = None,
        dtype_code: int | None = None,
        *,
        object_storage: ObjectStorageSettings | None = None,
    ) -> None:
        self._storage = object_storage
        config = object_storage_config or s3_config
        self.initialize(path_prefix, multimodal, mmap, config, fast_cache_load, sequences_per_dataset, dtype_code)

    def initialize(
        self,
        path_prefix: str,
        multimodal: bool,
        mmap: bool,
        object_storage_config: Any,
        fast_cache_load: bool = False,
        sequences_per_dataset: Sequence[int] | None = None,
        dtype_code: int | None = None,
    ) -> None:
        """Opens the pair; called by `__init__` and on unpickling."""
        if mmap and object_storage_config:
            message = "`mmap`: must be False with `object_storage_config`, got True"
            raise ConfigError(message, hint="pass `mmap=False`: objects cannot be memory-mapped")
        counts = tuple(sequences_per_dataset) if sequences_per_dataset else None
        self.object_storage_config = object_storage_config
        plain.IndexedDataset.__init__(
            self,
            path_prefix,
            multimodal,
            mmap,
            fast_cache_load=fast_cache_load,
            sequences_per_dataset=counts,  # type: ignore[arg-type]  # compared as a tuple
            dtype_code=dtype_code if counts else None,
            object_storage=self._storage or _settings_of(object_storage_config),
        )
        self.dtype_code = dtype_code

    def __getstate__(self) -> tuple[Any, ...]:  # type: ignore[override]  # Megatron's form
        """Returns the arguments of `initialize`."""
        names = ("path_prefix", "multimodal", "mmap", "object_storage_config", "fast_cache_load")
        return tuple(getattr(self, name) for name in (*names, "sequences_per_dataset", "dtype_code"))

    def __setstate__(self, state: tuple[Any, ...]) -> None:  # type: ignore[override]
        """Opens the pair; `state` contains the first four or all seven arguments of `initialize`."""
        self.initialize(*state)

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickle, (type(self), self.__getstate__(), self._files, self._storage, queries_for_child())

    def _make_files(self) -> DatasetFiles:
        files, self._pickled_files = self._pickled_files, None
        return files or super()._make_files()

    def _make_index(self, index: Index) -> Any:
        return _IndexReader.__new__(_IndexReader)._copy(index)

    def _make_reader(self, source: ByteSource) -> Any:
        """Returns the reader of the `.bin` file; programs may replace the reader classes of this module."""
        self._source = source
        path, kind = self.tokens_path, _MMapBinReader if self.mmap else _FileBinReader
        if self.is_remote:
            kind = OBJECT_STORAGE_BIN_READERS.get(path.partition("://")[0], _MultiStorageClientBinReader)
        if isinstance(kind, type) and issubclass(kind, _SourceReader) and not overrides(kind, "__init__"):
            return kind._over(path, source)
        make: Callable[..., Any] = kind
        return make(path, self.object_storage_config) if self.is_remote else make(path)

    @property
    def bin_reader(self) -> Any:
        """The reader of the `.bin` file, an object with `read(dtype, count, offset)`; may be assigned."""
        return self._reader

    @bin_reader.setter
    def bin_reader(self, reader: Any) -> None:
        is_ours = isinstance(reader, _SourceReader) and not overrides(reader, "read")
        self._reader = reader
        self._take_source(reader.source if is_ours else _ReaderSource(reader, self._source, self._token_dtype))

    def __getitem__(self, idx: Any) -> Any:
        """Returns the tokens of a sequence; for a slice, a list with one array per sequence.

        In a multimodal dataset, returns (tokens, mode); for a slice, (list, modes). An empty slice returns a list with
        one empty array.
        """
        if not isinstance(idx, slice):
            return plain.IndexedDataset.get(self, idx)
        start, stop, step = idx.indices(len(self))
        if step != 1:
            raise ValueError(f"slices must have step 1, got step {step}")
        if stop > start:
            sequences = self._read_run(start, stop)
        else:
            sequences = [self._read(int(self.index.sequence_pointers[start]), 0)]
        return (sequences, self.sequence_modes[idx]) if self.multimodal else sequences

    def _outside(self, row: int, start: int, stop: int) -> IndexError:
        return _OutsideSequence(*super()._outside(row, start, stop).args)

    @property
    def num_documents(self) -> int:
        """Number of documents; a document has zero or more sequences."""
        return len(self.document_indices) - 1 if self.is_open else super().num_documents

    def set_document_indices(self, document_indices: NDArray[np.int64]) -> None:
        """Replaces `document_indices` in memory; the files do not change."""
        self.index = _IndexReader.__new__(_IndexReader)._copy(self.index, document_indices=document_indices)


def _unpickle(
    cls: type[IndexedDataset],
    state: tuple[Any, ...],
    files: DatasetFiles,
    storage: ObjectStorageSettings | None,
    queries: dict[str, str],
) -> IndexedDataset:
    """Opens the pickled dataset; raises an error if a file was replaced after pickling."""
    remember(queries)
    dataset = cls.__new__(cls)
    dataset._storage, dataset._pickled_files = storage, files
    dataset.__setstate__(state)
    return dataset


class IndexedDatasetBuilder:
    """A writer of a local `.bin`/`.idx` pair; like Megatron's, it writes an item to the `.bin` file when it is added.

    Programs may write to `data_file` and change the list attributes. A token that does not fit the dtype raises
    `TokenRangeError` before its document is added. `tokenloom.IndexedDatasetBuilder` is faster, publishes the pair
    atomically, and can write to object storage.

    Args:
        bin_path: path of the `.bin` file, which is created immediately.
        dtype: dtype of the tokens.
        multimodal: whether each sequence has a mode.

    Attributes:
        data_file: the open `.bin` file.
        sequence_lengths: number of tokens per sequence.
        document_indices: 0, then the exclusive end of each document as a sequence index.
        sequence_modes: mode of each sequence; None if not multimodal.
    """

    def __init__(self, bin_path: str, dtype: Any = np.int32, multimodal: bool = False) -> None:
        self._bin_path = os.fspath(bin_path)
        self.data_file: IO[bytes] = open(self._bin_path, "wb")  # noqa: SIM115 - closed by `finalize`
        self.dtype = dtype
        self.multimodal = multimodal
        self.sequence_lengths: list[int] = []
        self.document_indices: list[int] = [0]
        self.sequence_modes: list[int] | None = [] if multimodal else None

    def add_item(self, tensor: Any, mode: int = 0) -> None:
        """Appends one sequence to the current document; `tensor` is anything that `numpy.array` converts."""
        tokens = self._numbers(tensor)
        self.data_file.write(tokens.tobytes(order="C"))
        self._add_rows([tokens.size], [mode])

    def add_document(self, tensor: Any, lengths: Sequence[int], modes: Sequence[int] | None = None) -> None:
        """Appends one document; `lengths`, the tokens per sequence, must sum to the size of `tensor`."""
        tokens, sizes = self._numbers(tensor), [int(length) for length in lengths]
        if sum(sizes) != tokens.size:
            raise ValueError(f"`lengths`: must sum to {tokens.size} tokens, got {sum(sizes)}")
        self.data_file.write(tokens.tobytes(order="C"))
        self._add_rows(sizes, modes)
        self.end_document()

    def add_documents(
        self,
        documents: Any,
        modes: Sequence[int] | None = None,
        eod_token: int | None = None,
        chunk_size: int = 1_000_000,
    ) -> None:
        """Appends documents with one sequence each; `documents` is an Awkward Array, or a list of lists or arrays.

        Appends `eod_token`, if given, to each document. Converts at most `chunk_size` documents at a time to lists.
        """
        end = [] if eod_token is None else [eod_token]
        for start in range(0, len(documents), chunk_size):
            chunk = documents[start : start + chunk_size]
            for number, row in enumerate(chunk.tolist() if hasattr(chunk, "tolist") else chunk, start):
                tokens = np.concatenate([self._numbers(row), self._numbers(end)])
                self.add_document(tokens, [tokens.size], None if modes is None else [modes[number]])

    def end_document(self) -> None:
        """Ends the current document; call it after the last `add_item` of the document."""
        self.document_indices.append(len(self.sequence_lengths))

    def add_index(self, path_prefix: str) -> None:
        """Appends all documents of a pair; a damaged pair or another dtype raises an error before any writing."""
        dataset = open_checked(os.fspath(path_prefix), multimodal=self.multimodal)
        if dataset.dtype != np.dtype(self.dtype):
            message = f"`{dataset.idx_path}`: expected tokens of dtype {np.dtype(self.dtype)}, found {dataset.dtype}"
            raise DatasetFormatError(message, hint="preprocess one pair again with the dtype of the other pair")
        first, index = len(self.sequence_lengths), dataset.index
        for number, offset, count in dataset.extents.pieces(0, dataset.extents.num_bytes):
            begin = dataset.sections[number].start + offset
            for at in range(begin, begin + count, _COPY_BYTES):
                self.data_file.write(dataset.byte_source.read(at, min(_COPY_BYTES, begin + count - at)).data)
        modes = None if index.sequence_modes is None else index.sequence_modes.tolist()
        self._add_rows(index.sequence_lengths.tolist(), modes)
        self.document_indices.extend((index.document_indices[1:] + first).tolist())

    def finalize(self, idx_path: str) -> None:
        """Closes the `.bin` file and writes the `.idx` file; removes other files of an older pair at this prefix."""
        self.data_file.close()
        prefix = _prefix_of(idx_path)
        if get_bin_path(prefix) == self._bin_path:
            for path in dataset_paths(prefix):
                if path not in (self._bin_path, idx_path):
                    remove(path)
        with _IndexWriter(idx_path, self.dtype) as writer:
            writer.write(self.sequence_lengths, self.sequence_modes, self.document_indices)

    def _add_rows(self, lengths: list[int], modes: Sequence[int] | None) -> None:
        self.sequence_lengths.extend(lengths)
        if self.sequence_modes is not None:
            self.sequence_modes.extend([0] * len(lengths) if modes is None else modes)

    def _numbers(self, tokens: Any) -> NDArray[Any]:
        """Returns `numpy.array(tokens, dtype)`; an integer that does not fit raises `TokenRangeError`."""
        given = np.asarray(tokens)
        try:  # NumPy converts strings and large numbers only from a list, not from `given`
            numbers = np.array(tokens if isinstance(tokens, (list, tuple)) else given, dtype=self.dtype)
            problem = None
            if given.dtype.kind in "iu" and numbers.dtype.kind in "iu" and (changed := numbers != given).any():
                problem = f"token id {given[changed][0]} does not fit {numbers.dtype}"
        except OverflowError as error:
            problem = str(error)
        if problem is not None:
            message = f"`{self._bin_path}`: document {len(self.document_indices) - 1}: {problem}"
            raise TokenRangeError(message, hint="pass `dtype=DType.optimal_dtype(vocab_size)`")
        return numbers
