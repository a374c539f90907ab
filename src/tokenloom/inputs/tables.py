"""A table of any format as blocks of rows: what Parquet, Arrow and CSV have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from tokenloom.errors import InputError, StorageError
from tokenloom.inputs import InputSlice
from tokenloom.inputs.blocks import MAX_RECORD_BYTES
from tokenloom.inputs.formats import FORMATS
from tokenloom.inputs.parsing import ParsedBlock, Texts
from tokenloom.inputs.record_format import ReadOptions
from tokenloom.inputs.records import NumberedRecord
from tokenloom.inputs.row_sizes import row_bytes
from tokenloom.inputs.table_columns import texts_of_columns
from tokenloom.inputs.table_rows import beginning_of, rows_of
from tokenloom.inputs.table_sources import not_a_table, open_table_source
from tokenloom.optional import require

_MEASURED_ROWS = 64 << 10
"""Rows measured at once: a batch of nulls may claim any number of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableBlock:
    """Some consecutive rows of a table; a `Block`.

    Attributes:
        path: path of the file.
        first_record: number of the first row in the file, from 1.
        batches: `pyarrow.RecordBatch`es of the columns that were asked for, at least one.
        max_record_bytes: rows with more bytes of text are bad rows.
        too_long: the block is one of these.
        bad_rows: rows that cannot be read, by number; `batches` hold something else in their place.
    """

    unit: ClassVar[str] = "row"

    path: str
    first_record: int
    batches: tuple[Any, ...]
    max_record_bytes: int = MAX_RECORD_BYTES
    too_long: bool = False
    bad_rows: Mapping[int, NumberedRecord] = field(default_factory=dict)

    @property
    def num_text_bytes(self) -> int:
        """Size of the columns in memory, somewhat more than their text."""
        return sum(batch.nbytes for batch in self.batches)

    def beginning(self) -> bytes:
        """Returns the first bytes of a row as JSON."""
        return beginning_of(self.batches[0])

    def texts(self, keys: Sequence[str]) -> ParsedBlock | None:
        """Returns the columns, if they hold nothing but texts."""
        if self.too_long or self.bad_rows:
            return None
        columns = texts_of_columns(self.batches, keys, max_record_bytes=self.max_record_bytes)
        if columns is None:
            return None
        return ParsedBlock(
            columns=tuple(Texts(texts=texts, document_ends=ends) for texts, ends in columns),
            num_documents=sum(map(len, self.batches)),
        )

    def records(self, loads: Callable[[bytes], Any] | None) -> Iterator[NumberedRecord]:
        """Yields the rows."""
        rows = rows_of(self.batches, first_record=self.first_record)
        return (self.bad_rows.get(row.number, row) for row in rows)

    def halves(self) -> tuple[TableBlock, TableBlock] | None:
        """Returns the first and the last rows."""
        num_rows = sum(map(len, self.batches))
        if num_rows < 2:
            return None
        middle = num_rows // 2
        first, last = [], []
        for batch in self.batches:
            first.append(batch.slice(0, max(0, middle)))
            last.append(batch.slice(min(len(batch), max(0, middle))))
            middle -= len(batch)
        kept = replace(self, batches=tuple(batch for batch in first if len(batch)))
        rest = tuple(batch for batch in last if len(batch))
        return kept, replace(self, batches=rest, first_record=self.first_record + num_rows // 2)


class TableReader(ABC):
    """Reads a slice of a table in blocks of rows; a `SliceReader`. Not safe from several threads.

    Args:
        slice_: slice of the table.
        options: options of reading; a unit of a table is a record batch, as decoded.

    Raises:
        StorageError: the file cannot be opened.
        InputError: it is not of its format, or has no column for a key.
        MissingExtraError: `pyarrow` is not installed.
    """

    def __init__(self, slice_: InputSlice, options: ReadOptions) -> None:
        self.block_bytes: int = options.block_bytes
        self.num_text_bytes: int = 0
        self.num_rows: int = 0
        self._num_read_rows = 0
        self._bad_rows: dict[int, NumberedRecord] = {}
        self._arrow = require("pyarrow", extra="parquet")
        self._path = slice_.file.path
        self._slice = slice_
        self._max_record_bytes = options.max_record_bytes
        self._max_unit_bytes = options.max_unit_bytes
        self._source = self._open_source(slice_, options)
        try:
            with self._worded():
                self._first_record = 1 + self._open(slice_, options.keys)
        except BaseException:
            self._source.close()
            raise

    @property
    def num_bytes(self) -> int:
        """Size of the slice; of a file that is never cut, its size, 0 where nobody knows (a pipe)."""
        return self._slice.file.num_bytes

    @property
    @abstractmethod
    def position(self) -> int:
        """Bytes of the slice read so far."""

    def _open_source(self, slice_: InputSlice, options: ReadOptions) -> Any:
        """Returns what `pyarrow` reads the slice from."""
        return open_table_source(slice_.file)

    @abstractmethod
    def _open(self, slice_: InputSlice, keys: Sequence[str] | None) -> int:
        """Opens the table; returns the number of rows before the slice."""

    @abstractmethod
    def _batches(self) -> Iterator[Any]:
        """Yields record batches; adds to `_bad_rows` before it yields what stands for a bad row."""

    def close(self) -> None:
        """Closes the file."""
        self._source.close()

    def blocks(self) -> Iterator[TableBlock]:
        """Yields the blocks, in order.

        Raises:
            InputError: the data is damaged.
            StorageError: reading failed.
        """
        batches = self._batches()
        pending: list[Any] = []
        num_pending_bytes = 0
        while True:
            with self._worded():
                batch = next(batches, None)
            if batch is None:
                break
            self._check_size(batch)
            self._num_read_rows += len(batch)
            for piece, num_bytes in self._pieces(batch):
                is_too_long = len(piece) == 1 and num_bytes > self._max_record_bytes
                if pending and (is_too_long or num_pending_bytes + num_bytes > self.block_bytes):
                    yield self._block(pending)
                    pending, num_pending_bytes = [], 0
                if is_too_long:
                    yield self._block([piece], too_long=True)
                    continue
                pending.append(piece)
                num_pending_bytes += num_bytes
            del batch
        if pending:
            yield self._block(pending)

    def _check_size(self, batch: Any) -> None:
        """Refuses a decoded batch that takes too much memory."""
        if batch.nbytes > self._max_unit_bytes:
            row = self._first_record + self._num_read_rows
            message = f"`{self._path}` row {row}: a batch takes {batch.nbytes} bytes, more than {self._max_unit_bytes}"
            raise InputError(message, hint="write smaller batches or row groups, or allow more with `memory_bytes`")

    def _pieces(self, batch: Any) -> Iterator[tuple[Any, int]]:
        """Yields views of the rows of a batch, of a block at most or a single row, each with its bytes as text."""
        for first in range(0, len(batch), _MEASURED_ROWS):
            rows = batch.slice(first, _MEASURED_ROWS)
            with self._worded():
                ends = np.cumsum(row_bytes(rows))
            start = before = 0
            while start < len(rows):
                most = before + min(self.block_bytes, self._max_record_bytes)
                stop = max(start + 1, int(np.searchsorted(ends, most, side="right")))
                yield rows.slice(start, stop - start), int(ends[stop - 1]) - before
                start, before = stop, int(ends[stop - 1])

    def _block(self, batches: list[Any], *, too_long: bool = False) -> TableBlock:
        stop = self._first_record + self.num_rows + sum(map(len, batches))
        block = TableBlock(
            path=self._path,
            first_record=self._first_record + self.num_rows,
            batches=tuple(batches),
            max_record_bytes=self._max_record_bytes,
            too_long=too_long,
            bad_rows={number: self._bad_rows.pop(number) for number in list(self._bad_rows) if number < stop},
        )
        self.num_rows += sum(map(len, batches))
        self.num_text_bytes += block.num_text_bytes
        return block

    @contextmanager
    def _worded(self) -> Iterator[None]:
        """Turns what `pyarrow` raises into our errors."""
        try:
            yield
        except (StorageError, InputError):
            raise
        except (self._arrow.ArrowException, OSError, EOFError, UnicodeDecodeError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                message = f"cannot read `{self._path}`: {error.strerror or error}"
                raise StorageError(message) from error
            kind = FORMATS[self._slice.file.format].title
            if not hasattr(self, "_first_record"):
                raise not_a_table(self._slice.file, error) from error
            row = self._first_record + self._num_read_rows
            message = f"`{self._path}` row {row} or later: the {kind} data is damaged: {error}"
            raise InputError(message) from error
