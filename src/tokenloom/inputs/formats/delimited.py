"""Reads CSV and TSV with `pyarrow.csv`; the first row names the columns.

A file is never cut: a newline within quotes does not end a row, so all text before a newline must be known. All fields
are text, including empty fields. Empty lines are not rows. Rows with a wrong number of fields are bad records. A quote
that is still open at the end of the file is an error.
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
"""Ratio of `memory_bytes` to the maximum size of a row. `pyarrow` may prefetch 33 blocks of this maximum size."""

_MOST_MISFITS = 1 << 20
"""Maximum number of consecutive rows with a wrong number of fields."""

_END = "\0end"
"""Start of the sentinel row that is appended to the text of a file."""


class DelimitedReader(TableReader):
    """A reader of a whole CSV or TSV file; a row longer than 1/256 of `memory_bytes` is an error.

    Memory: 1/8 of `memory_bytes`, or the size of the file if the file is smaller.
    """

    def __init__(self, slice_: InputSlice, options: ReadOptions, delimiter: str) -> None:
        self._delimiter = delimiter
        self._row_bytes = max(1, options.limits.memory_bytes // _ROWS_PER_MEMORY)
        self._misfits: deque[Any] = deque()  # `pyarrow.csv.InvalidRow` objects that are not yielded yet
        self._has_ended = False
        super().__init__(slice_, options)

    def _open_source(self, slice_: InputSlice, options: ReadOptions) -> Any:
        self._stream = SliceStream(slice_, max_window_bytes=options.limits.max_window_bytes)
        self._text = _SentinelText(self._stream)
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
            # with several threads, pyarrow does not number invalid rows
            read_options=arrow_csv.ReadOptions(block_size=self._row_bytes, use_threads=False),
            parse_options=arrow_csv.ParseOptions(
                delimiter=self._delimiter, newlines_in_values=True, invalid_row_handler=self._collect_misfit
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

    def _collect_misfit(self, row: Any) -> str:
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
            raise InputError(message, hint="the file is truncated, or an unquoted field contains a quote")

    def _misfit(self, row: Any) -> Any:
        """Adds the invalid `row`, the next record, to the bad rows; returns a batch with one empty row in its place."""
        number = 1 + self._num_read_rows
        reason = f"expected {row.expected_columns} fields, found {row.actual_columns}"
        self._bad_rows[number] = NumberedRecord(number, UnusableLineError(reason), row.text.encode())
        schema = self._table.schema
        return self._arrow.RecordBatch.from_pylist([dict.fromkeys(schema.names, "")], schema=schema)

    @contextmanager
    def _arrow_errors(self) -> Iterator[None]:
        try:
            with super()._arrow_errors():
                yield
        except InputError as error:
            if "straddling" in error.message:
                hint = f"close open quotes, or raise `memory_bytes`: rows may take 1/256 of it, {self._row_bytes} bytes"
                raise InputError(error.message, hint=hint) from error
            raise


class _SentinelText(io.RawIOBase):
    """The text of a stream, then the row `end`, which `pyarrow` reports as an invalid row if no quote is open."""

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
    """Comma-separated fields, one record per row."""

    title: str = "CSV"
    suffixes: tuple[str, ...] = (".csv",)
    delimiter = ","

    def open(self, slice_: InputSlice, options: ReadOptions) -> DelimitedReader:
        return DelimitedReader(slice_, options, self.delimiter)


class Tsv(Csv):
    """Tab-separated fields, one record per row."""

    title = "TSV"
    suffixes: tuple[str, ...] = (".tsv", ".tab")
    delimiter = "\t"


CSV, TSV = Csv(), Tsv()
