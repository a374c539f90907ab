"""CSV and TSV: a row of fields per record, the first of which names the columns; `pyarrow.csv` takes rows apart.

A file is never cut: whether a newline ends a row depends on every quote before it. All fields are text, an empty one
too. Empty lines are no rows. Rows with another number of fields are bad records; an open quote at the end is an error.
"""

from __future__ import annotations

import csv
import io
import itertools
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tokenloom.errors import InputError
from tokenloom.inputs import InputSlice
from tokenloom.inputs.record_format import ReadOptions, RecordFormat
from tokenloom.inputs.records import NumberedRecord, UnusableLineError, refuse_utf16
from tokenloom.inputs.streams import SliceStream
from tokenloom.inputs.tables import TableReader, columns_of
from tokenloom.optional import require

_HEADER_BYTES = 128 << 10
_ROWS_PER_MEMORY = 256
"""`memory_bytes` over the longest row: `pyarrow` may read 33 of them ahead."""

_MOST_MISFITS = 1 << 20
"""Rows with a wrong number of fields that may follow each other."""

_END = "\0end"
"""Beginning of the row that is read behind the end of a file."""


class DelimitedReader(TableReader):
    """Reads a whole file of CSV or TSV; a row longer than a 256th of `memory_bytes` is an error.

    Memory: an eighth of `memory_bytes`, or the file if that is smaller.
    """

    def __init__(self, slice_: InputSlice, options: ReadOptions, delimiter: str) -> None:
        self._delimiter = delimiter
        self._row_bytes = max(1, options.limits.memory_bytes // _ROWS_PER_MEMORY)
        self._misfits: deque[Any] = deque()  # of `pyarrow.csv.InvalidRow`, parsed but not yielded yet
        self._has_ended = False
        super().__init__(slice_, options)

    def _open_source(self, slice_: InputSlice, options: ReadOptions) -> Any:
        self._stream = SliceStream(slice_, max_window_bytes=options.limits.max_window_bytes)
        self._text = _EndedText(self._stream)
        self._buffered = io.BufferedReader(self._text, self._row_bytes)
        return self._arrow.PythonFile(self._buffered, mode="r")

    def _open(self, slice_: InputSlice, keys: Sequence[str] | None) -> int:
        arrow_csv = require("pyarrow.csv", extra="parquet")
        names = self._names(self._buffered.peek()[:_HEADER_BYTES])
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
        refuse_utf16(self._path, head)
        lines = io.TextIOWrapper(io.BytesIO(head), "utf-8-sig", "replace", newline="")
        return next((row for row in csv.reader(lines, delimiter=self._delimiter) if row), [])

    def _set_aside(self, row: Any) -> str:
        if row.text.startswith(_END):
            self._has_ended = True
        else:
            self._misfits.append(row)
        return "skip" if len(self._misfits) < _MOST_MISFITS else "error"

    @property
    def position(self) -> int:
        return min(self._stream.position, self.num_bytes) if self.num_bytes else self._stream.position

    def _batches(self) -> Iterator[Any]:
        none = self._arrow.RecordBatch.from_pylist([], schema=self._table.schema)
        for batch in itertools.chain(self._table, [none]):
            start = 0
            while self._misfits and (stop := start + self._misfits[0].number - 2 - self._num_read_rows) <= len(batch):
                yield batch.slice(start, stop - start)
                yield self._misfit(self._misfits.popleft())
                start = stop
            yield batch.slice(start)
        if not self._has_ended:
            message = f"`{self._path}`: a quote is not closed before the end of the file"
            raise InputError(message, hint="the file is truncated, or a field with a quote in it is not quoted")

    def _misfit(self, row: Any) -> Any:
        """Returns a batch of one empty row that stands for a bad record, the next one."""
        number = 1 + self._num_read_rows
        reason = f"expected {row.expected_columns} fields, found {row.actual_columns}"
        self._bad_rows[number] = NumberedRecord(number, UnusableLineError(reason), row.text.encode())
        schema = self._table.schema
        return self._arrow.RecordBatch.from_pylist([dict.fromkeys(schema.names, "")], schema=schema)

    @contextmanager
    def _worded(self) -> Iterator[None]:
        try:
            with super()._worded():
                yield
        except InputError as error:
            if "straddling" in error.message:
                rule = f"a row has more than {self._row_bytes} bytes, a 256th of `memory_bytes`"
                raise InputError(error.message, hint=f"{rule}, or a quote is not closed") from error
            raise


class _EndedText(io.RawIOBase):
    """The text of a stream and `end`, a row of too many fields, which becomes part of a field if a quote is open."""

    def __init__(self, stream: SliceStream) -> None:
        self.end = b""
        self._stream = stream

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._stream.read(len(buffer))
        if not data:
            data, self.end = self.end[: len(buffer)], self.end[len(buffer) :]
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._stream.close()
        super().close()


class Csv(RecordFormat):
    """A row of fields per record, commas between them."""

    title: str = "CSV"
    suffixes: tuple[str, ...] = (".csv",)
    delimiter = ","

    def open(self, slice_: InputSlice, options: ReadOptions) -> DelimitedReader:
        return DelimitedReader(slice_, options, self.delimiter)


class Tsv(Csv):
    """A row of fields per record, tabs between them."""

    title = "TSV"
    suffixes = (".tsv", ".tab")
    delimiter = "\t"


CSV, TSV = Csv(), Tsv()
