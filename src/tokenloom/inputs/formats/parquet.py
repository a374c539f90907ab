"""Reads Parquet files page by page; cuts them between row groups."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tokenloom.errors import StorageError
from tokenloom.inputs import InputFile, InputSlice
from tokenloom.inputs.record_format import ReadOptions, RecordFormat
from tokenloom.inputs.tables import TableReader, columns_of, not_a_table, open_table_source
from tokenloom.optional import require
from tokenloom.storage.addresses import is_remote

_READ_BYTES = 1 << 20
"""Bytes of a column chunk to read at once; by default, `pyarrow` reads whole chunks, up to the whole file."""
_REMOTE_READ_BYTES = 4 << 20
_BATCH_BYTES = 256 << 10
"""Target size of a decoded batch, estimated from the mean row size of a row group. A quarter of this size would take
20 % more time and save no memory, since pages are decoded whole."""
_MOST_BATCH_ROWS = 4096


class ParquetReader(TableReader):
    """A reader of row groups of a Parquet file.

    Memory: some pages of each column plus two blocks, never a whole row group. A single row group with 710 MB of text
    took 180 MB of memory, 72 MB of it for the libraries. The mean row size decides the number of rows in a batch, so a
    few very long rows in a row group take more: 420 MB for 200,000 short rows followed by 200 rows of 1 MiB.
    """

    def _open(self, slice_: InputSlice, keys: Sequence[str] | None) -> int:
        parquet = require("pyarrow.parquet", extra="parquet")
        self._file = parquet.ParquetFile(
            self._source,
            pre_buffer=False,
            buffer_size=_REMOTE_READ_BYTES if is_remote(self._path) else _READ_BYTES,
            page_checksum_verification=True,
        )
        self._names = None if keys is None else columns_of(self._file.schema_arrow, keys, self._path)
        metadata = self._file.metadata
        groups = [metadata.row_group(number) for number in range(slice_.start, slice_.stop)]
        self.num_bytes: int = sum(column.total_compressed_size for group in groups for column in _columns(group))
        self._num_slice_rows: int = sum(group.num_rows for group in groups)
        return sum(int(metadata.row_group(number).num_rows) for number in range(slice_.start))

    @property
    def position(self) -> int:
        return self.num_bytes * self.num_rows // max(self._num_slice_rows, 1)

    def _batches(self) -> Iterator[Any]:
        for number in range(self._slice.start, self._slice.stop):
            group = self._file.metadata.row_group(number)
            columns = [column for column in _columns(group) if self._is_read(column.path_in_schema)]
            num_bytes = sum(column.total_uncompressed_size for column in columns)
            batch_rows = max(1, min(_MOST_BATCH_ROWS, group.num_rows * _BATCH_BYTES // max(num_bytes, 1)))
            yield from self._file.iter_batches(
                batch_size=batch_rows, row_groups=[number], columns=self._names, use_threads=False
            )

    def _is_read(self, path: str) -> bool:
        """Returns whether the column at a `pyarrow` path is requested, itself or as a field of a requested struct."""
        return self._names is None or any(path == name or path.startswith(f"{name}.") for name in self._names)


def _columns(group: Any) -> list[Any]:
    return [group.column(number) for number in range(group.num_columns)]


class ParquetFormat(RecordFormat):
    """The Parquet format; files are cut between row groups."""

    title = "Parquet"
    suffixes: tuple[str, ...] = (".parquet", ".pq")
    magics: tuple[bytes, ...] = (b"PAR1",)
    compresses_inside = True
    begins_at_the_end = True

    def unit_bytes(self, file: InputFile) -> list[int]:
        """Returns the decoded size in bytes of each row group, as the footer states it; see `RecordFormat`."""
        arrow = require("pyarrow", extra="parquet")
        parquet = require("pyarrow.parquet", extra="parquet")
        with open_table_source(file) as source:
            try:
                metadata = parquet.read_metadata(source)
            except StorageError:
                raise
            except (arrow.ArrowException, OSError) as error:
                raise not_a_table(file, error) from error
            return [metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups)]

    def open(self, slice_: InputSlice, options: ReadOptions) -> ParquetReader:
        return ParquetReader(slice_, options)


PARQUET = ParquetFormat()
