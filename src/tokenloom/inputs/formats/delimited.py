"""CSV and TSV: a row of fields per record, the first of which names the columns.

A file is never cut: whether a newline ends a row depends on every quote before it, so nobody can tell from a place in
the middle where a row begins, and what reads only sizes can tell it least of all. Many files are as many slices; a
single one is tokenized by all threads of its process, and converted to JSON lines it can be shared by several.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from tokenloom.errors import InputError
from tokenloom.inputs import InputSlice
from tokenloom.inputs.blocks import HEAD_BYTES, MAX_RECORD_BYTES
from tokenloom.inputs.decoding import MARK_BYTES, NOT_UTF16, begins_as_utf16, decoded, without_mark
from tokenloom.inputs.delimited_rows import (
    RowGrammar,
    RowScanner,
    columns_of_rows,
    fields_of,
    grammar_of,
    num_rows_of,
    rows_of_bytes,
)
from tokenloom.inputs.parsing import ParsedBlock, Texts
from tokenloom.inputs.record_format import ReadOptions, RecordFormat
from tokenloom.inputs.records import NumberedRecord, UnusableLineError
from tokenloom.inputs.streams import SliceStream
from tokenloom.inputs.utf8_texts import Utf8Texts

_MOST_HEADER_BYTES = 1 << 20
_SHOWN_COLUMNS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class DelimitedBlock:
    """Some consecutive rows of a file of CSV or TSV; a `Block`.

    Attributes:
        path: path of the file.
        first_record: number of the first row, from 1, the header not counted.
        first_line: number of the line in which it begins, from 1.
        columns: names of the columns.
        grammar: how rows are taken apart.
        data: the bytes of the rows; the last row of the file may lack its newline.
        max_record_bytes: longer rows are bad ones.
        too_long: the block is the beginning of one of these; the rest was dropped.
    """

    unit: ClassVar[str] = "row"

    path: str
    first_record: int
    first_line: int
    columns: tuple[str, ...]
    grammar: RowGrammar
    data: bytes
    max_record_bytes: int = MAX_RECORD_BYTES
    too_long: bool = False

    @property
    def num_text_bytes(self) -> int:
        """Size of the rows."""
        return len(self.data)

    def beginning(self) -> bytes:
        """Returns the beginning of a row."""
        return self.data

    def texts(self, keys: Sequence[str]) -> ParsedBlock | None:
        """Returns the columns, if all rows are regular."""
        if self.too_long or any(key not in self.columns for key in keys):
            return None
        columns = columns_of_rows(self.grammar, self.data, len(self.columns))
        if columns is None:
            return None
        chosen = [_texts_of(columns[self.columns.index(key)]) for key in keys]
        found = tuple(Texts(texts=texts) for texts in chosen if texts is not None)
        if len(found) < len(keys):
            return None
        return ParsedBlock(columns=found, num_documents=len(columns[0]))

    def records(self, loads: Callable[[bytes], Any] | None) -> Iterator[NumberedRecord]:
        """Yields the rows."""
        line = self.first_line
        for number, row in enumerate(rows_of_bytes(self.grammar, self.data), self.first_record):
            data = row.removesuffix(b"\n")
            is_blank = data in (b"", b"\r")
            yield NumberedRecord(number, None if is_blank else self._value(data, line), data, is_blank=is_blank)
            line += row.count(b"\n")

    def halves(self) -> tuple[DelimitedBlock, DelimitedBlock] | None:
        """Returns the first and the last rows."""
        rows = [] if self.too_long else list(rows_of_bytes(self.grammar, self.data))
        if len(rows) < 2:
            return None
        first = b"".join(rows[: len(rows) // 2])
        return replace(self, data=first), replace(
            self,
            data=self.data[len(first) :],
            first_record=self.first_record + len(rows) // 2,
            first_line=self.first_line + first.count(b"\n"),
        )

    def _value(self, row: bytes, line: int) -> Any:
        """Returns a row as an object, or the error that says why it is none."""
        fields = fields_of(self.grammar, row)
        if fields is None:
            return UnusableLineError(f"line {line}: {_misquoted(self.grammar, row)}")
        if len(fields) != len(self.columns):
            return UnusableLineError(f"line {line}: expected {len(self.columns)} fields, found {len(fields)}")
        try:
            return dict(zip(self.columns, map(decoded, fields), strict=True))
        except UnusableLineError:
            pass
        try:
            decoded(row)
        except UnusableLineError as error:
            return UnusableLineError(f"line {line}: {error}")
        raise AssertionError(row)  # parts of valid UTF-8, cut at ASCII, are valid


def _misquoted(grammar: RowGrammar, row: bytes) -> str:
    """Returns why a row cannot be taken apart."""
    scanner = RowScanner(grammar=grammar)
    scanner.first_end(row)
    if scanner.in_quotes:
        return "a quote that opens here is not closed before the end of the file"
    if b"\r" in row.removesuffix(b"\r"):
        return "a quote within a field in quotes that is not doubled, or a carriage return outside quotes"
    return "a quote within a field in quotes that is not doubled"


def _texts_of(values: list[bytes]) -> Utf8Texts | None:
    """Returns some texts; None if one is not UTF-8."""
    try:
        b"\n".join(values).decode("utf-8")  # with what no half of a character can go on behind
    except UnicodeDecodeError:
        return None
    offsets = np.zeros(len(values) + 1, dtype=np.int64)
    np.cumsum(np.fromiter(map(len, values), dtype=np.int64, count=len(values)), out=offsets[1:])
    return Utf8Texts(content=np.frombuffer(b"".join(values), dtype=np.uint8), offsets=offsets)


class DelimitedReader:
    """Reads a file of CSV or TSV in blocks of whole rows; a `SliceReader`. Not safe from several threads.

    Memory: one block, or the longest row if that is longer.

    Args:
        slice_: the whole file.
        options: options of reading; a block ends with the last row that fits.
        format_: the format, which knows the delimiter.

    Raises:
        StorageError: the file cannot be opened.
        InputError: it has no header, or no column for a key.
    """

    def __init__(self, slice_: InputSlice, options: ReadOptions, format_: DelimitedFormat) -> None:
        self.block_bytes: int = options.block_bytes
        self.num_text_bytes: int = 0
        self.num_rows: int = 0
        self.num_bytes: int = slice_.file.num_bytes
        self._path = slice_.file.path
        self._max_record_bytes = options.max_record_bytes
        self._grammar = grammar_of(format_.delimiter)
        self._scanner = RowScanner(grammar=self._grammar)
        self._line = 1
        self._stream = SliceStream(slice_, max_window_bytes=options.max_window_bytes)
        try:
            header, self._begun = self._read_header()
            self._columns = self._named(header, format_)
            self._check_keys(options.keys, format_)
        except BaseException:
            self._stream.close()
            raise

    def close(self) -> None:
        """Closes the file."""
        self._stream.close()

    @property
    def position(self) -> int:
        """Bytes of the file, compressed as they may be, read so far; 0 where the system does not tell (a pipe)."""
        return min(self._stream.position, self.num_bytes) if self.num_bytes else self._stream.position

    def blocks(self) -> Iterator[DelimitedBlock]:
        """Yields the blocks, in order.

        Raises:
            InputError: the compressed data is damaged or truncated.
            StorageError: reading failed.
        """
        pending: list[bytes] = []  # the beginning of a row whose end is not read yet
        num_pending = 0
        chunk = self._begun or self._chunk()
        while chunk:
            end = self._scanner.first_end(chunk)
            if num_pending + (len(chunk) if end < 0 else end) > self._max_record_bytes:
                yield self._block(b"".join([*pending, chunk])[:HEAD_BYTES], num_rows=1, too_long=True)
                self._line += sum(each.count(b"\n") for each in pending)
                pending, num_pending = [], 0
                chunk = self._after_row(chunk, end)
                continue
            if end >= 0:
                cut = self._scanner.last_end(chunk, end)
                data = b"".join([*pending, chunk[:cut]])
                yield self._block(data, num_rows=num_rows_of(self._grammar, data))
                self._line += data.count(b"\n")
                pending, num_pending = [], 0
                chunk = chunk[cut:]
            pending.append(chunk)
            num_pending += len(chunk)
            chunk = self._chunk()
        if num_pending:
            yield self._block(b"".join(pending), num_rows=1)

    def _block(self, data: bytes, *, num_rows: int, too_long: bool = False) -> DelimitedBlock:
        first = self.num_rows + 1
        self.num_rows += num_rows
        return DelimitedBlock(
            path=self._path,
            first_record=first,
            first_line=self._line,
            columns=self._columns,
            grammar=self._grammar,
            data=data,
            max_record_bytes=self._max_record_bytes,
            too_long=too_long,
        )

    def _after_row(self, chunk: bytes, end: int) -> bytes:
        """Drops the rest of a row, which ends in a chunk or a later one; returns what follows, b"" at the end."""
        while end < 0:
            self._line += chunk.count(b"\n")
            chunk = self._chunk()
            if not chunk:
                return b""
            end = self._scanner.first_end(chunk)
        self._line += chunk.count(b"\n", 0, end)
        return chunk[end:] or self._chunk()

    def _chunk(self) -> bytes:
        chunk = self._stream.read(min(self.block_bytes, self._max_record_bytes))
        self.num_text_bytes += len(chunk)
        return chunk

    def _read_header(self) -> tuple[bytes, bytes]:
        """Returns the first row without its newline, and what was read behind it."""
        head = self._chunk()
        while 0 < len(head) < MARK_BYTES and (more := self._chunk()):
            head += more
        if begins_as_utf16(head):
            message = f"`{self._path}`: {NOT_UTF16}"
            raise InputError(message, hint="convert it: `iconv -f UTF-16 -t UTF-8`")
        head = without_mark(head)
        end, num_seen = self._scanner.first_end(head), len(head)
        while end < 0 and (more := self._chunk()):
            if num_seen > _MOST_HEADER_BYTES:
                message = f"`{self._path}`: expected the names of the columns in the first row, found a row without end"
                raise InputError(message, hint="a quote may be open")
            end = self._scanner.first_end(more)
            end, num_seen, head = (end if end < 0 else end + num_seen), num_seen + len(more), head + more
        end = len(head) if end < 0 else end
        self._line += head.count(b"\n", 0, end)
        return head[:end].removesuffix(b"\n"), head[end:]

    def _named(self, header: bytes, format_: DelimitedFormat) -> tuple[str, ...]:
        """Returns the names of the columns."""
        if header in (b"", b"\r"):
            message = f"`{self._path}`: expected the names of the columns in the first row, found an empty one"
            raise InputError(message, hint=f"{format_.title} without a header is not read")
        fields = fields_of(self._grammar, header)
        if fields is None:
            message = f"`{self._path}` line 1: {_misquoted(self._grammar, header)}"
            raise InputError(message)
        try:
            return tuple(map(decoded, fields))
        except UnusableLineError as error:
            message = f"`{self._path}` line 1: {error}"
            raise InputError(message) from error

    def _check_keys(self, keys: Sequence[str] | None, format_: DelimitedFormat) -> None:
        for key in self._columns if keys is None else keys:
            if (count := self._columns.count(key)) != 1:
                found = ", ".join(map(repr, self._columns[:_SHOWN_COLUMNS]))
                more = ", ..." if len(self._columns) > _SHOWN_COLUMNS else ""
                problem = "no column" if not count else f"{count} columns"
                message = f"`{self._path}`: {problem} {key!r}; found {found}{more}"
                one = f"; fields are separated by {format_.sign}" if len(self._columns) == 1 else ""
                raise InputError(message, hint=f"name one of the columns as the key{one}")


class DelimitedFormat(RecordFormat):
    """A row of fields per record, with one delimiter.

    Args:
        title: how messages call it.
        suffixes: suffixes of its files.
        delimiter: the byte between fields.
        sign: what messages call the delimiter.
    """

    may_begin_with_anything = True

    def __init__(self, *, title: str, suffixes: tuple[str, ...], delimiter: bytes, sign: str) -> None:
        self.title = title
        self.suffixes = suffixes
        self.delimiter = delimiter
        self.sign = sign

    def open(self, slice_: InputSlice, options: ReadOptions) -> DelimitedReader:
        """Returns the reader of a file; see `RecordFormat`."""
        return DelimitedReader(slice_, options, self)


CSV = DelimitedFormat(title="CSV", suffixes=(".csv",), delimiter=b",", sign="commas")
TSV = DelimitedFormat(title="TSV", suffixes=(".tsv", ".tab"), delimiter=b"\t", sign="tabs")
