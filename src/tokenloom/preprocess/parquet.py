"""Parquet files as blocks of rows; the only module that imports `pyarrow`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tokenloom.errors import InputError
from tokenloom.optional import require
from tokenloom.storage.atomic import storage_errors

_ROWS = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class RowBlock:
    """Some consecutive rows: dicts of columns to values, and the number of the first row, from 1."""

    rows: list[dict[str, Any]]
    first_row: int


class ParquetReader:
    """Reads a file from beginning to end in blocks of rows. Memory: one row group. Not safe from several threads.

    Raises:
        StorageError: the file cannot be opened.
        InputError: it is not a Parquet file.
        MissingExtraError: `pyarrow` is not installed.
    """

    def __init__(self, path: str) -> None:
        self._arrow = require("pyarrow", extra="parquet")
        parquet = require("pyarrow.parquet", extra="parquet")
        self.path = path
        with storage_errors("open", path):
            self.num_file_bytes = os.stat(path).st_size
            try:
                self._file = parquet.ParquetFile(path)
            except self._arrow.ArrowInvalid as error:
                message = f"`{path}` is not a Parquet file: {error}"
                raise InputError(message) from error
        self._num_rows: int = self._file.metadata.num_rows
        self._done = 0

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    @property
    def position(self) -> int:
        """Bytes of the file read so far, in proportion to its rows."""
        return self.num_file_bytes * self._done // max(self._num_rows, 1)

    def blocks(self) -> Iterator[RowBlock]:
        """Yields the blocks, in order.

        Raises:
            InputError: the data is damaged.
        """
        batches = self._file.iter_batches(batch_size=_ROWS)
        while True:
            try:
                batch = next(batches, None)
            except (self._arrow.ArrowException, OSError) as error:
                message = f"`{self.path}` row {self._done + 1}: the Parquet data is damaged: {error}"
                raise InputError(message) from error
            if batch is None:
                return
            yield RowBlock(rows=batch.to_pylist(), first_row=self._done + 1)
            self._done += len(batch)
