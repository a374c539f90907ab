"""The interfaces of input formats and of slice readers."""

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
    """Options for reading a slice."""

    block_bytes: int  # size of a block; a longer record is a block of its own
    keys: Sequence[str] | None = None  # keys of the texts to read, for a table the columns; None for all
    limits: ReadLimits = DEFAULT_LIMITS


class SliceReader(ABC):
    """A reader of a slice; yields blocks of whole records, in order and only once. Not thread-safe.

    Attributes:
        block_bytes: size of a block; a longer record is a block of its own. Callers may change the size between blocks.
        num_bytes: size of the slice in the file, in bytes; 0 for a pipe.
        num_text_bytes: bytes of text read so far, after decompression; for a table, size of the columns in memory.
        num_rows: number of records in the blocks so far, including blank and bad records.
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
        """Number of bytes of the slice that were read so far, before decompression; 0 for a pipe."""

    @abstractmethod
    def read_blocks(self) -> Iterator[Block]:
        """Yields the blocks in order; unlike `blocks`, does not check that the file is unchanged."""

    @abstractmethod
    def close(self) -> None:
        """Closes the file; may be called repeatedly."""

    def first_block(self) -> Block | None:
        """Returns the first block with a whole record, else one without, else None; `blocks` still yields all."""
        head, rest = list[Block](), self._guarded()
        for block in islice(rest, _MOST_HEAD_BLOCKS):
            head.append(block)
            if not block.too_long:
                break
        self._blocks = chain(head, rest)
        return head[-1] if head else None

    def blocks(self) -> Iterator[Block]:
        """Yields the blocks in order.

        Raises:
            InputError: the file is damaged or truncated, or changed after planning.
            StorageError: reading failed.
        """
        return self._guarded() if self._blocks is None else self._blocks

    def _guarded(self) -> Iterator[Block]:
        """Yields the blocks; checks after the last block that the file did not change."""
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
    """A base class for readers of decompressed text."""

    def __init__(self, slice_: InputSlice, options: ReadOptions) -> None:
        super().__init__(slice_, options)
        self._stream = SliceStream(slice_, max_window_bytes=options.limits.max_window_bytes)

    @property
    def position(self) -> int:
        return min(self._stream.position, self.num_bytes) if self.num_bytes else self._stream.position

    def close(self) -> None:
        self._stream.close()


class RecordFormat(Protocol):
    """The interface of an input format; subclasses inherit the defaults.

    Slices of an uncompressed file of lines (`has_lines`) may start at any byte; slices of other files start between
    units (`unit_bytes`). All methods are thread-safe and return the same result in every process.

    Attributes:
        title: name in messages ("Parquet").
        suffixes: file name suffixes in lower case, without compression suffixes. If several formats share a suffix,
            the user must set `input_format`.
        takes_any_name: whether files of a folder with unknown suffixes are read, too, if `input_format` is this format.
        magics: byte strings with which files of this format may begin, to detect the format if the suffix is unknown.
        compresses_inside: whether the format compresses parts of a file; if so, a wholly compressed file is an error.
        begins_at_the_end: whether reading starts at the end of the file; if so, pipes cannot be read.
        has_lines: whether each record is a line that can be parsed without the lines before it.
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
        """Noun for a record, as in `Block.unit`: `line`, `row` or `file`."""
        return "line" if self.has_lines else "row"

    def unit_bytes(self, file: InputFile) -> Sequence[int]:
        """Returns the decoded size in bytes of each unit of a file; a file may be cut only between its units.

        By default, the whole file is one unit.

        Raises:
            StorageError: the file cannot be read.
            InputError: the file does not have this format.
        """
        return [file.num_bytes]

    def saved_files(self, folder: str, names: Sequence[str], read: Callable[[str], bytes]) -> Sequence[str] | None:
        """Returns the input file names that the dataset saved in `folder` lists, in order; None without such a dataset.

        Args:
            folder: path or address of the folder, without a trailing slash.
            names: names of the files directly in the folder.
            read: `read(path)` returns the content of a file.

        Raises:
            ConfigError, InputError: the listed files cannot be read as one dataset.
        """
        return None

    def check_keys(self, path: str, keys: Sequence[str]) -> None:
        """Raises `ConfigError` for keys that no record of the format can have; by default, all keys are valid."""
        return

    def open(self, slice_: InputSlice, options: ReadOptions) -> SliceReader:
        """Opens a slice for reading.

        Raises:
            InputError: the file does not have this format, or has no column for a key.
            StorageError: the file cannot be opened.
            MissingExtraError: the library of the format is not installed.
        """


def open_slice(
    slice_: InputSlice, *, block_bytes: int, keys: Sequence[str] | None = None, limits: ReadLimits = DEFAULT_LIMITS
) -> SliceReader:
    """Opens a slice for reading; see `ReadOptions`. Raises the errors of `RecordFormat.open`.

    Also raises `ConfigError` if the format does not support the keys, `InputError` if the file changed after planning.
    """
    file = slice_.file
    found = FORMATS[file.format]
    if keys is not None:
        found.check_keys(file.path, keys)
    check_unchanged(file)
    return found.open(slice_, ReadOptions(block_bytes=block_bytes, keys=keys, limits=limits))
