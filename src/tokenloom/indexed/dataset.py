"""A `.bin`/`.idx` pair that is open: its header, its arrays, its sequences by number."""

from __future__ import annotations

import itertools
import os
from typing import TYPE_CHECKING, Any, ClassVar, overload

import numpy as np
from numpy.typing import NDArray

from tokenloom import kernels
from tokenloom.errors import ConfigError, DatasetFormatError, StorageError
from tokenloom.forks import cached_property
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
from tokenloom.indexed.lengths import (
    DatasetStatistics,
    LengthHistogram,
    damaged_lengths,
    length_histogram,
)
from tokenloom.indexed.manifests import ManifestHead, read_manifest_head
from tokenloom.indexed.opening import DatasetFiles
from tokenloom.indexed.token_source import is_our_reader
from tokenloom.rendering.card import HasFacts
from tokenloom.storage.addresses import is_remote
from tokenloom.storage.extents import Extents, ExtentSource, extents_of
from tokenloom.storage.local import Bytes, ByteSource, MappedFile, PositionalFile, outside
from tokenloom.storage.objects import RemoteFile
from tokenloom.storage.publishing import recover
from tokenloom.storage.resolve import exists
from tokenloom.storage.secrets import queries_for_child, remember
from tokenloom.storage.settings import ObjectStorageSettings
from tokenloom.storage.versions import FileVersion

Tokens = NDArray[Any]

_MUCH = 1 << 30
"""Bytes; spans are compared with the file before so many are asked for. What is less is compared while it is read."""

_PARTS_AT_ONCE = 256
"""Spans that are copied by one call; so many are held at most."""

_MOST_BLOCKS = 4
"""A block that a long sequence makes larger than so many is not fetched as a whole."""


