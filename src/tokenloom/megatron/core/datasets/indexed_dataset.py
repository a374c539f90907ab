"""`megatron.core.datasets.indexed_dataset`: `.bin`/`.idx` pairs."""

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
from tokenloom.indexed.dataset import DatasetFiles, SetLater
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

_USUAL_CHUNK_BYTES = 256 << 20
"""The reference's default, which it reads at each miss; ours reads what is asked for, and blocks of a usual size."""

_COPIED_BYTES = 64 << 20


# --- the index --------------------------------------------------------------------------------------------------------


class _IndexReader(Index):
    """The contents of an `.idx` file; `reader[i]` is (pointer, length, mode) of sequence i.

    Raises:
        DatasetFormatError: the file is foreign, damaged, or has other counts than `sequences_per_dataset`.
    """

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
                message = f"`{idx_path}`: expected sequences, documents and dtype code {expected}, found {found}"
                raise DatasetFormatError(message, hint="the data changed after its counts were recorded")
        index = parse_index(data, header, path=idx_path, bin_bytes=None, multimodal=multimodal)
        super().__init__(**_fields_of(index))

    @classmethod
    def _over(cls, index: Index) -> Self:
        """Returns a reader of an index that is open."""
        reader = cls.__new__(cls)
        Index.__init__(reader, **_fields_of(index))
        return reader

    @property
    def dtype(self) -> Any:
        """The scalar type of the tokens."""
        return self.header.dtype.type

    @property
    def dtype_size(self) -> int:
        """The bytes of a token."""
        return self.header.dtype.itemsize

    @property
    def sequence_count(self) -> int:
        """The number of sequences."""
        return self.header.num_sequences

    @property
    def document_count(self) -> int:
        """The number of documents, and one more."""
        return self.header.num_boundaries

    def __getitem__(self, idx: int) -> tuple[np.int64, np.int32, np.int8 | None]:
        """Returns pointer, length and mode of a sequence."""
        mode = None if self.sequence_modes is None else self.sequence_modes[idx]
        return self.sequence_pointers[idx], self.sequence_lengths[idx], mode


def _fields_of(index: Index) -> dict[str, Any]:
    return {field.name: getattr(index, field.name) for field in fields(Index)}


class _IndexWriter:
    """Writes an `.idx` file, which appears whole when the context ends, or not at all."""

    def __init__(self, idx_path: str, dtype: Any) -> None:
        self.idx_path = idx_path
        self.dtype = dtype

    def __enter__(self) -> Self:
        self._dtype_code = DType.code_from_dtype(self.dtype)  # before anything is there
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
        """Writes all of it.

        Raises:
            ConfigError: the numbers do not fit together.
            OverflowError: a length, mode or boundary has no room in the format.
        """
        lengths, boundaries = np.array(sequence_lengths, dtype=np.int32), np.array(document_indices, dtype=np.int64)
        modes = None if sequence_modes is None else np.array(sequence_modes, dtype=np.int8)
        if not len(boundaries) or (boundaries[0], boundaries[-1]) != (0, len(lengths)):
            message = (
                f"`{self.idx_path}`: expected document indices from 0 to {len(lengths)}, the number of sequences, "
                f"found {boundaries[:1]} to {boundaries[-1:]}"
            )
            raise ConfigError(message, hint="call `end_document` after the last item of a document")
        if modes is not None and len(modes) != len(lengths):
            message = f"`{self.idx_path}`: expected a mode for each of {len(lengths)} sequences, found {len(modes)}"
            raise ConfigError(message)
        header = Header(dtype_code=self._dtype_code, num_sequences=len(lengths), num_boundaries=len(boundaries))
        rows = _RowsWriter(self._file, header, multimodal=modes is not None)
        rows.add_rows(lengths, modes)
        rows.add_boundaries(boundaries[1:])
        rows.finish()


# --- readers of tokens ------------------------------------------------------------------------------------------------


class _BinReader(ABC):
    """Gives numbers of a `.bin` file."""

    @abstractmethod
    def read(self, dtype: Any, count: int, offset: int) -> NDArray[Any]:
        """Returns numbers as dtype[count], the first of which begins at an offset in bytes."""


