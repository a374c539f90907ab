"""`megatron.core.datasets.indexed_dataset`: `.bin`/`.idx` pairs."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from tokenloom.errors import ConfigError
from tokenloom.indexed import dataset as plain
from tokenloom.indexed.later import SetLater
from tokenloom.indexed.layout import MAGIC as _INDEX_HEADER
from tokenloom.indexed.layout import DType, Header, IndexArrays, bin_path, idx_path
from tokenloom.indexed.opening import DatasetFiles
from tokenloom.megatron.core.datasets.indexed_builder import IndexedDatasetBuilder
from tokenloom.megatron.core.datasets.indexed_index import IndexReader, IndexWriter
from tokenloom.megatron.core.datasets.indexed_readers import (
    BinReader,
    FileBinReader,
    MMapBinReader,
    MultiStorageClientBinReader,
    ReaderSource,
    RemoteReader,
    S3BinReader,
    SourceReader,
    settings_of,
)
from tokenloom.megatron.core.datasets.object_storage_utils import (
    ObjectStorageConfig,
    S3Config,
    cache_index_file,
    dataset_exists,
    get_index_cache_path,
    get_object_storage_access,
    is_object_storage_path,
    parse_s3_path,
)
from tokenloom.megatron.core.datasets.utils import log_single_rank
from tokenloom.overrides import overrides
from tokenloom.storage.local import ByteSource
from tokenloom.storage.secrets import queries_for_child, remember
from tokenloom.storage.settings import ObjectStorageSettings

__all__ = [
    "OBJECT_STORAGE_BIN_READERS",
    "_INDEX_HEADER",
    "DType",
    "IndexedDataset",
    "IndexedDatasetBuilder",
    "ObjectStorageConfig",
    "S3Config",
    "_BinReader",
    "_FileBinReader",
    "_IndexReader",
    "_IndexWriter",
    "_MMapBinReader",
    "_MultiStorageClientBinReader",
    "_S3BinReader",
    "cache_index_file",
    "dataset_exists",
    "get_bin_path",
    "get_idx_path",
    "get_index_cache_path",
    "get_object_storage_access",
    "is_object_storage_path",
    "log_single_rank",
    "parse_s3_path",
]

logger: logging.Logger = logging.getLogger(__name__)

_BinReader = BinReader
_MMapBinReader = MMapBinReader
_FileBinReader = FileBinReader
_S3BinReader = S3BinReader
_MultiStorageClientBinReader = MultiStorageClientBinReader
_IndexReader = IndexReader
_IndexWriter = IndexWriter

OBJECT_STORAGE_BIN_READERS: dict[str, Any] = {"s3": _S3BinReader, "msc": _MultiStorageClientBinReader}
"""The reader of each kind of address; a user's own may be put here."""

_STATE = ("path_prefix", "multimodal", "mmap", "object_storage_config")
_NEWER_STATE = (*_STATE, "fast_cache_load", "sequences_per_dataset", "dtype_code")


class _OutsideSequence(IndexError, ValueError):
    """Tokens that a sequence does not have; the reference's callers catch the latter."""


class _State(tuple[Any, ...]):
    """What the reference pickles of a dataset, and beside it which files those are."""

    files: DatasetFiles | None = None
    storage: ObjectStorageSettings | None = None
    queries: dict[str, str] | None = None