class IndexedDataset(HasFacts):
    """The sequences of a `.bin`/`.idx` pair, by number.

    Opening reads the header and checks in O(1) that index and tokens belong together and are whole. Safe from several
    threads, after a fork, and picklable (an unpickled dataset opens the files again).

    Data in object storage are named by address (`s3://bucket/prefix`, also `gs://`, `az://`, `http(s)://` and
    `msc://profile/prefix`): the index is mapped from a local copy, tokens are read by range. All processes that a
    dataset is pickled to read the version that was opened first; once it is replaced, reading is an error.

    A catalogue, see `build_catalogue`, is opened as the pair is whose place it takes.

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
        mmap: map the tokens into memory; else read them by position, without a mapping.
        fast_cache_load: with `sequences_per_dataset`, open the files when more than counts are asked for: what is wrong
            with them is found out then, and they are the files of that time.
        sequences_per_dataset: (sequence count, document boundary count), to check against the header.
        dtype_code: the dtype code the tokens should have, to check against the header.
        object_storage: how to read data in object storage.

    Raises:
        DatasetNotFoundError: one of the files does not exist.
        DatasetFormatError: the files are truncated, foreign, or do not belong together.
        StorageError: a store denies access, or does not answer.
    """

    opened_names: ClassVar[frozenset[str]] = frozenset(
        {
            "byte_source",
            "identity_found",
            "index",
            "_index_file",
            "_index_watch",
            "_block_starts",
            "_token_dtype",
            "_token_watch",
        }
    )
    """Attributes that are there once the files are open, here and wherever this is pickled to."""

    if TYPE_CHECKING:
        byte_source: ByteSource
        index: Index
        _index_file: MappedFile
    else:
        byte_source = SetLater("_open", when="_counts")
        """The bytes of the tokens."""
        index = SetLater("_open", when="_counts")
        """The contents of the index."""
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
        self._gets_ours = type(self).get is _GET
        self._index_watch: kernels.Watch | None = None
        self._token_watch: kernels.Watch | None = None
        self._block_starts: dict[int, NDArray[np.int64]] = {}
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
        self.bin_reader = self._make_reader(source)
        self.index = self._make_index(header, arrays)
        self._index_watch = self._token_watch = None
        self._block_starts = {}
        self.identity_found = None

    def _make_reader(self, source: ByteSource) -> Any:
        """Returns what `bin_reader` is: what reads the tokens."""
        return source

    def _make_index(self, header: Header, arrays: IndexArrays) -> Any:
        """Returns what `index` is: the header and the arrays."""
        return Index(header, arrays)

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
        return (
            f"IndexedDataset({self.path_prefix!r}, num_sequences={len(self)}, num_documents={self.num_documents}, "
            f"num_tokens={self.num_tokens}, dtype={self.dtype.name})"
        )

    def will_need(
        self,
        sequences: NDArray[np.int64],
        starts: NDArray[np.int64],
        lengths: NDArray[np.int64],
        *,
        block_bytes: int | None = None,
    ) -> None:
        """Announces spans that `gather` or `get` will read, in this order; nothing happens for local data.

        Args:
            sequences: int64[num_spans], the sequence of each span.
            starts: int64[num_spans], the first token in the sequence.
            lengths: int64[num_spans], how many tokens.
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

    def token_offsets(self, sequences: NDArray[Any]) -> NDArray[np.int64]:
        """Returns how many tokens lie in the file before each of these sequences: int64[count]."""
        offsets: NDArray[np.int64] = self.index.arrays.pointers[sequences] // self.dtype.itemsize
        return offsets

    def block_numbers(self, sequences: NDArray[Any], block_bytes: int) -> NDArray[np.int64]:
        """Returns the numbers of the blocks of whole sequences, each about `block_bytes` large: int64[count]."""
        starts = self.index.arrays.pointers[sequences]
        numbers: NDArray[np.int64] = np.searchsorted(self.block_starts(block_bytes), starts, side="right") - 1
        return numbers

    def block_starts(self, block_bytes: int) -> NDArray[np.int64]:
        """Returns where these blocks begin, in bytes: int64[num_blocks]; one pass, remembered.

        A sequence belongs to the block of `block_bytes` in which its first byte lies, so that none is in two. No block
        holds sequences of two pairs.
        """
        pointers = self.index.arrays.pointers
        if block_bytes not in self._block_starts:
            pointers = np.array(pointers)  # aligned
            is_first = np.diff(pointers // block_bytes, prepend=-1) != 0
            if len((extents := self.extents).starts) > 1:
                is_first |= np.diff(extents.parts_at(pointers), prepend=-1) != 0
            self._block_starts[block_bytes] = pointers[np.flatnonzero(is_first)]
        return self._block_starts[block_bytes]

    def _bytes_of(
        self, sequences: NDArray[np.int64], starts: NDArray[np.int64], lengths: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns where spans lie: offsets and numbers of bytes, int64[num_spans] each."""
        itemsize = self.dtype.itemsize
        return self.index.arrays.pointers[sequences] + starts * itemsize, lengths * itemsize

    @overload
    def __getitem__(self, idx: int) -> Any: ...

    @overload
    def __getitem__(self, idx: slice) -> Any: ...

    def __getitem__(self, idx: int | slice) -> Any:
        """Returns the tokens of one sequence, or a list of them for a slice of step 1.

        A multimodal dataset returns (tokens, mode), or (list, modes). Mapped tokens are read-only views.
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
        """Returns tokens [offset, offset + length) of one sequence; all from `offset` on when length is None.

        Raises:
            IndexError: there is no such sequence, or the range leaves it.
        """
        row = self._row(idx)
        index = self.index
        arrays = index.arrays
        available = int(arrays.lengths[row])
        stop = available if length is None else int(offset) + int(length)
        if not 0 <= offset <= stop <= available:
            raise self._outside(row, int(offset), stop)
        itemsize = index.header.dtype.itemsize
        begin = int(arrays.pointers[row]) + int(offset) * itemsize
        tokens = self._read(begin, (stop - int(offset)) * itemsize)
        return (tokens, self.sequence_modes[row]) if self.multimodal else tokens

    def gather(self, sequences: NDArray[np.int64], starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> Tokens:
        """Returns the tokens of many spans, back to back: dtype[sum(lengths)].

        One kernel call when the tokens are mapped; else one read per span, at the same time in object storage. A span
        that leaves its sequence is an `IndexError` either way.

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
            kernels.gather_spans(
                data,
                self.index.arrays.pointers,
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

    def _check_spans(self, sequences: NDArray[np.int64], starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> None:
        if not len(sequences) == len(starts) == len(lengths):
            message = (
                f"expected as many starts and lengths as sequences, "
                f"got {len(sequences)} sequences, {len(starts)} starts and {len(lengths)} lengths"
            )
            raise ValueError(message)
        unknown = (sequences < 0) | (sequences >= len(self))
        if unknown.any():
            row = sequences[int(np.argmax(unknown))]
            message = f"sequence {row} of `{self.path_prefix}` was asked for, but it has {len(self)}"
            raise IndexError(message)
        available = self.index.arrays.lengths[sequences]
        outside = (starts < 0) | (lengths < 0) | (starts > available - lengths)
        if outside.any():
            first = int(np.argmax(outside))
            raise self._outside(int(sequences[first]), int(starts[first]), int(starts[first] + lengths[first]))

    def _check_bytes(self, sequences: NDArray[np.int64], starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> None:
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
        return IndexError(
            f"tokens [{start}, {stop}) of sequence {row} of `{self.path_prefix}` were asked for, "
            f"but it has {self.index.arrays.lengths[row]}"
        )

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
        lengths = self.index.arrays.lengths[start:stop].tolist()
        pointers = self.index.arrays.pointers[start:stop].tolist()
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
        return self.index.arrays.lengths

    @property
    def document_indices(self) -> NDArray[np.int64]:
        """int64[num_documents + 1], the sequence at which each document starts, and the end."""
        return self.index.arrays.boundaries

    def get_document_indices(self) -> NDArray[np.int64]:
        """Returns `document_indices`; the reference's older spelling."""
        return self.document_indices

    @property
    def sequence_modes(self) -> NDArray[np.int8]:
        """int8[num_sequences] of a multimodal dataset."""
        if self.index.arrays.modes is None:
            message = f"`{self.path_prefix}` was opened without modes"
            raise ConfigError(message, hint="open it with `multimodal=True`")
        return self.index.arrays.modes

    def statistics(self) -> DatasetStatistics:
        """Returns counts and the length distribution; one pass over the lengths, which must add up to the tokens."""
        return DatasetStatistics.of(self)

    def length_histogram(self) -> LengthHistogram:
        """Returns how many sequences there are of each length; one pass over the lengths, which must add up.

        Raises:
            DatasetFormatError: the lengths are not those of so many tokens.
        """
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
