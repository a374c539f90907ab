"""CSV and TSV: a row of fields per record, the first of which names the columns; `pyarrow.csv` takes rows apart.

A file is never cut: whether a newline ends a row depends on every quote before it. All fields are text, an empty one
too. Empty lines are no rows. Rows with another number of fields are bad records.
"""

from __future__ import annotations

import csv
import io
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tokenloom.errors import InputError
from tokenloom.inputs import InputSlice
from tokenloom.inputs.record_format import ReadOptions, RecordFormat
from tokenloom.inputs.records import NOT_UTF16, NumberedRecord, UnusableLineError, begins_as_utf16
from tokenloom.inputs.streams import SliceStream
from tokenloom.inputs.tables import TableReader, columns_of
from tokenloom.optional import require

_HEADER_BYTES = 128 << 10
_ROWS_PER_MEMORY = 256
"""Rows of the greatest length that `memory_bytes` make up: `pyarrow` may read 33 of them ahead."""

_MOST_MISFITS = 1 << 20
"""Rows with another number of fields than the header that may follow each other."""

_END = "\0end"
"""How the row begins that is read behind the end of a file."""


class DelimitedReader(TableReader):
    """Reads a file of CSV or TSV. Memory: an eighth of `max_unit_bytes`, or the file if that is smaller.

    Args:
        slice_: the whole file.
        options: options of reading; a longer row than a 256th of `max_unit_bytes` is an error.
        delimiter: the character between fields.
    """

    def __init__(self, slice_: InputSlice, options: ReadOptions, delimiter: str) -> None:
        self._delimiter = delimiter
        self._row_bytes = max(1, options.max_unit_bytes // _ROWS_PER_MEMORY)
        self._misfits: deque[Any] = deque()  # of `pyarrow.csv.InvalidRow`, parsed but not yielded yet
        super().__init__(slice_, options)

    def _open_source(self, slice_: InputSlice, options: ReadOptions) -> Any:
        stream = SliceStream(slice_, max_window_bytes=options.max_window_bytes)
        self._text = _EndedText(stream, head_bytes=self._row_bytes)
        return self._arrow.PythonFile(self._text, mode="r")

    def _open(self, slice_: InputSlice, keys: Sequence[str] | None) -> int:
        arrow_csv = require("pyarrow.csv", extra="parquet")
        names = self._names(self._text.head)
        text = self._arrow.string()
        schema = self._arrow.schema([(name, text) for name in names])
        keys = columns_of(schema, names if keys is None else keys, self._path)
        self._text.end = f"\n{_END}{self._delimiter * len(names)}\n".encode()
        self._table = arrow_csv.open_csv(
            self._source,
            # one thread, because several do not number the rows
            read_options=arrow_csv.ReadOptions(block_size=self._row_bytes, use_threads=False),
            parse_options=arrow_csv.ParseOptions(
                delimiter=self._delimiter, newlines_in_values=True, invalid_row_handler=self._set_aside
            ),
            convert_options=arrow_csv.ConvertOptions(
                column_types=dict.fromkeys(keys, text), include_columns=keys, check_utf8=False
            ),
        )
        return 0

    def _names(self, head: bytes) -> list[str]:
        """Returns the names of the columns."""
        if begins_as_utf16(head):
            message = f"`{self._path}`: {NOT_UTF16}"
            raise InputError(message, hint="convert it: `iconv -f UTF-16 -t UTF-8`")
        lines = io.TextIOWrapper(io.BytesIO(head[:_HEADER_BYTES]), "utf-8-sig", "replace", newline="")
        return next((row for row in csv.reader(lines, delimiter=self._delimiter) if row), [])

    @contextmanager
    def _worded(self) -> Iterator[None]:
        try:
            with super()._worded():
                yield
        except InputError as error:
            if "straddling" not in error.message:
                raise
            row = 1 + self._num_read_rows
            message = (
                f"`{self._path}` row {row} or later: longer than {self._row_bytes} bytes, or a quote is not closed"
            )
            raise InputError(message, hint="allow more with `memory_bytes`, 256 times as much") from error

    def _set_aside(self, row: Any) -> str:
        self._misfits.append(row)
        return "skip" if len(self._misfits) < _MOST_MISFITS else "error"

    @property
    def position(self) -> int:
        """Bytes of the file, compressed as they may be, read so far, up to 33 blocks ahead of the rows."""
        return min(self._text.position, self.num_bytes) if self.num_bytes else self._text.position

    def _batches(self) -> Iterator[Any]:
        batch = self._arrow.RecordBatch.from_pylist([], schema=self._table.schema)
        for following in self._table:
            if len(following):
                yield from self._with_misfits(batch)
                batch = following
        last = self._misfits.pop() if self._misfits and _END in self._misfits[-1].text else None
        if last is None:  # the end is in the last row, which has as many fields as the others
            batch = batch.slice(0, max(0, len(batch) - 1))
        yield from self._with_misfits(batch)
        if last is None or not last.text.startswith(_END):
            yield self._misfit("a quote that opens here is not closed before the end of the file")

    def _with_misfits(self, batch: Any) -> Iterator[Any]:
        """Yields the rows of a batch, with an empty one for each misfit before, between and behind them."""
        start = 0
        while self._misfits and (stop := start + self._misfits[0].number - 2 - self._num_read_rows) <= len(batch):
            yield batch.slice(start, stop - start)
            row = self._misfits.popleft()
            reason = f"expected {row.expected_columns} fields, found {row.actual_columns}"
            yield self._misfit(reason, row.text.encode())
            start = stop
        yield batch.slice(start)

    def _misfit(self, reason: str, data: bytes = b"") -> Any:
        """Returns a batch of one row that stands for a bad record, the next one."""
        number = 1 + self._num_read_rows
        self._bad_rows[number] = NumberedRecord(number, UnusableLineError(reason), data)
        schema = self._table.schema
        return self._arrow.RecordBatch.from_pylist([dict.fromkeys(schema.names, "")], schema=schema)


class _EndedText(io.RawIOBase):
    """The text of a stream and behind it `end`, a row of too many fields: it is part of a field if a quote is open.

    Attributes:
        head: the first bytes, until they are read.
        end: the row.
    """

    def __init__(self, stream: SliceStream, *, head_bytes: int) -> None:
        self.head = self.end = b""
        self._stream = stream
        self.head = self.read(head_bytes)

    @property
    def position(self) -> int:
        """Bytes of the file read so far."""
        return self._stream.position

    def readable(self) -> bool:
        """Whether it can be read."""
        return True

    def read(self, count: int = -1) -> bytes:
        """Returns so many bytes; less only at the end."""
        data, self.head = self.head[:count], self.head[count:]
        while left := count - len(data):
            if not (more := self._stream.read(left)):
                more, self.end = self.end[:left], self.end[left:]
            if not more:
                break
            data += more
        return data

    def close(self) -> None:
        """Closes the stream."""
        self._stream.close()
        super().close()


class DelimitedFormat(RecordFormat):
    """A row of fields per record, with one delimiter.

    Args:
        title: how messages call it.
        suffixes: suffixes of its files.
        delimiter: the character between fields.
    """

    may_begin_with_anything = True

    def __init__(self, *, title: str, suffixes: tuple[str, ...], delimiter: str) -> None:
        self.title = title
        self.suffixes = suffixes
        self.delimiter = delimiter

    def open(self, slice_: InputSlice, options: ReadOptions) -> DelimitedReader:
        """Returns the reader of a file; see `RecordFormat`."""
        return DelimitedReader(slice_, options, self.delimiter)


CSV = DelimitedFormat(title="CSV", suffixes=(".csv",), delimiter=",")
TSV = DelimitedFormat(title="TSV", suffixes=(".tsv", ".tab"), delimiter="\t")
