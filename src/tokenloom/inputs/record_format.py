"""What a format of input files is to those that find, cut and read them."""

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
    """How a slice is read.

    Attributes:
        block_bytes: size of a block, unless a single record has more.
        keys: keys of the texts, so that only their columns are read; None for all columns.
        limits: what reading may take.
    """

    block_bytes: int
    keys: Sequence[str] | None = None
    limits: ReadLimits = DEFAULT_LIMITS


class SliceReader(ABC):
    """Reads a slice from beginning to end, once, in blocks of whole records. Not safe from several threads.

    Args:
        slice_: slice to read.
        options: options of reading.

    Attributes:
        block_bytes: size of a block, unless a single record has more; may be changed between blocks.
        num_bytes: size of the slice in the file; 0 where nobody knows (a pipe).
        num_text_bytes: bytes of text read so far, after decompression; of tables, of the columns in memory.
        num_rows: records that the blocks so far hold, blank and bad ones included: lines, rows or files.
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

    def _count(self, *, num_rows: int = 0, num_text_bytes: int = 0) -> None:
        self.num_rows += num_rows
        self.num_text_bytes += num_text_bytes

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
        """Returns the first block with a whole record in it, before `blocks` yields it; None if there is none soon."""
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
            InputError: the file is damaged, truncated, or not the one that was planned with any more.
            StorageError: reading failed.
        """
        return self._guarded() if self._blocks is None else self._blocks

    def _guarded(self) -> Iterator[Block]:
        """Yields the blocks, and looks at the end whether the file is still the one that was planned with."""
        file = self._slice.file
        try:
            yield from self.read_blocks()
        except ReplacedObjectError as error:
            raise changed_file(file, "the object was replaced") from error
        except InputError:
            check_unchanged(file)  # which may be why its data looks damaged
            raise
        check_unchanged(file)


class StreamReader(SliceReader):
    """A reader of the decompressed bytes of a slice."""

    def __init__(self, slice_: InputSlice, options: ReadOptions) -> None:
        super().__init__(slice_, options)
        self._stream = SliceStream(slice_, max_window_bytes=options.limits.max_window_bytes)

    @property
    def position(self) -> int:
        """Bytes of the slice, compressed as they may be, read so far; 0 where the system does not tell (a pipe)."""
        return min(self._stream.position, self.num_bytes) if self.num_bytes else self._stream.position

    def close(self) -> None:
        """Closes the file."""
        self._stream.close()


class RecordFormat(Protocol):
    """A format: what tells its files, how they may be cut, and how they are read. Derive from it for what is usual.

    A file whose records are lines (`has_lines`) is cut at any of its bytes, unless it is compressed; any other between
    its units (`unit_bytes`). All methods are safe from several threads, and come to the same in every process.

    Attributes:
        title: how messages call it ("Parquet").
        suffixes: suffixes of its files, in lower case, without those of a compression. Several formats may have one in
            common; the user then says which.
        takes_any_name: where a user names this format, files in folders are of it whose names tell no other format.
        magics: first bytes that tell its files where no name does.
        compresses_inside: its files are never compressed as a whole.
        begins_at_the_end: reading begins at the end of a file, so that pipes cannot be read.
        has_lines: a record is a line, and knows nothing of the lines before it.
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
        """What a record is, as `Block.unit`: a `line`, a `row`, or the whole `file`."""
        return "line" if self.has_lines else "row"

    def unit_bytes(self, file: InputFile) -> Sequence[int]:
        """Returns the sizes of the units between which a file may be cut, decoded; a whole file is one.

        Called for several files at the same time.

        Raises:
            StorageError: it cannot be read.
            InputError: it is not of the format.
        """
        return [file.num_bytes]

    def saved_files(self, folder: str, names: Sequence[str], read: Callable[[str], bytes]) -> Sequence[str] | None:
        """Returns the names of the input files in a folder that says itself which these are, in order; else None.

        Args:
            folder: its path or address, without a slash at the end.
            names: names of the files right in it.
            read: returns the bytes of a file.

        Raises:
            ConfigError, InputError: it cannot be read as a whole.
        """
        return None

    def check_keys(self, path: str, keys: Sequence[str]) -> None:
        """Refuses keys that no record can have.

        Raises:
            ConfigError: one is.
        """
        return  # every key, unless a format knows better

    def open(self, slice_: InputSlice, options: ReadOptions) -> SliceReader:
        """Returns the reader of a slice.

        Raises:
            InputError: the file is not of the format, or has no column for a key.
            StorageError: it cannot be opened.
            MissingExtraError: what reads it is not installed.
        """


def open_slice(
    slice_: InputSlice, *, block_bytes: int, keys: Sequence[str] | None = None, limits: ReadLimits = DEFAULT_LIMITS
) -> SliceReader:
    """Returns the reader of a slice.

    Args:
        slice_: slice to read.
        block_bytes, keys, limits: see `ReadOptions`.

    Raises:
        ConfigError: the format has no such keys.
        InputError: the file is not the one that was planned with, not of its format, or has no column for a key.
        StorageError: it cannot be opened.
        MissingExtraError: what reads it is not installed.
    """
    file = slice_.file
    found = FORMATS[file.format]
    if keys is not None:
        found.check_keys(file.path, keys)
    check_unchanged(file)
    return found.open(slice_, ReadOptions(block_bytes=block_bytes, keys=keys, limits=limits))