class _SourceReader(_BinReader):
    """A reader over a source of bytes of ours."""

    source: ByteSource
    _path: str

    @classmethod
    def _over(cls, bin_path: str, source: ByteSource) -> Self:
        """Returns a reader of a file that is open."""
        reader = cls.__new__(cls)
        reader._path, reader.source = bin_path, source
        return reader

    def read(self, dtype: Any, count: int, offset: int) -> NDArray[Any]:
        """Returns numbers as dtype[count]; of a mapped file, a read-only view. A negative count is all there are.

        Raises:
            ValueError: the file does not hold so many.
        """
        wanted, begin, held = np.dtype(dtype), int(offset), self.source.num_bytes
        num_bytes = wanted.itemsize * (int(count) if count >= 0 else (held - begin) // wanted.itemsize)
        if not 0 <= begin <= held - num_bytes:
            message = f"bytes [{begin}, {begin + num_bytes}) of `{self._path}` were asked for, but it has {held}"
            raise ValueError(message)
        return self.source.read(begin, num_bytes).view(wanted)


class _MMapBinReader(_SourceReader):
    """Reads views of a local file that is mapped into memory."""

    def __init__(self, bin_path: str) -> None:
        self._path, self.source = bin_path, MappedFile(os.fspath(bin_path))


class _FileBinReader(_SourceReader):
    """Reads a local file by position. A read that fails is an error at once: the last two arguments have no effect."""

    def __init__(self, bin_path: str, num_max_retries: int = 3, sleep_duration_start: float = 10) -> None:
        self._path, self.source = bin_path, PositionalFile(os.fspath(bin_path))


class _S3BinReader(_SourceReader):
    """Reads an object of `s3://` by exact ranges."""

    def __init__(self, bin_path: str, object_storage_config: Any) -> None:
        self._path, self.source = bin_path, RemoteFile(bin_path, _settings_of(object_storage_config))


class _MultiStorageClientBinReader(_S3BinReader):
    """Reads an object of `msc://`, or of any other store."""


OBJECT_STORAGE_BIN_READERS: dict[str, Any] = {"s3": _S3BinReader, "msc": _MultiStorageClientBinReader}
"""The reader of each kind of address; a user's own may be put here."""


class _ReaderSource:
    """The bytes that a reader of a user's own gives, which is asked for numbers of the dataset's dtype.

    Args:
        reader: what has `read(dtype, count, offset)`.
        source: the file that it is said to read, of which the size counts.
        dtype: the dtype of the tokens.
    """

    mapped = None

    def __init__(self, reader: Any, source: ByteSource, dtype: np.dtype[Any]) -> None:
        self.reader = reader
        self.num_bytes = source.num_bytes
        self._dtype = dtype

    def read(self, offset: int, length: int) -> Bytes:
        size = self._dtype.itemsize
        first, stop = offset // size, -(-(offset + length) // size)
        numbers = self.reader.read(dtype=self._dtype.type, count=stop - first, offset=first * size)
        found = np.ascontiguousarray(numbers, dtype=self._dtype).view(np.uint8)
        return found[offset - first * size :][:length]

    def read_many(self, offsets: Sequence[int], lengths: Sequence[int]) -> Iterator[Bytes]:
        return map(self.read, offsets, lengths)


def _settings_of(config: Any) -> ObjectStorageSettings | None:
    """Returns our settings for an `ObjectStorageConfig` of either package, or those that are ours already."""
    if config is None or isinstance(config, ObjectStorageSettings):
        return config
    settings = ObjectStorageSettings(cache_path=config.path_to_idx_cache)
    if (size := config.bin_chunk_nbytes) == _USUAL_CHUNK_BYTES:
        return settings
    return replace(settings, block_bytes=size, cache_bytes=max(settings.cache_bytes, size))


# --- datasets ---------------------------------------------------------------------------------------------------------


class _OutsideSequence(IndexError, ValueError):
    """Tokens that a sequence does not have; the reference's callers catch the latter."""


class IndexedDataset(plain.IndexedDataset, torch.utils.data.Dataset[Any]):  # type: ignore[misc]  # torch has no types
    """The sequences of a `.bin`/`.idx` pair, by number; `tokenloom.IndexedDataset` as clients of the reference know it.

    `index[i]` is (pointer, length, mode), `bin_reader.read(dtype, count, offset)` gives numbers, both may be replaced
    or overridden, and are asked then. `dataset[i]` does not ask `get`, nor the other way round.

    Args are those of that class, by position too, and `object_storage_config`, or `s3_config`: where copies of indices
    of objects are kept, and how large blocks are. `dtype_code` counts with `sequences_per_dataset` only.

    Raises:
        DatasetNotFoundError: one of the files does not exist.
        DatasetFormatError: the files are truncated, foreign, or do not belong together.
        ConfigError: objects are to be mapped.
    """

    opened_names: ClassVar[frozenset[str]] = plain.IndexedDataset.opened_names | {"_reader", "_source"}

    index: Any
    _reader: Any = SetLater("_open", when="_counts")

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
        """Opens the pair, when it is made and when it is unpickled; see the class."""
        if mmap and object_storage_config:
            message = "expected `mmap=False` with `object_storage_config`, found True"
            raise ConfigError(message, hint="objects cannot be mapped into memory")
        counts = tuple(sequences_per_dataset) if sequences_per_dataset else None
        self.object_storage_config = object_storage_config
        plain.IndexedDataset.__init__(
            self,
            path_prefix,
            multimodal,
            mmap,
            fast_cache_load=fast_cache_load,
            sequences_per_dataset=counts,  # type: ignore[arg-type]  # compared as a whole
            dtype_code=dtype_code if counts else None,
            object_storage=self._storage or _settings_of(object_storage_config),
        )
        self.dtype_code = dtype_code

    def __getstate__(self) -> tuple[Any, ...]:  # type: ignore[override]  # the reference's form
        """Returns what `initialize` takes."""
        names = ("path_prefix", "multimodal", "mmap", "object_storage_config", "fast_cache_load")
        return tuple(getattr(self, name) for name in (*names, "sequences_per_dataset", "dtype_code"))

    def __setstate__(self, state: tuple[Any, ...]) -> None:  # type: ignore[override]
        """Opens the pair of a state, of four or of seven entries."""
        self.initialize(*state)

    def __reduce__(self) -> tuple[Any, ...]:
        """Returns the state, and beside it which files those are."""
        return _unpickled, (type(self), self.__getstate__(), self._files, self._storage, queries_for_child())

    def _make_files(self) -> DatasetFiles:
        files, self._pickled_files = self._pickled_files, None
        return files or super()._make_files()

    def _make_index(self, index: Index) -> Any:
        return _IndexReader._over(index)

    def _make_reader(self, source: ByteSource) -> Any:
        """Returns the reader of the tokens: of the class that this module names now."""
        self._source = source
        path, kind = self.tokens_path, _MMapBinReader if self.mmap else _FileBinReader
        if self.is_remote:
            kind = OBJECT_STORAGE_BIN_READERS.get(path.partition("://")[0], _MultiStorageClientBinReader)
        if isinstance(kind, type) and issubclass(kind, _SourceReader) and not overrides(kind, "__init__"):
            return kind._over(path, source)
        made: Callable[..., Any] = kind
        return made(path, self.object_storage_config) if self.is_remote else made(path)

    @property
    def bin_reader(self) -> Any:
        """What gives the tokens, by `read(dtype, count, offset)`; another one may take its place."""
        return self._reader

    @bin_reader.setter
    def bin_reader(self, reader: Any) -> None:
        is_ours = isinstance(reader, _SourceReader) and not overrides(reader, "read")
        self._reader = reader
        self._take_source(reader.source if is_ours else _ReaderSource(reader, self._source, self._token_dtype))

    def __getitem__(self, idx: Any) -> Any:
        """Returns the tokens of one sequence, or a list of them for a slice of step 1; see `tokenloom.IndexedDataset`.

        A slice without sequences gives a list of one empty array.
        """
        if not isinstance(idx, slice):
            return plain.IndexedDataset.get(self, idx)
        start, stop, step = idx.indices(len(self))
        if step != 1:
            message = f"slices must be contiguous, got a step of {step}"
            raise ValueError(message)
        if stop > start:
            sequences = self._read_run(start, stop)
        else:
            sequences = [self._read(int(self.index.sequence_pointers[start]), 0)]
        return (sequences, self.sequence_modes[idx]) if self.multimodal else sequences

    def _outside(self, row: int, start: int, stop: int) -> IndexError:
        return _OutsideSequence(*super()._outside(row, start, stop).args)

    @property
    def num_documents(self) -> int:
        """The number of documents; each owns zero or more sequences."""
        return len(self.document_indices) - 1 if self.is_open else super().num_documents

    def set_document_indices(self, document_indices: NDArray[np.int64]) -> None:
        """Replaces `document_indices`, for this object alone."""
        index = Index(**_fields_of(self.index) | {"document_indices": document_indices})
        self.index = self._make_index(index)


def _unpickled(
    cls: type[IndexedDataset],
    state: tuple[Any, ...],
    files: DatasetFiles,
    storage: ObjectStorageSettings | None,
    queries: dict[str, str],
) -> IndexedDataset:
    """Opens a dataset of a pickle: the same files, and errors where they are others by now."""
    remember(queries)
    dataset = cls.__new__(cls)
    dataset._storage, dataset._pickled_files = storage, files
    dataset.__setstate__(state)
    return dataset


class IndexedDatasetBuilder:
    """Writes a local `.bin`/`.idx` pair as the reference does: the `.bin` file is there from the start, and grows.

    What `tokenloom.IndexedDatasetBuilder` does beyond it (a pair that appears whole, objects, speed) is not done here,
    so that clients may write to `data_file` and change the lists themselves.

    Args:
        bin_path: path of the tokens.
        dtype: dtype of the tokens.
        multimodal: whether each sequence has a mode.

    Attributes:
        data_file: the open `.bin` file.
        sequence_lengths: tokens of each sequence.
        document_indices: 0, and the sequences before the end of each document.
        sequence_modes: mode of each sequence; None for text.
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
        """Appends one sequence of what `numpy.array` makes numbers of; `end_document` closes its document.

        Raises:
            TokenRangeError: a token does not fit the dtype. Nothing was added.
        """
        tokens = self._numbers(tensor)
        self.data_file.write(tokens.tobytes(order="C"))
        self._add_rows([tokens.size], [mode])

    def add_document(self, tensor: Any, lengths: Sequence[int], modes: Sequence[int] | None = None) -> None:
        """Appends one document of sequences with the given lengths, which must add up to the tokens.

        Raises:
            TokenRangeError: a token does not fit the dtype. Nothing was added.
            ValueError: the lengths do not add up. Nothing was added.
        """
        tokens, sizes = self._numbers(tensor), [int(length) for length in lengths]
        if sum(sizes) != tokens.size:
            message = f"lengths add up to {sum(sizes)} tokens, but {tokens.size} were given"
            raise ValueError(message)
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
        """Appends many documents of one sequence each: rows of an array of awkward, or a list of lists or arrays.

        Args:
            documents: rows of tokens.
            modes: mode of each, in a multimodal dataset; 0 if None.
            eod_token: appended to each if given.
            chunk_size: documents that become lists at a time.

        Raises:
            TokenRangeError: a token does not fit the dtype. The documents before its own were added.
        """
        end = [] if eod_token is None else [eod_token]
        for start in range(0, len(documents), chunk_size):
            chunk = documents[start : start + chunk_size]
            for number, row in enumerate(chunk.tolist() if hasattr(chunk, "tolist") else chunk, start):
                tokens = np.concatenate([self._numbers(row), self._numbers(end)])
                self.add_document(tokens, [tokens.size], None if modes is None else [modes[number]])

    def end_document(self) -> None:
        """Closes the document that `add_item` began."""
        self.document_indices.append(len(self.sequence_lengths))

    def add_index(self, path_prefix: str) -> None:
        """Appends a whole pair, after checking every row of its index.

        Raises:
            DatasetNotFoundError: one of the files does not exist.
            DatasetFormatError: the pair is damaged, or its dtype is not this builder's. Nothing was added.
        """
        dataset = open_checked(os.fspath(path_prefix), multimodal=self.multimodal)
        if dataset.dtype != np.dtype(self.dtype):
            message = f"`{dataset.idx_path}`: expected tokens of dtype {np.dtype(self.dtype)}, found {dataset.dtype}"
            hint = "datasets of one dtype only can be merged; tokenize one of them again"
            raise DatasetFormatError(message, hint=hint)
        first, index = len(self.sequence_lengths), dataset.index
        for number, offset, count in dataset.extents.pieces(0, dataset.extents.num_bytes):
            begin = dataset.sections[number].start + offset
            for at in range(begin, begin + count, _COPIED_BYTES):
                self.data_file.write(dataset.byte_source.read(at, min(_COPIED_BYTES, begin + count - at)).data)
        modes = None if index.sequence_modes is None else index.sequence_modes.tolist()
        self._add_rows(index.sequence_lengths.tolist(), modes)
        self.document_indices.extend((index.document_indices[1:] + first).tolist())

    def finalize(self, idx_path: str) -> None:
        """Closes the tokens, and writes the index; what an earlier pair had beside it goes.

        Raises:
            ConfigError: the lists do not fit together.
        """
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
        """Returns tokens as `numpy.array(tokens, dtype)` does, but for integers that would become others.

        Raises:
            TokenRangeError: one would.
        """
        given = np.asarray(tokens)
        try:  # of a list, NumPy reads strings and large numbers one by one
            numbers = np.array(tokens if isinstance(tokens, (list, tuple)) else given, dtype=self.dtype)
            problem = None
            if given.dtype.kind in "iu" and numbers.dtype.kind in "iu" and (changed := numbers != given).any():
                problem = f"token id {given[changed][0]} does not fit {numbers.dtype}"
        except OverflowError as error:
            problem = str(error)
        if problem is not None:
            message = f"`{self._bin_path}`: {problem}, in document {len(self.document_indices) - 1}"
            raise TokenRangeError(message, hint="choose the dtype with `DType.optimal_dtype(vocab_size)`")
        return numbers
