"""The interface of a format of input files, and of the readers of its slices."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Protocol

from tokenloom.errors import InputError, ReplacedObjectError
from tokenloom.inputs import DEFAULT_LIMITS, InputFile, InputSlice, ReadLimits
from tokenloom.inputs.formats import FORMATS
from tokenloom.inputs.records import Block
from tokenloom.inputs.streams import SliceStream, changed_file, check_unchanged

_MOST_HEAD_BLOCKS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """Settings of reading a slice.

    Attributes:
        block_bytes: size of a block, unless a single record has more.
        keys: keys of the texts; only their columns are read. None for all columns.
        limits: limits of records and memory.
    """

    block_bytes: int
    keys: Sequence[str] | None = None
    limits: ReadLimits = DEFAULT_LIMITS


class SliceReader(ABC):
    """Reads a slice from beginning to end, once, in blocks of whole records. Not safe from several threads.

    Attributes:
        block_bytes: size of a block, unless a single record has more; may be changed between blocks.
        num_bytes: size of the slice in the file; 0 if unknown (a pipe).
        num_text_bytes: bytes of text read so far, after decompression; of tables, of the columns in memory.
        num_rows: records in the blocks so far, blank and bad ones included: lines, rows or files.
    """

    def __init__(self, slice_: InputSlice, options: ReadOptions) -> None:
        self.block_bytes: int = options.block_bytes
        self.num_bytes: int = slice_.stop - slice_.start if slice_.file.is_cut_by_bytes else slice_.file.num_bytes
        self.num_text_bytes: int = 0
        self.num_rows: int = 0
        self._slice = slice_
        self._path = slice_.file.path
        self._limits = options.limits
        self._blocks: Iterator[Block] | None = None

    @property
    @abstractmethod
    def position(self) -> int:
        """Bytes of the slice, compressed as they may be, read so far."""

    @abstractmethod
    def read_blocks(self) -> Iterator[Block]:
        """Yields the blocks, in order, as the file is now; see `blocks`."""

    @abstractmethod
    def close(self) -> None:
        """Closes the file; harmless when repeated."""

    def first_block(self) -> Block | None:
        """Returns the first block with a whole record, before `blocks` yields it; None if it is not near the start."""
        head, rest = list[Block](), self._guarded()
        for block in islice(rest, _MOST_HEAD_BLOCKS):
            head.append(block)
            if not block.too_long:
                break
        self._blocks = chain(head, rest)
        return head[-1] if head else None

    def blocks(self) -> Iterator[Block]:
        """Yields the blocks, in order.

        Raises:
            InputError: the file is damaged, truncated, or changed since the job was planned.
            StorageError: reading failed.
        """
        return self._guarded() if self._blocks is None else self._blocks

    def _guarded(self) -> Iterator[Block]:
        """Yields the blocks, and checks at the end that the file did not change."""
        file = self._slice.file
        try:
            yield from self.read_blocks()
        except ReplacedObjectError as error:
            raise changed_file(file, "the object was replaced") from error
        except InputError:
            check_unchanged(file)  # a change may look like damage
            raise
        check_unchanged(file)


class StreamReader(SliceReader):
    """A reader of the decompressed bytes of a slice."""

    def __init__(self, slice_: InputSlice, options: ReadOptions) -> None:
        super().__init__(slice_, options)
        self._stream = SliceStream(slice_, max_window_bytes=options.limits.max_window_bytes)

    @property
    def position(self) -> int:
        """See `SliceReader`; 0 where the system does not tell (a pipe)."""
        return min(self._stream.position, self.num_bytes) if self.num_bytes else self._stream.position

    def close(self) -> None:
        self._stream.close()


class RecordFormat(Protocol):
    """A format: how its files are recognized, cut and read. Derive from it to inherit the usual answers.

    A file whose records are lines (`has_lines`) is cut at any byte, unless it is compressed; any other between its
    units (`unit_bytes`). All methods are safe from several threads, and return the same in every process.

    Attributes:
        title: its name in messages ("Parquet").
        suffixes: suffixes of its files, in lower case, without those of a compression. Several formats may share one;
            the user then names the format.
        takes_any_name: where a user names this format, files in folders have it unless their name tells another.
        magics: first bytes of its files, for names without a known suffix.
        compresses_inside: its files are never compressed as a whole.
        begins_at_the_end: reading begins at the end of a file, so that pipes cannot be read.
        has_lines: a record is a line, independent of the lines before it.
    """

    title: str
    suffixes: tuple[str, ...] = ()
    magics: tuple[bytes, ...] = ()
    takes_any_name: bool = False
    compresses_inside: bool = False
    begins_at_the_end: bool = False
    has_lines: bool = False

    @property
    def unit(self) -> str:
        """A record, as `Block.unit`: a `line`, a `row`, or the whole `file`."""
        return "line" if self.has_lines else "row"

    def unit_bytes(self, file: InputFile) -> Sequence[int]:
        """Returns the sizes of the units between which a file may be cut, decoded; a whole file is one.

        Raises:
            StorageError: it cannot be read.
            InputError: it is not of the format.
        """
        return [file.num_bytes]

    def saved_files(self, folder: str, names: Sequence[str], read: Callable[[str], bytes]) -> Sequence[str] | None:
        """Returns the names of the input files in a folder with its own list of them, in order; else None.

        Args:
            folder: its path or address, without a slash at the end.
            names: names of the files right in it.
            read: returns the bytes of a file.

        Raises:
            ConfigError, InputError: it cannot be read as a whole.
        """
        return None

    def check_keys(self, path: str, keys: Sequence[str]) -> None:
        """Raises a `ConfigError` for keys that no record can have."""
        return  # every key, unless a format knows better

    def open(self, slice_: InputSlice, options: ReadOptions) -> SliceReader:
        """Returns the reader of a slice.

        Raises:
            InputError: the file is not of the format, or has no column for a key.
            StorageError: it cannot be opened.
            MissingExtraError: its library is not installed.
        """


def open_slice(
    slice_: InputSlice, *, block_bytes: int, keys: Sequence[str] | None = None, limits: ReadLimits = DEFAULT_LIMITS
) -> SliceReader:
    """Returns the reader of a slice; see `ReadOptions`.

    Raises:
        ConfigError: the format has no such keys.
        InputError, StorageError, MissingExtraError: see `RecordFormat.open`; or the file changed since it was planned.
    """
    file = slice_.file
    found = FORMATS[file.format]
    if keys is not None:
        found.check_keys(file.path, keys)
    check_unchanged(file)
    return found.open(slice_, ReadOptions(block_bytes=block_bytes, keys=keys, limits=limits))
