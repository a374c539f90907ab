"""A `.bin`/`.idx` pair that is open: its header, its arrays, its sequences by number."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import ConfigError, DatasetFormatError, DatasetNotFoundError, MissingObjectError, StorageError
from tokenloom.forks import cached_property
from tokenloom.indexed.catalogue import Catalogue, Section, catalogue_path, read_catalogue
from tokenloom.indexed.layout import Header, Index, bin_path, idx_path, parse_header, parse_index, prefix_of
from tokenloom.indexed.lengths import DatasetStatistics, LengthHistogram, damaged_lengths, length_histogram
from tokenloom.indexed.manifests import ManifestHead, read_manifest_head
from tokenloom.kernels.samples import gather_spans
from tokenloom.kernels.storage import Watch
from tokenloom.overrides import Overrides, Uncalled
from tokenloom.rendering.card import HasFacts
from tokenloom.storage.addresses import is_remote
from tokenloom.storage.ending import beside
from tokenloom.storage.extents import Extents, ExtentSource, extents_of
from tokenloom.storage.local import Bytes, ByteSource, MappedFile, PositionalFile, map_version, outside, sampled_hash
from tokenloom.storage.objects import RemoteFile, local_copy
from tokenloom.storage.publishing import recover
from tokenloom.storage.resolve import did_you_mean, exists, is_missing
from tokenloom.storage.secrets import queries_for_child, remember
from tokenloom.storage.settings import ObjectStorageSettings
from tokenloom.storage.versions import FileVersion, version_of

Tokens = NDArray[Any]
Int64s = NDArray[np.int64]

_SETTLED_NS = 2_000_000_000
"""A file that was changed within so many nanoseconds may be changed again, and its time of change stay what it is."""

_PINNED: ContextVar[dict[str, dict[str, FileVersion]]] = ContextVar("_PINNED", default={})  # noqa: B039 - never changed

_MUCH = 1 << 30
"""Bytes; spans are compared with the file before so many are asked for. What is less is compared while it is read."""

_PARTS_AT_ONCE = 256
"""Spans that are copied by one call; so many are held at most."""

_MOST_BLOCKS = 4
"""A block that a long sequence makes larger than so many is not fetched as a whole."""


@contextmanager
def inputs_stay(prefixes: Sequence[str]) -> Iterator[None]:
    """Within it, a dataset that is opened again by its prefix must consist of the files it was opened from first."""
    outer = _PINNED.get()
    token = _PINNED.set({**outer, **{prefix: outer.get(prefix, {}) for prefix in map(prefix_of, prefixes)}})
    try:
        yield
    finally:
        _PINNED.reset(token)


class DatasetFiles:
    """Where the bytes of a dataset are; pickled, it leads all processes to the same files, objects and catalogue.

    A file that has another version when it is opened again, by this process or another, is an error that names it.
    `catalogue` is known once opened; None where there is a `.bin` file.
    """

    def __init__(self, prefix: str, *, mmap: bool, settings: ObjectStorageSettings | None) -> None:
        self.catalogue: Catalogue | None = None
        self._prefix = prefix
        self._mmap = mmap
        self._settings = settings
        self._objects: dict[str, RemoteFile] = {}
        self._versions: dict[str, FileVersion] = _PINNED.get().get(prefix, {})

    def open(self) -> tuple[ByteSource, MappedFile]:
        """Returns the tokens, and the mapped index; `check` compares these files with those opened before."""
        if is_remote(self._prefix) and self.catalogue is None:
            self._ask_at_once()
        before = dict(self._versions)
        try:  # opening tells what is missing; asking first would double the calls, which count on shared filesystems
            tokens, index = self._open_tokens(), MappedFile(self.index_file(), at_once=True)
            self._check_catalogue()
        except StorageError as error:
            if error.__cause__ is None if not is_remote(self._prefix) else not isinstance(error, MissingObjectError):
                raise  # what is there is no file, or another one
            if recover(idx_path(self._prefix)):  # a process died while it replaced the dataset
                self.catalogue = None
                self._versions.clear()  # of files that are gone
                self._versions.update(before)
                return self.open()
            paths = [idx_path(self._prefix)] + ([bin_path(self._prefix)] if self.catalogue is None else [])
            missing = [path for path in paths if not exists(path, settings=self._settings)]
            if not missing:
                raise
            message = f"no file {' and '.join(f'`{path}`' for path in missing)}"
            hint = "the pair is incomplete: it was not finished, or one file was moved"
            if len(missing) == 2:
                hint = did_you_mean(self._prefix, suffix=".idx") or "a prefix is the path without `.bin` or `.idx`"
            raise DatasetNotFoundError(message, hint=hint) from None
        return tokens, index

    def check(self, *sources: ByteSource) -> None:
        """Compares opened files with what they were when they were opened before, if they were."""
        for source in sources:
            if isinstance(source, (MappedFile, PositionalFile)) and not is_remote(self._prefix):
                self._check(source.path, source.version)

    def map_beside(self, path: str) -> Bytes:
        """Returns all bytes of a file or object beside the pair, the same one each time: uint8[size]."""
        if is_remote(path):
            return map_version(local_copy(self._object(path)))[0]
        data, version = map_version(path)
        self._check(path, version)
        return data

    def index_file(self) -> str:
        """Returns the path of a local file with the index."""
        path = idx_path(self._prefix)
        return local_copy(self._object(path)) if is_remote(path) else path

    def _check(self, path: str, found: FileVersion) -> None:
        if (expected := self._versions.setdefault(path, found)) is not found:
            expected.check(found, path)

    def _check_catalogue(self) -> None:
        """Compares the catalogue with what it was read as: reading looks at the files of a pair alone."""
        path = catalogue_path(self._prefix)
        if self.catalogue is not None and not is_remote(path) and path in self._versions:
            self._check(path, version_of(path))

    def _open_tokens(self) -> ByteSource:
        if self.catalogue is None:
            path = bin_path(self._prefix)
            try:
                if is_remote(path):
                    return self._object(path)
                return MappedFile(path) if self._mmap else PositionalFile(path)
            except StorageError as error:  # only now is there a catalogue to look for
                if not is_missing(error):
                    raise
                self.catalogue = read_catalogue(self._prefix, read=self.map_beside)
                if self.catalogue is None:
                    raise
        return self.catalogue.source(self._prefix, mmap=self._mmap, settings=self._settings)

    def _ask_at_once(self) -> None:
        """Asks the store for both files of a pair in one round trip; who opens one finds the answer, or asks again."""
        for answer in [beside(partial(self._object, path(self._prefix))) for path in (idx_path, bin_path)]:
            with suppress(MissingObjectError):
                answer.result()  # after a signal it is left alone

    def _object(self, path: str) -> RemoteFile:
        if path not in self._objects:
            self._objects[path] = RemoteFile(path, self._settings)
        return self._objects[path]


class SetLater:
    """An attribute that a method sets, with others, when it is first asked for; afterwards it is one like any other.

    An object in use pays next to nothing. (With `__getattr__`, every attribute would take some 30 ns longer.)

    Args:
        method: name of the method, which sets the attribute or raises. Two threads may call it at once.
        when: name of an attribute without which the method must not be called.
    """

    __slots__ = ("_method", "_name", "_when")

    def __init__(self, method: str, *, when: str) -> None:
        self._method = method
        self._when = when
        self._name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, obj: Any, owner: type) -> Any:
        """Returns the attribute of an object; of a class, this."""
        if obj is None:
            return self
        if self._when not in obj.__dict__:
            message = f"{type(obj).__name__!r} object has no attribute {self._name!r}"
            raise AttributeError(message)
        if self._name not in obj.__dict__:  # another thread may have set it
            getattr(obj, self._method)()
        return obj.__dict__[self._name]


class IndexedDataset(HasFacts):
    """The sequences of a `.bin`/`.idx` pair, by number.

    Opening reads the header and checks in O(1) that index and tokens belong together and are whole. Safe from several
    threads, after a fork, and picklable: other processes open the same version, or raise. A catalogue, see
    `build_catalogue`, is opened as a pair is.

    Data in object storage are named by address (`s3://bucket/prefix`, also `gs://`, `az://`, `http(s)://` and
    `msc://profile/prefix`): the index is mapped from a local copy, tokens are read by range.

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
        path_prefix: the path or address of the pair without `.bin` or `.idx`.
        multimodal: whether to return modes; the index must hold them.
        mmap: map the tokens into memory; else read them by position.
        fast_cache_load: with `sequences_per_dataset`, open the files only when more than counts are asked for.
        sequences_per_dataset: (sequence count, document boundary count), compared with the header.
        dtype_code: the dtype code the tokens should have.
        object_storage: how to read data in object storage.

    Raises:
        DatasetNotFoundError: one of the files does not exist.
        DatasetFormatError: the files are truncated, foreign, or do not belong together.
    """

    opened_names: ClassVar[frozenset[str]] = frozenset(
        {"byte_source", "identity_found", "index", "_index_file", "_index_watch", "_block_starts"}
        | {"_token_dtype", "_token_watch"}
    )
    """Attributes that are there once the files are open, here and wherever this is pickled to."""

    byte_source: ByteSource = SetLater("_open", when="_counts")  # type: ignore[assignment]
    """The bytes of the tokens."""
    index: Index = SetLater("_open", when="_counts")  # type: ignore[assignment]
    _index_file: MappedFile = SetLater("_open", when="_counts")  # type: ignore[assignment]

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
        """Whether the files are open; without, only counts are known."""
        return "index" in self.__dict__

    def _open(self) -> None:
        source, self._index_file = self._files.open()
        data = self._index_file.mapped
        header = parse_header(data, path=self.idx_path)
        self._check_promises(header)
        if self.catalogue is not None:
            self.catalogue.check_header(header, prefix=self.path_prefix)
        path, num_bytes, tokens = self.idx_path, source.num_bytes, self.tokens_path
        index = parse_index(
            data, header, path=path, bin_bytes=num_bytes, multimodal=self.multimodal, tokens_path=tokens
        )
        self._files.check(source, self._index_file)
        self._counts = (header.num_sequences, header.num_boundaries)
        self._token_dtype = header.dtype
        self.bin_reader = self._make_reader(source)
        self.index = self._make_index(index)

    def _make_reader(self, source: ByteSource) -> Any:
        return source

    def _make_index(self, index: Index) -> Any:
        return index

    @property
    def bin_reader(self) -> Any:
        """What gives the bytes of the tokens; another one may take its place."""
        return self.byte_source

    @bin_reader.setter
    def bin_reader(self, reader: Any) -> None:
        self._take_source(reader)

    def _take_source(self, source: Any) -> None:
        self._source_is_ours = is_our_reader(source)
        self.byte_source = source

    @property
    def is_remote(self) -> bool:
        """Whether the data lie in object storage."""
        return is_remote(self.path_prefix)

    @property
    def remote_paths(self) -> list[str]:
        """The addresses of the objects that tokens are read from; empty for local data, and until these are open."""
        if self.is_open and isinstance(self.byte_source, ExtentSource):
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
        pointers, size = self.index.sequence_pointers, self.byte_source.num_bytes
        ends = [int(pointers[row]) if row < len(self) else size for row in (rows.start, rows.stop)]
        begin, end = ends if self.catalogue is None else map(self.extents.held_before, ends)
        return (end - begin) // self.dtype.itemsize

    def first_tokens(self, sequences: Int64s) -> Int64s:
        """Returns how many tokens of the dataset lie before sequences: int64[count]."""
        starts: Int64s = self.index.sequence_pointers[sequences]
        if self.catalogue is not None:
            extents = self.extents
            parts = extents.parts_at(starts)
            starts = starts - extents.starts[parts] + (np.cumsum(extents.sizes) - extents.sizes)[parts]
        return starts // self.dtype.itemsize

    def held_pointers(self) -> NDArray[np.int64]:
        """Returns where sequences begin among the bytes of tokens, without the gaps of a catalogue: int64[count]."""
        if self.catalogue is None:
            return self.index.sequence_pointers
        return self.first_tokens(np.arange(len(self))) * self.dtype.itemsize

    def index_source(self) -> ByteSource:
        """Returns the bytes of the index, of which the arrays are views."""
        return self._index_file

    def map_beside(self, path: str) -> Bytes:
        """Returns all bytes of a file or object beside the pair, which must be the same each time: uint8[size]."""
        return self._files.map_beside(path)

    def version_of_section(self, number: int) -> FileVersion | None:
        """Returns which local file the tokens of a section lie in; None for an object."""
        if isinstance(self.byte_source, ExtentSource):
            return self.byte_source.version(number)
        return self.byte_source.version if isinstance(self.byte_source, (MappedFile, PositionalFile)) else None

    def check_index(self) -> None:
        """Raises a `ChangedFileError` if the index was truncated or overwritten since it was opened; costs nothing."""
        if self._index_watch is None:
            self._index_watch = Watch([self._index_file.mapped])
        self._index_watch.check()

    def check_tokens(self, offset: int = 0, num_bytes: int | None = None) -> None:
        """Does the same for the index and for mapped tokens in a range of bytes; None for all."""
        if self._token_watch is None:
            self._token_watch = Watch([self._index_file.mapped], self.byte_source.mapped)
        self._token_watch.check_tokens(offset, self.byte_source.num_bytes if num_bytes is None else num_bytes)

    @cached_property
    def manifest_head(self) -> ManifestHead | None:
        """Which tokenizer made the tokens, as the manifest says; None without one. Read once, and then pickled."""
        copy = self._files.index_file() if self.is_remote else None
        return read_manifest_head(self.path_prefix, copy=copy, settings=self.object_storage)

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

    def __repr__(self) -> str:
        counts = f"num_sequences={len(self)}, num_documents={self.num_documents}, num_tokens={self.num_tokens}"
        return f"IndexedDataset({self.path_prefix!r}, {counts}, dtype={self.dtype.name})"

    def will_need(self, sequences: Int64s, starts: Int64s, lengths: Int64s, *, block_bytes: int | None = None) -> None:
        """Announces spans that `gather` or `get` will read, in this order; nothing happens for local data.

        Args:
            sequences, starts, lengths: the spans, see `gather`.
            block_bytes: fetch the blocks, of about this size, in which the sequences lie, because nearly all of each
                will be read soon, here or in another process of the node; None fetches the spans alone.
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
        """Returns the numbers of the blocks of whole sequences, each about `block_bytes` large: int64[count]."""
        starts = self.index.sequence_pointers[sequences]
        numbers: Int64s = np.searchsorted(self.block_starts(block_bytes), starts, side="right") - 1
        return numbers

    def block_starts(self, block_bytes: int) -> Int64s:
        """Returns where these blocks begin, in bytes: int64[num_blocks]; one pass, remembered.

        A sequence belongs to the block in which its first byte lies. No block holds sequences of two pairs.
        """
        pointers = self.index.sequence_pointers
        if block_bytes not in self._block_starts:
            pointers = np.array(pointers)  # aligned
            is_first = np.diff(pointers // block_bytes, prepend=-1) != 0
            if len((extents := self.extents).starts) > 1:
                is_first |= np.diff(extents.parts_at(pointers), prepend=-1) != 0
            self._block_starts[block_bytes] = pointers[np.flatnonzero(is_first)]
        return self._block_starts[block_bytes]

    def _bytes_of(self, sequences: Int64s, starts: Int64s, lengths: Int64s) -> tuple[Int64s, Int64s]:
        """Returns where spans lie: offsets and numbers of bytes, int64[num_spans] each."""
        itemsize = self.dtype.itemsize
        return self.index.sequence_pointers[sequences] + starts * itemsize, lengths * itemsize

    def __getitem__(self, idx: int | slice) -> Any:
        """Returns the tokens of one sequence, mapped ones as a read-only view, or a list of them for a slice of step 1.

        A multimodal dataset returns (tokens, mode), or (list, modes).
        """
        if isinstance(idx, slice):
            start, stop, step = idx.indices(len(self))
            if step != 1:
                message = f"slices must be contiguous, got a step of {step}"
                raise ValueError(message)
            rows = range(start, max(start, stop))
            sequences = self._read_run(start, rows.stop) if self._gets_ours else [*map(self.get, rows)]
            return (sequences, self.sequence_modes[start:stop]) if self.multimodal else sequences
        return self.get(idx)

    def get(self, idx: int, offset: int = 0, length: int | None = None) -> Any:
        """Returns tokens [offset, offset + length) of one sequence; all from `offset` on when length is None."""
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
        """Returns the tokens of many spans, back to back: dtype[sum(lengths)]; none may leave its sequence.

        One kernel call when the tokens are mapped; else one read per span, at the same time in object storage.

        Args:
            sequences: int64[num_spans], the sequence of each span.
            starts: int64[num_spans], the first token in the sequence.
            lengths: int64[num_spans], how many tokens.
        """
        self._check_spans(sequences, starts, lengths)
        self.check_tokens(0, 0)
        data = self.byte_source.mapped if self._source_is_ours else None
        dtype, num_tokens = self.dtype, int(lengths.sum())
        num_bytes = num_tokens * dtype.itemsize
        if num_bytes > _MUCH or num_bytes > self.byte_source.num_bytes:
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
            found = f"{len(sequences)} sequences, {len(starts)} starts and {len(lengths)} lengths"
            message = f"expected as many starts and lengths as sequences, got {found}"
            raise ValueError(message)
        unknown = (sequences < 0) | (sequences >= len(self))
        if unknown.any():
            row = sequences[int(np.argmax(unknown))]
            message = f"sequence {row} of `{self.path_prefix}` was asked for, but it has {len(self)}"
            raise IndexError(message)
        available = self.index.sequence_lengths[sequences]
        outside = (starts < 0) | (lengths < 0) | (starts > available - lengths)
        if outside.any():
            first = int(np.argmax(outside))
            raise self._outside(int(sequences[first]), int(starts[first]), int(starts[first] + lengths[first]))

    def _check_bytes(self, sequences: Int64s, starts: Int64s, lengths: Int64s) -> None:
        """Checks that spans lie in the file before memory is asked for: a damaged index can name terabytes."""
        offsets, num_bytes = self._bytes_of(sequences, starts, lengths)
        outside_of_file = (offsets < 0) | (offsets > self.byte_source.num_bytes - num_bytes)
        if outside_of_file.any():
            self.check_index()
            first = int(np.argmax(outside_of_file))
            raise outside(self.tokens_path, int(offsets[first]), int(num_bytes[first]), self.byte_source.num_bytes)
        if isinstance(self.byte_source, ExtentSource):
            self.byte_source.check(offsets[num_bytes > 0])

    def _outside(self, row: int, start: int, stop: int) -> IndexError:
        self.check_index()
        where = f"tokens [{start}, {stop}) of sequence {row} of `{self.path_prefix}`"
        return IndexError(f"{where} were asked for, but it has {self.index.sequence_lengths[row]}")

    def _row(self, idx: Any) -> int:
        if not isinstance(idx, (int, np.integer)):
            message = f"a sequence number must be an integer or a slice, got {type(idx).__name__}"
            raise TypeError(message)
        row, count = int(idx), len(self)
        if not -count <= row < count:
            message = f"sequence {row} of `{self.path_prefix}` was asked for, but it has {count}"
            raise IndexError(message)
        return row if row >= 0 else row + count

    def _read_run(self, start: int, stop: int) -> list[Tokens]:
        """Returns consecutive sequences, each from where its own pointer leads; those that lie in a row by one read."""
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
            sequences += [tokens[a:b] for a, b in itertools.pairwise(bounds)]  # `np.split` takes thrice as long
        return sequences

    def _read(self, begin: int, num_bytes: int) -> Tokens:
        """Returns the tokens in some bytes, to which the index has led."""
        source = self.byte_source
        if isinstance(source, ExtentSource) and not source.extents.holds(begin, num_bytes):  # zeros are no tokens
            self.check_index()
            message = f"bytes [{begin}, {begin + num_bytes}) of `{self.tokens_path}` lie in no file that it names"
            raise DatasetFormatError(message, hint="the index is damaged; write the catalogue again")
        try:
            tokens = source.read(begin, num_bytes).view(self._token_dtype)
        except StorageError:
            self.check_index()  # where the pointer came from
            raise
        if (watch := self._token_watch) is None:
            self.check_tokens(begin, num_bytes)
        else:  # a call less, which counts for short sequences
            watch.check_tokens(begin, num_bytes)
        return tokens

    @property
    def sequence_lengths(self) -> NDArray[np.int32]:
        """int32[num_sequences], tokens per sequence."""
        return self.index.sequence_lengths

    @property
    def document_indices(self) -> Int64s:
        """int64[num_documents + 1], the sequence at which each document starts, and the end."""
        return self.index.document_indices

    def get_document_indices(self) -> Int64s:
        """Returns `document_indices`; the reference's older spelling."""
        return self.document_indices

    @property
    def sequence_modes(self) -> NDArray[np.int8]:
        """int8[num_sequences] of a multimodal dataset."""
        if self.index.sequence_modes is None:
            message = f"`{self.path_prefix}` was opened without modes"
            raise ConfigError(message, hint="open it with `multimodal=True`")
        return self.index.sequence_modes

    def statistics(self) -> DatasetStatistics:
        """Returns counts and the length distribution; one pass over the lengths, which must add up to the tokens."""
        return DatasetStatistics.of(self)

    def length_histogram(self) -> LengthHistogram:
        """Returns how many sequences there are of each length; one pass over the lengths, which must add up."""
        found = length_histogram([self.sequence_lengths], name=f"`{self.idx_path}`")
        if found.num_tokens != self.num_tokens:
            raise damaged_lengths(self.idx_path, self.num_tokens, found.num_tokens)
        self.check_index()
        return found

    def facts(self) -> dict[str, Any]:
        """Returns what is known of the pair, only counts as long as its files are not open; see `HasFacts`."""
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
        """Whether both files of the pair exist, or of a catalogue."""
        prefix = prefix_of(path_prefix)
        if not exists(idx_path(prefix)) and not recover(idx_path(prefix)):
            return False
        return exists(idx_path(prefix)) and (exists(bin_path(prefix)) or exists(catalogue_path(prefix)))


_GET = IndexedDataset.get


def dataset_identity(dataset: IndexedDataset) -> dict[str, Any]:
    """Returns what tells the data of a pair from other data: both sizes, the header's counts, and a hash of samples.

    JSON-serialisable; the same for a copy elsewhere. Reads a fixed number of bytes, of local files that did not change
    only once. Two pairs that differ only between the samples look alike. Instead of samples, which would cost a round
    trip each, objects have their etag, where the store has one; the pairs of a catalogue what was recorded of them.
    """
    if not _is_settled(dataset) or dataset.identity_found is None:
        dataset.identity_found = _identity(dataset)
    return dict(dataset.identity_found)


def _is_settled(dataset: IndexedDataset) -> bool:
    """Whether both files are local, are what they were when they were opened, and would show that they changed."""
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


# --- tokens of whatever holds sequences: the fast way, or a class of a user's own asked for each ----------------------

ReadSpans = Callable[[Any, Int64s, Int64s, Int64s], NDArray[Any]]
"""Returns the tokens of many spans of a source, back to back: of sequences, from starts on, of so many tokens each."""

_HOOKS = ("get", "__getitem__", "gather")


def span_reader(source: Any, *, whole: bool = False) -> ReadSpans:
    """Returns what reads spans of a source: `gather`, unless a class of a user's own says by `get` what tokens are.

    Args:
        source: an `IndexedDataset`, or what has `get(idx, offset, length)`, or gives a sequence by `source[idx]`.
        whole: whether spans are sequences, or their beginnings, which the reference takes from `source[idx]`.
    """
    found = Overrides.of(source, _HOOKS)
    hook = found.skipped("gather", *(("get", "__getitem__") if whole else ("get",)))
    if hook is None and (hasattr(type(source), "gather") or "gather" in vars(source)):
        return _gather
    return partial(_ask_each, by_item=whole and "__getitem__" in found.found)


def _gather(source: Any, sequences: Int64s, starts: Int64s, lengths: Int64s) -> NDArray[Any]:
    tokens: NDArray[Any] = source.gather(sequences, starts, lengths)
    return tokens


def _ask_each(source: Any, sequences: Int64s, starts: Int64s, lengths: Int64s, *, by_item: bool) -> NDArray[Any]:
    if not by_item and not hasattr(source, "get"):
        message = f"expected a low-level dataset with `get(idx, offset, length)`, found {type(source).__name__}"
        raise ConfigError(message)
    parts = [np.empty(0, dtype=np.int64)][len(sequences) :]
    for sequence, start, length in zip(sequences.tolist(), starts.tolist(), lengths.tolist(), strict=True):
        found = source[sequence] if by_item else source.get(sequence, offset=start, length=length)
        if isinstance(found, tuple):  # of multimodal data, (tokens, mode)
            found = found[0]
        tokens = np.asarray(found)[start : start + length] if by_item else np.asarray(found)
        if tokens.ndim != 1 or len(tokens) != length:
            wanted = f"{length} tokens of sequence {sequence} from token {start} on"
            message = f"expected {wanted}, found shape {list(tokens.shape)} from {type(source).__name__}"
            raise DatasetFormatError(message, hint="its `sequence_lengths` must say how many tokens it gives")
        parts.append(tokens)
    return np.concatenate(parts)


def mapped_bytes(reader: Any) -> NDArray[np.uint8] | None:
    """Returns the bytes of a reader that are mapped into memory; None if there are none, or its `read` is a user's."""
    mapped: NDArray[np.uint8] | None = reader.mapped if is_our_reader(reader) else None
    return mapped


def is_our_reader(reader: Any) -> bool:
    """Whether what a reader maps into memory is what it reads, as a user's own class may have another `read`."""
    return Overrides.of(reader, ("mapped", "read", "read_many")).skipped("mapped", "read", "read_many") is None


def check_source(source: Any) -> None:
    """Raises if a low-level dataset overrides what samples of spans do not ask."""
    own = Overrides.of(source, _HOOKS)
    if own.found and hasattr(source, "get"):
        remedy = "override `get(idx, offset, length)`, which gives the tokens of samples"
        own.refuse_uncalled({"__getitem__": Uncalled(remedy, unless=("get", "gather"))})
