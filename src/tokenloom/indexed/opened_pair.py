"""A `.bin`/`.idx` pair that is open: its header, its arrays, its bytes, and whether these are still what they were."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from tokenloom import kernels
from tokenloom.errors import DatasetFormatError
from tokenloom.forks import cached_property
from tokenloom.indexed.byte_ranges import ByteRanges
from tokenloom.indexed.catalogue import Catalogue, Section, catalogue_path
from tokenloom.indexed.later import SetLater
from tokenloom.indexed.layout import (
    HEADER_BYTES,
    Header,
    Index,
    IndexArrays,
    bin_path,
    idx_path,
    parse_header,
    parse_index,
    prefix_of,
)
from tokenloom.indexed.manifest.file import ManifestHead, read_manifest_head, read_manifest_head_once
from tokenloom.indexed.opening import DatasetFiles
from tokenloom.storage.addresses import is_remote
from tokenloom.storage.extents import Extents, ExtentSource, extents_of
from tokenloom.storage.local import Bytes, ByteSource, MappedFile, PositionalFile
from tokenloom.storage.secrets import queries_for_child, remember
from tokenloom.storage.settings import ObjectStorageSettings
from tokenloom.storage.versions import FileVersion


class OpenedPair:
    """What `IndexedDataset` is, but for its sequences by number; see there."""

    opened_names: ClassVar[frozenset[str]] = frozenset(
        {
            "byte_source",
            "identity_found",
            "index",
            "_index_file",
            "_index_watch",
            "_ranges",
            "_token_dtype",
            "_token_watch",
        }
    )
    """Attributes that are there once the files are open, here and wherever this is pickled to."""

    if TYPE_CHECKING:
        byte_source: ByteSource
        index: Index
        _ranges: ByteRanges
        _index_file: MappedFile
    else:
        byte_source = SetLater("_open", when="_counts")
        """The bytes of the tokens."""
        index = SetLater("_open", when="_counts")
        """The contents of the index."""
        _ranges = SetLater("_open", when="_counts")
        _index_file = SetLater("_open", when="_counts")

    def __init__(
        self,
        path_prefix: str | os.PathLike[str],
        multimodal: bool = False,  # noqa: FBT001, FBT002 - the reference's signature
        mmap: bool = True,  # noqa: FBT001, FBT002
        *,
        fast_cache_load: bool = False,
        sequences_per_dataset: tuple[int, int] | None = None,
        dtype_code: int | None = None,
        object_storage: ObjectStorageSettings | None = None,
    ) -> None:
        self.path_prefix: str = prefix_of(path_prefix)
        self.multimodal = multimodal
        self.mmap = mmap
        self.fast_cache_load = fast_cache_load
        self.sequences_per_dataset = sequences_per_dataset
        self.dtype_code = dtype_code
        self.object_storage = object_storage
        self._files = self._make_files()
        self._begin()

    def _make_files(self) -> DatasetFiles:
        """Returns what leads to the files."""
        return DatasetFiles(self.path_prefix, mmap=self.mmap, settings=self.object_storage)

    def _begin(self) -> None:
        """Opens the files, unless all that a start asks of them is known."""
        self._index_watch: kernels.Watch | None = None
        self._token_watch: kernels.Watch | None = None
        self.identity_found: dict[str, Any] | None = None
        if self.fast_cache_load and self.sequences_per_dataset is not None:
            self._counts = self.sequences_per_dataset
        else:
            self._open()

    @property
    def is_open(self) -> bool:
        """Whether the files are open; without, only counts are known."""
        return "index" in self.__dict__

    def _open(self) -> None:
        source, self._index_file = self._files.open()
        data = self._index_file.mapped
        header = parse_header(data[:HEADER_BYTES].tobytes(), path=self.idx_path)
        self._check_promises(header)
        if self.catalogue is not None:
            self.catalogue.check_header(header, prefix=self.path_prefix)
        arrays = parse_index(
            data,
            header,
            path=self.idx_path,
            bin_bytes=source.num_bytes,
            multimodal=self.multimodal,
            tokens_path=self.tokens_path,
        )
        self._files.check(source, self._index_file)
        self._counts = (header.num_sequences, header.num_boundaries)
        self._token_dtype = header.dtype
        self._ranges = ByteRanges(arrays, source, itemsize=header.dtype.itemsize)
        self.byte_source = source
        self.index = self._make_index(header, arrays)
        self._index_watch = self._token_watch = None
        self.identity_found = None

    def _make_index(self, header: Header, arrays: IndexArrays) -> Any:
        """Returns what `index` is: the header and the arrays."""
        return Index(header, arrays)

    @property
    def bin_reader(self) -> Any:
        """What gives the bytes of the tokens; another one may take its place."""
        return self.byte_source

    @bin_reader.setter
    def bin_reader(self, reader: Any) -> None:
        self.byte_source = reader

    @property
    def is_remote(self) -> bool:
        """Whether the data lie in object storage."""
        return is_remote(self.path_prefix)

    @property
    def remote_paths(self) -> list[str]:
        """The addresses of the objects that tokens are read from; empty for local data, and until these are open."""
        if not self.is_open:
            return [bin_path(self.path_prefix)] if self.is_remote else []
        if isinstance(self.byte_source, ExtentSource):
            return self.byte_source.remote_paths
        return [bin_path(self.path_prefix)] if self.is_remote else []

    @property
    def catalogue(self) -> Catalogue | None:
        """The catalogue that names the pairs; None for a pair."""
        return self._files.catalogue

    @property
    def tokens_path(self) -> str:
        """The path of the tokens, or of the catalogue that says where they are."""
        return bin_path(self.path_prefix) if self.catalogue is None else catalogue_path(self.path_prefix)

    @property
    def extents(self) -> Extents:
        """Where the tokens of each pair lie among the bytes that pointers lead into; one whole, but for a catalogue."""
        return extents_of(self.byte_source)

    @property
    def sections(self) -> list[Section]:
        """What lies in one file each; one section, but for a catalogue."""
        if self.catalogue is not None:
            return self.catalogue.sections
        rows, documents, num_bytes = range(len(self)), range(self.num_documents), self.byte_source.num_bytes
        return [Section(prefix=self.path_prefix, start=0, num_bytes=num_bytes, rows=rows, documents=documents)]

    def count_tokens(self, rows: range) -> int:
        """Returns the tokens of consecutive sequences, in O(1) and without reading their lengths."""
        pointers, size = self.index.arrays.pointers, self.byte_source.num_bytes
        ends = [int(pointers[row]) if row < len(self) else size for row in (rows.start, rows.stop)]
        begin, end = ends if self.catalogue is None else map(self.extents.held_before, ends)
        return (end - begin) // self.dtype.itemsize

    def index_source(self) -> ByteSource:
        """Returns the bytes of the index, of which the arrays are views."""
        return self._index_file

    def map_beside(self, path: str) -> Bytes:
        """Returns all bytes of a local file beside the pair, which must be the same file each time: uint8[size].

        Raises:
            ChangedFileError: it is another file than when it was mapped before, here or where this was pickled.
            StorageError: it cannot be mapped.
        """
        return self._files.map_beside(path)

    def version_of_section(self, number: int) -> FileVersion | None:
        """Returns which local file the tokens of a section lie in; None for an object."""
        if isinstance(self.byte_source, ExtentSource):
            return self.byte_source.version(number)
        return self.byte_source.version if isinstance(self.byte_source, (MappedFile, PositionalFile)) else None

    def check_index(self) -> None:
        """Makes sure that what was read of the index is what it held when it was opened; costs nothing.

        Raises:
            ChangedFileError: the file was truncated or overwritten meanwhile, or cannot be read any more.
        """
        if self._index_watch is None:
            self._index_watch = kernels.Watch([self._index_file.mapped])
        self._index_watch.check()

    def check_tokens(self, offset: int = 0, num_bytes: int | None = None) -> None:
        """Makes sure of the same for the index and for mapped tokens in a range of bytes; None for all."""
        if self._token_watch is None:
            self._token_watch = kernels.Watch([self._index_file.mapped], self.byte_source.mapped)
        self._token_watch.check_tokens(offset, self.byte_source.num_bytes if num_bytes is None else num_bytes)

    @cached_property
    def manifest_head(self) -> ManifestHead | None:
        """Which tokenizer made the tokens, as the manifest beside the pair says; None without one.

        Read when it is first asked for, and then remembered, also by processes that the dataset is pickled to.

        Raises:
            DatasetFormatError: the manifest is damaged.
        """
        if not is_remote(self.path_prefix):
            return read_manifest_head(self.path_prefix)
        copy = self._files.index_file()
        return read_manifest_head_once(self.path_prefix, copy=copy, settings=self.object_storage)

    def _check_promises(self, header: Header) -> None:
        path, found = self.idx_path, (header.num_sequences, header.num_boundaries)
        if self.sequences_per_dataset is not None and tuple(self.sequences_per_dataset) != found:
            message = f"`{path}`: expected {tuple(self.sequences_per_dataset)} sequences and documents, found {found}"
            raise DatasetFormatError(message, hint="the data changed after its counts were recorded; record them again")
        if self.dtype_code is not None and self.dtype_code != header.dtype_code:
            message = f"`{path}`: expected dtype code {self.dtype_code}, found {header.dtype_code} ({header.dtype})"
            raise DatasetFormatError(message, hint="was this data tokenized with another tokenizer?")

    def __getstate__(self) -> dict[str, Any]:
        state = {key: value for key, value in self.__dict__.items() if key not in self.opened_names}
        return state | ({"queries": queries} if (queries := queries_for_child()) else {})

    def __setstate__(self, state: dict[str, Any]) -> None:
        remember(state.pop("queries", {}))
        self.__dict__.update(state)
        self._begin()

    def __len__(self) -> int:
        """The number of sequences."""
        return self._counts[0]

    @property
    def idx_path(self) -> str:
        """The path of the index."""
        return idx_path(self.path_prefix)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the tokens."""
        return self.index.header.dtype

    @property
    def num_documents(self) -> int:
        """The number of documents; each owns zero or more sequences."""
        return self._counts[1] - 1

    @property
    def num_tokens(self) -> int:
        """The number of tokens of all sequences."""
        return self.extents.num_held_bytes // self.dtype.itemsize
