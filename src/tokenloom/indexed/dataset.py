"""`IndexedDataset`: reads the sequences of a `.bin`/`.idx` pair by index."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import ConfigError, DatasetFormatError, DatasetNotFoundError, MissingObjectError, StorageError
from tokenloom.forks import cached_property
from tokenloom.indexed.catalogue import Catalogue, Section, catalogue_path, read_catalogue
from tokenloom.indexed.layout import Index, bin_path, idx_path, parse_header, parse_index, prefix_of
from tokenloom.indexed.manifests import ManifestHead, read_manifest_head
from tokenloom.kernels.samples import gather_spans
from tokenloom.kernels.storage import Watch
from tokenloom.overrides import Overrides, Uncalled
from tokenloom.rendering.card import HasFacts
from tokenloom.storage.addresses import is_remote
from tokenloom.storage.ending import run_in_thread
from tokenloom.storage.extents import Extents, ExtentSource, extents_of
from tokenloom.storage.local import (
    Bytes,
    ByteSource,
    MappedFile,
    PositionalFile,
    map_version,
    out_of_range,
    sampled_hash,
)
from tokenloom.storage.objects import RemoteFile, local_copy
from tokenloom.storage.publishing import recover
from tokenloom.storage.resolve import did_you_mean, exists, is_missing
from tokenloom.storage.secrets import queries_for_child, remember
from tokenloom.storage.settings import ObjectStorageSettings
from tokenloom.storage.versions import FileVersion, version_of

Tokens = NDArray[Any]
Int64s = NDArray[np.int64]

_SETTLED_NS = 2_000_000_000
"""File time stamps are coarse: a file of less than this age may change without a new modification time."""

_PINNED: ContextVar[dict[str, dict[str, FileVersion]]] = ContextVar("_PINNED", default={})  # noqa: B039 - never changed

_LARGE_GATHER_BYTES = 1 << 30
"""For a `gather` of more bytes, all spans are compared with the file size before memory is allocated."""

_PARTS_AT_ONCE = 256  # maximum number of spans joined by one call of NumPy; limits the memory for separate spans

_MOST_BLOCKS = 4  # blocks that a long sequence makes larger than this many block sizes are not fetched whole


@contextmanager
def pin_inputs(prefixes: Sequence[str]) -> Iterator[None]:
    """In the `with` block, opening a dataset of `prefixes` again raises a `ChangedFileError` if its files changed."""
    outer = _PINNED.get()
    token = _PINNED.set({**outer, **{prefix: outer.get(prefix, {}) for prefix in map(prefix_of, prefixes)}})
    try:
        yield
    finally:
        _PINNED.reset(token)


class DatasetFiles:
    """Opens the files of one version of a dataset, or raises. If there is no `.bin` file, `open` sets `catalogue`."""

    def __init__(self, prefix: str, *, mmap: bool, settings: ObjectStorageSettings | None) -> None:
        self.catalogue: Catalogue | None = None
        self._prefix = prefix
        self._mmap = mmap
        self._settings = settings
        self._objects: dict[str, RemoteFile] = {}
        self._versions: dict[str, FileVersion] = _PINNED.get().get(prefix, {})

    def open(self) -> tuple[ByteSource, MappedFile]:
        """Returns a byte source of the tokens and the mapped index; pass both to `check`, which compares versions."""
        if is_remote(self._prefix) and self.catalogue is None:  # both files in one round trip
            for answer in [run_in_thread(partial(self._object, path(self._prefix))) for path in (idx_path, bin_path)]:
                with suppress(MissingObjectError):
                    answer.result()  # a signal to the main thread ends the wait, not the request
        before = dict(self._versions)
        try:  # existence is checked only after a failure: checking first would double calls to shared filesystems
            tokens, index = self._open_tokens(), MappedFile(self.index_file(), at_once=True)
            path = catalogue_path(self._prefix)  # other checks compare only `.bin` and `.idx`
            if self.catalogue is not None and not is_remote(path) and path in self._versions:
                self._check(path, version_of(path))
        except StorageError as error:
            if error.__cause__ is None if not is_remote(self._prefix) else not isinstance(error, MissingObjectError):
                raise  # the file exists, but is of another kind or version
            if recover(idx_path(self._prefix)):  # finishes a replacement whose process died
                self.catalogue = None
                self._versions.clear()  # versions of files that no longer exist
                self._versions.update(before)
                return self.open()
            paths = [idx_path(self._prefix)] + ([bin_path(self._prefix)] if self.catalogue is None else [])
            missing = [path for path in paths if not exists(path, settings=self._settings)]
            if not missing:
                raise
            hint = "the pair is incomplete: write it again, or move both files together"
            if len(missing) == 2:
                hint = did_you_mean(self._prefix, suffix=".idx") or "pass the path of the pair without `.bin` or `.idx`"
            raise DatasetNotFoundError(f"no file {' and '.join(f'`{path}`' for path in missing)}", hint=hint) from None
        return tokens, index

    def check(self, *sources: ByteSource) -> None:
        """Raises a `ChangedFileError` if the file of a local source changed after its first opening."""
        for source in sources:
            if isinstance(source, (MappedFile, PositionalFile)) and not is_remote(self._prefix):
                self._check(source.path, source.version)

    def map_beside(self, path: str) -> Bytes:
        """Maps a file or object beside the pair as uint8[size]; `ChangedFileError` if changed since the first call."""
        if is_remote(path):
            return map_version(local_copy(self._object(path)))[0]
        data, version = map_version(path)
        self._check(path, version)
        return data

    def index_file(self) -> str:
        """Returns the path of the index; for an index in object storage, the path of its local copy."""
        path = idx_path(self._prefix)
        return local_copy(self._object(path)) if is_remote(path) else path

    def _check(self, path: str, found: FileVersion) -> None:
        if (expected := self._versions.setdefault(path, found)) is not found:
            expected.check(found, path)

    def _open_tokens(self) -> ByteSource:
        if self.catalogue is None:
            path = bin_path(self._prefix)
            try:
                if is_remote(path):
                    return self._object(path)
                return MappedFile(path) if self._mmap else PositionalFile(path)
            except StorageError as error:  # no `.bin` file: this may be a catalogue
                if not is_missing(error):
                    raise
                self.catalogue = read_catalogue(self._prefix, read=self.map_beside)
                if self.catalogue is None:
                    raise
        return self.catalogue.source(self._prefix, mmap=self._mmap, settings=self._settings)

    def _object(self, path: str) -> RemoteFile:
        if path not in self._objects:
            self._objects[path] = RemoteFile(path, self._settings)
        return self._objects[path]


class LazyAttribute:
    """A descriptor that, on first access, calls the method named `method`, which sets this and other attributes.

    Access raises an `AttributeError` until the attribute named `when` is set. Two threads may call the method at once.
    A descriptor is faster than `__getattr__`, which would make every attribute access some 30 ns slower.
    """

    def __init__(self, method: str, *, when: str) -> None:
        self._method, self._when = method, when

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, obj: Any, owner: type) -> Any:
        if obj is None:
            return self
        if self._when not in obj.__dict__:
            raise AttributeError(f"{type(obj).__name__!r} object has no attribute {self._name!r}")
        if self._name not in obj.__dict__:  # another thread may have set it
            getattr(obj, self._method)()
        return obj.__dict__[self._name]


PERCENTILES = (1, 5, 25, 50, 75, 95, 99)


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetStatistics:
    """Counts of a dataset and the distribution of its sequence lengths.

    Attributes:
        num_bytes: bytes in the `.bin` file.
        shortest, longest, mean_length: sequence lengths in tokens; 0 for an empty dataset.
        num_empty: number of sequences without tokens.
        percentiles: (percent, length in tokens) for each of `PERCENTILES`, with NumPy's "lower" interpolation.
        histogram: (start, stop, count) of bins [0, 1), [1, 2), [2, 4), …: `count` lengths are in [start, stop).
        modes: (mode, number of sequences, number of tokens) for each mode (0 text, 1 images); empty unless multimodal.
    """

    num_sequences: int
    num_documents: int
    num_tokens: int
    num_bytes: int
    dtype: str
    shortest: int
    longest: int
    mean_length: float
    num_empty: int
    percentiles: tuple[tuple[int, int], ...]
    histogram: tuple[tuple[int, int, int], ...]
    modes: tuple[tuple[int, int, int], ...] = ()


def damaged_lengths(path: str, num_tokens: int, found: int) -> DatasetFormatError:
    """Returns the error for an index whose lengths add up to `found` instead of `num_tokens`."""
    message = f"`{path}`: expected lengths of at least 0 that add up to {num_tokens} tokens, found a sum of {found}"
    return DatasetFormatError(message, hint="the index is damaged; `tokenloom verify` shows where")


def _doublings(lengths: NDArray[np.int32]) -> tuple[tuple[int, int, int], ...]:
    """Counts lengths in bins [0, 1), [1, 2), [2, 4), ...; omits empty bins at both ends."""
    exponents = np.frexp(lengths.astype(np.float64))[1]  # 0 -> 0, 1 -> 1, 2..3 -> 2, 4..7 -> 3
    counts = np.bincount(exponents)
    first = int(np.flatnonzero(counts)[0])
    return tuple((2**bucket >> 1, 2**bucket, int(counts[bucket])) for bucket in range(first, len(counts)))


class IndexedDataset(HasFacts):
    """A reader of the sequences of a `.bin`/`.idx` pair, or of a catalogue of pairs (see `build_catalogue`).

    Opening reads the header and checks in O(1) that index and tokens belong together and are complete. Thread-safe and
    fork-safe. Picklable: another process opens the same version of the files, or raises.

    For data in object storage, pass an address (`s3://bucket/prefix`, also `gs://`, `az://`, `http(s)://` and
    `msc://profile/prefix`). The index is mapped from a local copy; tokens are fetched by byte range.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> folder = tempfile.mkdtemp()
        >>> from tokenloom import IndexedDatasetBuilder
        >>> builder = IndexedDatasetBuilder(f"{folder}/corpus.bin", dtype=np.uint16)
        >>> builder.add_document([5, 6, 7], [3])
        >>> builder.finalize(f"{folder}/corpus.idx")
        >>> dataset = IndexedDataset(f"{folder}/corpus")
        >>> len(dataset), dataset[0].tolist(), dataset.get(0, offset=1).tolist()
        (1, [5, 6, 7], [6, 7])

    Args:
        path_prefix: path or address of the pair without `.bin` or `.idx`.
        multimodal: whether to return modes; if so, the index must contain modes.
        mmap: whether to map the tokens into memory; otherwise `pread` reads them.
        fast_cache_load: whether to postpone opening until more than the counts in `sequences_per_dataset` is needed.
        sequences_per_dataset: expected (sequence count, document boundary count), compared with the header.
        dtype_code: expected dtype code of the tokens.
        object_storage: cache and limits for data in object storage.

    Raises:
        DatasetNotFoundError: one of the files does not exist.
        DatasetFormatError: a file is truncated or not of this format, or index and tokens do not belong together.
    """

    opened_names: ClassVar[frozenset[str]] = frozenset(
        {"byte_source", "identity_found", "index", "_index_file", "_index_watch", "_block_starts"}
        | {"_token_dtype", "_token_watch"}
    )
    """Names of the attributes that exist only while the files are open; they are not pickled."""

    byte_source: ByteSource = LazyAttribute("_open", when="_counts")  # type: ignore[assignment]
    """The byte source that reads the tokens."""
    index: Index = LazyAttribute("_open", when="_counts")  # type: ignore[assignment]
    _index_file: MappedFile = LazyAttribute("_open", when="_counts")  # type: ignore[assignment]

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
        return DatasetFiles(self.path_prefix, mmap=self.mmap, settings=self.object_storage)

    def _begin(self) -> None:
        """Clears cached values, and opens the files unless `fast_cache_load` postpones opening."""
        self._gets_ours = type(self).get is _GET
        self._index_watch: Watch | None = None
        self._token_watch: Watch | None = None
        self._block_starts: dict[int, Int64s] = {}
        self.identity_found: dict[str, Any] | None = None
        if self.fast_cache_load and self.sequences_per_dataset is not None:
            self._counts = self.sequences_per_dataset
        else:
            self._open()

    @property
    def is_open(self) -> bool:
        """Whether the files are open; until then, only the counts are known."""
        return "index" in self.__dict__

    def _open(self) -> None:
        source, self._index_file = self._files.open()
        data = self._index_file.mapped
        path, header = self.idx_path, parse_header(data, path=self.idx_path)
        counts = header.num_sequences, header.num_boundaries
        if self.sequences_per_dataset is not None and tuple(self.sequences_per_dataset) != counts:
            message = f"`{path}`: expected {tuple(self.sequences_per_dataset)} sequences and boundaries, found {counts}"
            raise DatasetFormatError(message, hint="record `sequences_per_dataset` again: the pair has changed")
        if self.dtype_code is not None and self.dtype_code != header.dtype_code:
            message = f"`{path}`: expected dtype code {self.dtype_code}, found {header.dtype_code} ({header.dtype})"
            raise DatasetFormatError(message, hint="tokenize the data again, or pass a pair with the expected dtype")
        if self.catalogue is not None:
            self.catalogue.check_header(header, prefix=self.path_prefix)
        num_bytes, tokens = source.num_bytes, self.tokens_path
        index = parse_index(
            data, header, path=path, bin_bytes=num_bytes, multimodal=self.multimodal, tokens_path=tokens
        )
        self._files.check(source, self._index_file)
        self._counts = counts
        self._token_dtype = header.dtype
        self.bin_reader = self._make_reader(source)
        self.index = self._make_index(index)

    def _make_reader(self, source: ByteSource) -> Any:
        return source

    def _make_index(self, index: Index) -> Any:
        return index

    @property
    def bin_reader(self) -> Any:
        """The reader of the token bytes; assign another reader to replace it."""
        return self.byte_source

    @bin_reader.setter
    def bin_reader(self, reader: Any) -> None:
        self._take_source(reader)

    def _take_source(self, source: Any) -> None:
        self._source_is_ours = _maps_its_bytes(source)
        self.byte_source = source

    @property
    def is_remote(self) -> bool:
        """Whether the data is in object storage."""
        return is_remote(self.path_prefix)

    @property
    def remote_paths(self) -> list[str]:
        """The addresses of the objects with tokens; empty for local data, and for a local catalogue until opened."""
        if self.is_open and isinstance(self.byte_source, ExtentSource):
            return self.byte_source.remote_paths
        return [bin_path(self.path_prefix)] if self.is_remote else []

    @property
    def catalogue(self) -> Catalogue | None:
        """The catalogue that this dataset was opened from; None for a pair."""
        return self._files.catalogue

    @property
    def tokens_path(self) -> str:
        """The path of the `.bin` file or, for a catalogue, of the `.catalogue` file."""
        return bin_path(self.path_prefix) if self.catalogue is None else catalogue_path(self.path_prefix)

    @property
    def extents(self) -> Extents:
        """The range of byte pointers (`index.sequence_pointers`) of each `.bin` file; a pair has one range."""
        return extents_of(self.byte_source)

    @property
    def sections(self) -> list[Section]:
        """The parts of the dataset, one per `.bin` file; a pair has one section."""
        if self.catalogue is not None:
            return self.catalogue.sections
        rows, documents, num_bytes = range(len(self)), range(self.num_documents), self.byte_source.num_bytes
        return [Section(prefix=self.path_prefix, start=0, num_bytes=num_bytes, rows=rows, documents=documents)]

    def count_tokens(self, rows: range) -> int:
        """Returns the number of tokens of the consecutive sequences `rows`; O(1), reads no lengths."""
        pointers, size = self.index.sequence_pointers, self.byte_source.num_bytes
        ends = [int(pointers[row]) if row < len(self) else size for row in (rows.start, rows.stop)]
        begin, end = ends if self.catalogue is None else map(self.extents.held_before, ends)
        return (end - begin) // self.dtype.itemsize

    def first_tokens(self, sequences: Int64s) -> Int64s:
        """Returns the index, int64[count], of the first token of each sequence, counted over the whole dataset."""
        starts: Int64s = self.index.sequence_pointers[sequences]
        if self.catalogue is not None:
            extents = self.extents
            parts = extents.parts_at(starts)
            starts = starts - extents.starts[parts] + (np.cumsum(extents.sizes) - extents.sizes)[parts]
        return starts // self.dtype.itemsize

    def held_pointers(self) -> NDArray[np.int64]:
        """Returns the byte offset, int64[num_sequences], of each sequence in the concatenation of all `.bin` files."""
        if self.catalogue is None:
            return self.index.sequence_pointers
        return self.first_tokens(np.arange(len(self))) * self.dtype.itemsize

    def index_source(self) -> ByteSource:
        """Returns the source of the index bytes; the arrays of `index` are views of these bytes."""
        return self._index_file

    def map_beside(self, path: str) -> Bytes:
        """Maps a file or object beside the pair as uint8[size]; `ChangedFileError` if changed since the first call."""
        return self._files.map_beside(path)

    def version_of_section(self, number: int) -> FileVersion | None:
        """Returns the version of the `.bin` file of the section with index `number`; None in object storage."""
        if isinstance(self.byte_source, ExtentSource):
            return self.byte_source.version(number)
        return self.byte_source.version if isinstance(self.byte_source, (MappedFile, PositionalFile)) else None

    def check_index(self) -> None:
        """Raises a `ChangedFileError` if the index was truncated or overwritten since opening; takes nanoseconds."""
        if self._index_watch is None:
            self._index_watch = Watch([self._index_file.mapped])
        self._index_watch.check()

    def check_tokens(self, offset: int = 0, num_bytes: int | None = None) -> None:
        """Raises a `ChangedFileError` if the index changed, or the mapped tokens in a byte range (default: all)."""
        if self._token_watch is None:
            self._token_watch = Watch([self._index_file.mapped], self.byte_source.mapped)
        self._token_watch.check_tokens(offset, self.byte_source.num_bytes if num_bytes is None else num_bytes)

    @cached_property
    def manifest_head(self) -> ManifestHead | None:
        """The head of the manifest; None without a manifest. Read once, and pickled with the dataset."""
        copy = self._files.index_file() if self.is_remote else None
        return read_manifest_head(self.path_prefix, copy=copy, settings=self.object_storage)

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
        """The path of the `.idx` file."""
        return idx_path(self.path_prefix)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the tokens."""
        return self.index.header.dtype

    @property
    def num_documents(self) -> int:
        """The number of documents; each document owns zero or more sequences."""
        return self._counts[1] - 1

    @property
    def num_tokens(self) -> int:
        """The number of tokens of all sequences."""
        return self.extents.num_held_bytes // self.dtype.itemsize

    def __repr__(self) -> str:
        counts = f"num_sequences={len(self)}, num_documents={self.num_documents}, num_tokens={self.num_tokens}"
        return f"IndexedDataset({self.path_prefix!r}, {counts}, dtype={self.dtype.name})"

    def will_need(self, sequences: Int64s, starts: Int64s, lengths: Int64s, *, block_bytes: int | None = None) -> None:
        """Starts fetching spans that `gather` or `get` will read; does nothing for local data.

        Args:
            sequences, starts, lengths: the spans, see `gather`, in the order of the reads.
            block_bytes: size of the blocks to fetch whole, see `block_starts`; set it if this node will soon read
                nearly all of each block. None fetches only the spans.
        """
        source = self.byte_source
        if not isinstance(source, (RemoteFile, ExtentSource)):
            return
        offsets, num_bytes = self._bytes_of(sequences, starts, lengths)
        if block_bytes is None:
            source.will_need(offsets, num_bytes)
            return
        extents = self.extents
        numbers = self.block_numbers(sequences, block_bytes)
        bounds = np.append(self.block_starts(block_bytes), extents.num_bytes)
        begins = bounds[numbers]
        parts = extents.parts_at(begins)
        stops = np.minimum(bounds[numbers + 1], extents.starts[parts] + extents.sizes[parts])
        vast = stops - begins > _MOST_BLOCKS * block_bytes  # the block of a very long sequence
        source.will_need(offsets[~vast], num_bytes[~vast], blocks=(begins[~vast], stops[~vast]))
        source.will_need(offsets[vast], num_bytes[vast])

    def block_numbers(self, sequences: NDArray[Any], block_bytes: int) -> Int64s:
        """Returns the block index, int64[count], of each sequence, for blocks of about `block_bytes` bytes."""
        starts = self.index.sequence_pointers[sequences]
        numbers: Int64s = np.searchsorted(self.block_starts(block_bytes), starts, side="right") - 1
        return numbers

    def block_starts(self, block_bytes: int) -> Int64s:
        """Returns the byte pointer, int64[num_blocks], of the first sequence of each block; reads all pointers once.

        A sequence belongs to the block that contains its first byte. No block spans two `.bin` files.
        """
        if block_bytes not in self._block_starts:
            pointers = np.array(self.index.sequence_pointers)  # an aligned copy
            is_first = np.diff(pointers // block_bytes, prepend=-1) != 0
            if len((extents := self.extents).starts) > 1:
                is_first |= np.diff(extents.parts_at(pointers), prepend=-1) != 0
            self._block_starts[block_bytes] = pointers[np.flatnonzero(is_first)]
        return self._block_starts[block_bytes]

    def _bytes_of(self, sequences: Int64s, starts: Int64s, lengths: Int64s) -> tuple[Int64s, Int64s]:
        """Returns the byte offset and the byte count of each span: int64[num_spans] each."""
        itemsize = self.dtype.itemsize
        return self.index.sequence_pointers[sequences] + starts * itemsize, lengths * itemsize

    def __getitem__(self, idx: int | slice) -> Any:
        """Returns the tokens of one sequence, or a list of arrays for a slice; mapped tokens are read-only views.

        A multimodal dataset returns (tokens, mode) or (list, modes).
        """
        if isinstance(idx, slice):
            start, stop, step = idx.indices(len(self))
            if step != 1:
                raise ValueError(f"slice: must have a step of 1, got {step}")
            rows = range(start, max(start, stop))
            sequences = self._read_run(start, rows.stop) if self._gets_ours else [*map(self.get, rows)]
            return (sequences, self.sequence_modes[start:stop]) if self.multimodal else sequences
        return self.get(idx)

    def get(self, idx: int, offset: int = 0, length: int | None = None) -> Any:
        """Returns tokens [offset, offset + length) of one sequence; all tokens from `offset` on if `length` is None."""
        row = self._row(idx)
        index = self.index
        available = int(index.sequence_lengths[row])
        stop = available if length is None else int(offset) + int(length)
        if not 0 <= offset <= stop <= available:
            raise self._outside(row, int(offset), stop)
        itemsize = index.header.dtype.itemsize
        begin = int(index.sequence_pointers[row]) + int(offset) * itemsize
        tokens = self._read(begin, (stop - int(offset)) * itemsize)
        return (tokens, self.sequence_modes[row]) if self.multimodal else tokens

    def gather(self, sequences: Int64s, starts: Int64s, lengths: Int64s) -> Tokens:
        """Returns the tokens of many spans, concatenated: dtype[sum(lengths)]. Each span must lie within its sequence.

        One call of compiled code reads mapped tokens. Spans of objects are read concurrently, other spans in turn.

        Args:
            sequences: int64[num_spans], the sequence index of each span.
            starts: int64[num_spans], the index of the first token of each span within its sequence.
            lengths: int64[num_spans], tokens per span.
        """
        self._check_spans(sequences, starts, lengths)
        self.check_tokens(0, 0)
        data = self.byte_source.mapped if self._source_is_ours else None
        dtype, num_tokens = self.dtype, int(lengths.sum())
        num_bytes = num_tokens * dtype.itemsize
        if num_bytes > _LARGE_GATHER_BYTES or num_bytes > self.byte_source.num_bytes:
            self._check_bytes(sequences, starts, lengths)
        out = np.empty(num_tokens, dtype=dtype)
        if data is not None and dtype.kind in "iu":
            gather_spans(
                data,
                self.index.sequence_pointers,
                dtype_code=self.index.header.dtype_code,
                sequences=sequences,
                starts=starts,
                lengths=lengths,
                out=out,
                watch=self._token_watch,
            )
            return out
        offsets, sizes = self._bytes_of(sequences, starts, lengths)
        parts = self.byte_source.read_many(offsets.tolist(), sizes.tolist())
        left = out.view(np.uint8)
        while some := list(itertools.islice(parts, _PARTS_AT_ONCE)):
            filled = sum(map(len, some))
            np.concatenate(some, out=left[:filled])
            left = left[filled:]
        self.check_index()
        return out

    def _check_spans(self, sequences: Int64s, starts: Int64s, lengths: Int64s) -> None:
        if not len(sequences) == len(starts) == len(lengths):
            counts = f"{len(sequences)} sequences, {len(starts)} starts and {len(lengths)} lengths"
            raise ValueError(f"`sequences`, `starts`, `lengths`: must have the same length, got {counts}")
        unknown = (sequences < 0) | (sequences >= len(self))
        if unknown.any():
            raise self._no_row(int(sequences[int(np.argmax(unknown))]))
        available = self.index.sequence_lengths[sequences]
        outside = (starts < 0) | (lengths < 0) | (starts > available - lengths)
        if outside.any():
            first = int(np.argmax(outside))
            raise self._outside(int(sequences[first]), int(starts[first]), int(starts[first] + lengths[first]))

    def _check_bytes(self, sequences: Int64s, starts: Int64s, lengths: Int64s) -> None:
        """Raises an error if a span lies outside the file: a damaged index could make us allocate terabytes."""
        offsets, num_bytes = self._bytes_of(sequences, starts, lengths)
        outside_of_file = (offsets < 0) | (offsets > self.byte_source.num_bytes - num_bytes)
        if outside_of_file.any():
            self.check_index()
            first = int(np.argmax(outside_of_file))
            raise out_of_range(self.tokens_path, int(offsets[first]), int(num_bytes[first]), self.byte_source.num_bytes)
        if isinstance(self.byte_source, ExtentSource):
            self.byte_source.check(offsets[num_bytes > 0])

    def _outside(self, row: int, start: int, stop: int) -> IndexError:
        self.check_index()
        where = f"tokens [{start}, {stop}) of sequence {row} of `{self.path_prefix}`"
        return IndexError(f"{where} out of range: there are {self.index.sequence_lengths[row]} tokens")

    def _no_row(self, row: int) -> IndexError:
        return IndexError(f"sequence {row} of `{self.path_prefix}` out of range: there are {len(self)} sequences")

    def _row(self, idx: Any) -> int:
        if not isinstance(idx, (int, np.integer)):
            raise TypeError(f"sequence index: must be an integer or a slice, got {type(idx).__name__}")
        row, count = int(idx), len(self)
        if not -count <= row < count:
            raise self._no_row(row)
        return row if row >= 0 else row + count

    def _read_run(self, start: int, stop: int) -> list[Tokens]:
        """Returns the tokens of each sequence in [start, stop); reads adjacent sequences together."""
        lengths = self.index.sequence_lengths[start:stop].tolist()
        pointers = self.index.sequence_pointers[start:stop].tolist()
        itemsize = self.dtype.itemsize
        runs: list[tuple[int, list[int]]] = []
        bounds: list[int] = []
        end = -1
        for row, (length, pointer) in enumerate(zip(lengths, pointers, strict=True), start):
            if length < 0:
                raise self._outside(row, 0, length)
            if pointer != end or not runs:
                bounds, end = [0], pointer
                runs.append((pointer, bounds))
            bounds.append(bounds[-1] + length)
            end += length * itemsize
        sequences: list[Tokens] = []
        for begin, bounds in runs:
            tokens = self._read(begin, bounds[-1] * itemsize)
            sequences += [tokens[a:b] for a, b in itertools.pairwise(bounds)]  # three times as fast as `np.split`
        return sequences

    def _read(self, begin: int, num_bytes: int) -> Tokens:
        """Returns the tokens in bytes [begin, begin + num_bytes)."""
        source = self.byte_source
        if isinstance(source, ExtentSource) and not source.extents.holds(begin, num_bytes):  # gaps read as zeros
            self.check_index()
            message = f"byte pointers [{begin}, {begin + num_bytes}) lie in no file that `{self.tokens_path}` lists"
            raise DatasetFormatError(message, hint="the index is damaged; write the catalogue again")
        try:
            tokens = source.read(begin, num_bytes).view(self._token_dtype)
        except StorageError:
            self.check_index()  # reports a changed index first, as the offset came from the index
            raise
        if (watch := self._token_watch) is None:
            self.check_tokens(begin, num_bytes)
        else:  # saves a call, which matters for short sequences
            watch.check_tokens(begin, num_bytes)
        return tokens

    @property
    def sequence_lengths(self) -> NDArray[np.int32]:
        """The number of tokens of each sequence: int32[num_sequences]."""
        return self.index.sequence_lengths

    @property
    def document_indices(self) -> Int64s:
        """The index of the first sequence of each document, then the sequence count: int64[num_documents + 1]."""
        return self.index.document_indices

    def get_document_indices(self) -> Int64s:
        """Returns `document_indices`, under an older name of the reference."""
        return self.document_indices

    @property
    def sequence_modes(self) -> NDArray[np.int8]:
        """The mode, int8[num_sequences], of each sequence of a multimodal dataset: 0 for text, 1 for images."""
        if self.index.sequence_modes is None:
            raise ConfigError(f"`{self.path_prefix}` was opened without modes", hint="open it with `multimodal=True`")
        return self.index.sequence_modes

    def statistics(self) -> DatasetStatistics:
        """Returns counts and the length distribution in one pass; raises if lengths do not add up to `num_tokens`."""
        lengths, modes, num_tokens = self.sequence_lengths, self.index.sequence_modes, self.num_tokens
        by_mode = {} if modes is None else {int(mode): lengths[modes == mode] for mode in np.unique(modes)}
        empty = len(lengths) == 0
        if (found := int(lengths.sum(dtype=np.int64))) != num_tokens or (not empty and int(lengths.min()) < 0):
            raise damaged_lengths(self.idx_path, num_tokens, found)
        percentiles = [] if empty else np.percentile(lengths, PERCENTILES, method="lower").astype(np.int64).tolist()
        return DatasetStatistics(
            num_sequences=len(lengths),
            num_documents=self.num_documents,
            num_tokens=num_tokens,
            num_bytes=num_tokens * self.dtype.itemsize,
            dtype=self.dtype.name,
            shortest=0 if empty else int(lengths.min()),
            longest=0 if empty else int(lengths.max()),
            mean_length=0.0 if empty else num_tokens / len(lengths),
            num_empty=int(np.count_nonzero(lengths == 0)),
            percentiles=() if empty else tuple(zip(PERCENTILES, percentiles, strict=True)),
            histogram=() if empty else _doublings(lengths),
            modes=tuple((mode, len(part), int(part.sum(dtype=np.int64))) for mode, part in by_mode.items()),
        )

    def facts(self) -> dict[str, Any]:
        """Returns path, counts and, if the files are open, dtype and size; for display, see `HasFacts`."""
        found = {"path": self.path_prefix, "documents": self.num_documents, "sequences": len(self)}
        if not self.is_open:
            return found
        return found | {
            "tokens": self.num_tokens,
            "dtype": self.dtype.name,
            "bytes": self.num_tokens * self.dtype.itemsize,
            "pairs": None if self.catalogue is None else len(self.catalogue.sections),
        }

    @staticmethod
    def exists(path_prefix: str | os.PathLike[str]) -> bool:
        """Returns whether both files of the pair or catalogue exist."""
        prefix = prefix_of(path_prefix)
        if not exists(idx_path(prefix)) and not recover(idx_path(prefix)):
            return False
        return exists(idx_path(prefix)) and (exists(bin_path(prefix)) or exists(catalogue_path(prefix)))


_GET = IndexedDataset.get


def dataset_identity(dataset: IndexedDataset) -> dict[str, Any]:
    """Returns JSON-serialisable values that identify the data of a pair; a copy of the pair has the same values.

    The values are dtype, counts in the header, both file sizes, and a hash of evenly spread blocks of each file; a
    change between the blocks goes unnoticed. For an object, the etag replaces the hash of the `.bin` (each block would
    take a round trip); for a catalogue, a hash of its records does. Cached for local files until a file changes.
    """
    if not _is_settled(dataset) or dataset.identity_found is None:
        dataset.identity_found = _identity(dataset)
    return dict(dataset.identity_found)


def _is_settled(dataset: IndexedDataset) -> bool:
    """Returns whether both files are local, unchanged, and so old that any later change would alter their mtime."""
    try:
        return all(
            isinstance(source, (MappedFile, PositionalFile))
            and (found := version_of(source.path)) == source.version
            and time.time_ns() - found.modified_ns >= _SETTLED_NS
            for source in (dataset.index_source(), dataset.byte_source)
        )
    except StorageError:
        return False


def _identity(dataset: IndexedDataset) -> dict[str, Any]:
    header = dataset.index.header
    index, tokens = dataset.index_source(), dataset.byte_source
    identity = {
        "dtype": header.dtype.name,
        "num_sequences": header.num_sequences,
        "num_boundaries": header.num_boundaries,
        "idx_bytes": index.num_bytes,
        "bin_bytes": dataset.extents.num_held_bytes,
        "idx_sample": sampled_hash(index),
    }
    if isinstance(tokens, ExtentSource) and dataset.catalogue is not None:
        tokens.check()
        dataset.check_index()
        return {**identity, "pairs": dataset.catalogue.identity()}
    dataset.check_index()
    if isinstance(tokens, RemoteFile) and tokens.version.etag is not None:
        return {**identity, "bin_etag": tokens.version.etag}
    sample = sampled_hash(tokens)
    dataset.check_tokens()
    return {**identity, "bin_sample": sample}


# --- tokens of any low-level dataset: through its `gather`, or sequence by sequence from a user's own class -----------

ReadSpans = Callable[[Any, Int64s, Int64s, Int64s], NDArray[Any]]
"""`read(source, sequences, starts, lengths)` returns the tokens of these spans, concatenated."""

_HOOKS = ("get", "__getitem__", "gather")


def span_reader(source: Any, *, whole: bool = False) -> ReadSpans:
    """Returns a function that reads spans with `gather` or, if the class overrides only `get`, each span with `get`.

    Set `whole` if all spans start at token 0; then the function also uses an overridden `__getitem__`.
    """
    found = Overrides.of(source, _HOOKS)
    hook = found.skipped("gather", *(("get", "__getitem__") if whole else ("get",)))
    if hook is None and (hasattr(type(source), "gather") or "gather" in vars(source)):
        return _gather
    return partial(_read_each, by_item=whole and "__getitem__" in found.found)


def _gather(source: Any, sequences: Int64s, starts: Int64s, lengths: Int64s) -> NDArray[Any]:
    tokens: NDArray[Any] = source.gather(sequences, starts, lengths)
    return tokens


def _read_each(source: Any, sequences: Int64s, starts: Int64s, lengths: Int64s, *, by_item: bool) -> NDArray[Any]:
    if not by_item and not hasattr(source, "get"):
        raise ConfigError(f"low-level dataset {type(source).__name__} has no `get(idx, offset, length)`")
    parts = [np.empty(0, dtype=np.int64)][len(sequences) :]
    for sequence, start, length in zip(sequences.tolist(), starts.tolist(), lengths.tolist(), strict=True):
        found = source[sequence] if by_item else source.get(sequence, offset=start, length=length)
        if isinstance(found, tuple):  # multimodal: (tokens, mode)
            found = found[0]
        tokens = np.asarray(found)[start : start + length] if by_item else np.asarray(found)
        if tokens.ndim != 1 or len(tokens) != length:
            wanted = f"{length} tokens of sequence {sequence} starting at token {start}"
            message = f"expected {wanted}, found shape {list(tokens.shape)} from {type(source).__name__}"
            raise DatasetFormatError(message, hint="return as many tokens as `sequence_lengths` states")
        parts.append(tokens)
    return np.concatenate(parts)


def mapped_bytes(reader: Any) -> NDArray[np.uint8] | None:
    """Returns the mapped bytes of a reader; None if the reader maps no bytes, or a user's class overrides `read`."""
    mapped: NDArray[np.uint8] | None = reader.mapped if _maps_its_bytes(reader) else None
    return mapped


def _maps_its_bytes(reader: Any) -> bool:
    return Overrides.of(reader, ("mapped", "read", "read_many")).skipped("mapped", "read", "read_many") is None


def check_source(source: Any) -> None:
    """Raises a `ConfigError` if a dataset overrides `__getitem__`, but neither `get` nor `gather`."""
    own = Overrides.of(source, _HOOKS)
    if own.found and hasattr(source, "get"):
        remedy = "override `get(idx, offset, length)`: samples read their tokens with `get`"
        own.refuse_uncalled({"__getitem__": Uncalled(remedy, unless=("get", "gather"))})