class IndexedDataset(plain.IndexedDataset, torch.utils.data.Dataset):  # type: ignore[misc]  # torch has no types
    """The sequences of a `.bin`/`.idx` pair, by number; `tokenloom.IndexedDataset` as clients of the reference know it.

    `index[i]` is (pointer, length, mode), `bin_reader.read(dtype, count, offset)` gives numbers, both may be replaced
    or overridden, and are asked then. `dataset[i]` does not ask `get`, nor the other way round.

    Args:
        path_prefix: path or address of the pair without `.bin` or `.idx`.
        multimodal: whether to return modes; the index must hold them.
        mmap: map the tokens into memory; else read them by position.
        object_storage_config: where copies of the indices of objects are kept, and how large blocks are.
        s3_config: its older name.
        fast_cache_load: trust what is there; with `sequences_per_dataset` the files are opened with their first use.
        sequences_per_dataset: (sequences, document boundaries) that the index must have.
        dtype_code: code of the dtype that it must have, if these counts are given.
        object_storage: our own settings, in place of `object_storage_config`.

    Raises:
        DatasetNotFoundError: one of the files does not exist.
        DatasetFormatError: the files are truncated, foreign, or do not belong together.
        ConfigError: objects are to be mapped.
    """

    opened_names: ClassVar[frozenset[str]] = plain.IndexedDataset.opened_names | {"_reader", "_source"}

    if TYPE_CHECKING:
        index: Any
        _reader: Any
    else:
        _reader = SetLater("_open", when="_counts")

    def __init__(
        self,
        path_prefix: str,
        multimodal: bool = False,  # noqa: FBT001, FBT002 - the reference's signature
        mmap: bool = True,  # noqa: FBT001, FBT002
        object_storage_config: Any = None,
        s3_config: Any = None,
        fast_cache_load: bool = False,  # noqa: FBT001, FBT002
        sequences_per_dataset: Sequence[int] | None = None,
        dtype_code: int | None = None,
        *,
        object_storage: ObjectStorageSettings | None = None,
    ) -> None:
        self._storage = object_storage
        self._unpickled: DatasetFiles | None = None
        self.initialize(
            path_prefix,
            multimodal,
            mmap,
            object_storage_config or s3_config,
            fast_cache_load,
            sequences_per_dataset,
            dtype_code,
        )

    def initialize(
        self,
        path_prefix: str,
        multimodal: bool,  # noqa: FBT001 - the reference's signature
        mmap: bool,  # noqa: FBT001
        object_storage_config: Any,
        fast_cache_load: bool = False,  # noqa: FBT001, FBT002
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
            object_storage=self._storage or settings_of(object_storage_config),
        )
        self.dtype_code = dtype_code

    def __getstate__(self) -> tuple[Any, ...]:  # type: ignore[override]  # the reference's form
        """Returns what `initialize` takes; which files those are goes with it."""
        state = _State(getattr(self, name) for name in _NEWER_STATE)
        state.files, state.storage, state.queries = self._files, self._storage, queries_for_child()
        return state

    def __setstate__(self, state: tuple[Any, ...]) -> None:  # type: ignore[override]
        """Opens the pair of a state, which may also be the reference's, of four or of seven entries."""
        if isinstance(state, _State):
            remember(state.queries or {})
        self._storage = state.storage if isinstance(state, _State) else None
        self._unpickled = state.files if isinstance(state, _State) else None
        self.initialize(*state[: len(_NEWER_STATE)])

    def _make_files(self) -> DatasetFiles:
        files, self._unpickled = self._unpickled, None
        return files or super()._make_files()

    def _make_index(self, header: Header, arrays: IndexArrays) -> Any:
        return _IndexReader.over(header, arrays)

    def _make_reader(self, source: ByteSource) -> Any:
        """Returns the reader of the tokens: of the class that this module names now."""
        self._source = source
        path, config = self.tokens_path, self.object_storage_config
        if self.is_remote:
            kind = OBJECT_STORAGE_BIN_READERS.get(path.partition("://")[0], RemoteReader)
        else:
            kind = _MMapBinReader if self.mmap else _FileBinReader
        if isinstance(kind, type) and issubclass(kind, SourceReader) and not overrides(kind, "__init__"):
            return kind.over(path, source)
        return kind(path, config) if self.is_remote else kind(path)

    @property
    def bin_reader(self) -> Any:
        """What gives the tokens, by `read(dtype, count, offset)`; another one may take its place."""
        return self._reader

    @bin_reader.setter
    def bin_reader(self, reader: Any) -> None:
        is_ours = isinstance(reader, SourceReader) and not overrides(reader, "read")
        self._reader = reader
        self._take_source(reader.source if is_ours else ReaderSource(reader, self._source, self._token_dtype))

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
        self.index.document_indices = document_indices


def get_idx_path(path_prefix: str) -> str:
    """Returns the path of the index of a prefix."""
    return idx_path(path_prefix)


def get_bin_path(path_prefix: str) -> str:
    """Returns the path of the tokens of a prefix."""
    return bin_path(path_prefix)
