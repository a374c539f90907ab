"""Documents and samples as files of Parquet and Arrow, whole or not at all."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tokenloom.adapters.arrow import DocumentRows, Rows, SampleRows
from tokenloom.errors import ConfigError, StorageError
from tokenloom.optional import require
from tokenloom.progress import Task, task
from tokenloom.storage.addresses import is_remote
from tokenloom.storage.atomic import PendingFile, hidden_path, storage_errors, sync_folder
from tokenloom.storage.publishing import OutputLock, exists_error, make_folder_of

_SUFFIXES = {".parquet": "parquet", ".pq": "parquet", ".arrow": "arrow", ".feather": "arrow"}
_OTHER_FORMATS = (".csv", ".json", ".jsonl", ".orc", ".tsv", ".txt")
_PART = re.compile(r"part-\d{5,}\.(parquet|arrow)")
_LEAST_BYTES = 1 << 10
ROW_GROUP_BYTES, PART_BYTES = 32 << 20, 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportReport:
    """What was written.

    Attributes:
        paths: the files, in the order of their rows.
        num_rows: documents or samples.
        num_tokens: their tokens, padding of samples counted.
        num_bytes: size of the files.
    """

    paths: tuple[str, ...]
    num_rows: int
    num_tokens: int
    num_bytes: int


def export_documents(
    prefix: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    tokenizer: Any = None,
    file_format: str = "parquet",
    row_group_bytes: int = ROW_GROUP_BYTES,
    part_bytes: int = PART_BYTES,
    compression: str | None = "zstd",
    overwrite: bool = False,
) -> ExportReport:
    """Writes the documents of a pair as rows, with the columns of `document_batches`; returns what was written.

    Memory: a row group and its encoded form, however large the pair is.

    Args:
        prefix: path of the pair without suffix, or its address.
        output: a file that ends in `.parquet` or `.arrow`, or a folder, which gets `part-00000.parquet` and so on.
        tokenizer: adds a column of texts: a tokenizer, or what `load_tokenizer` takes.
        file_format: of the parts of a folder: `parquet` or `arrow`.
        row_group_bytes: tokens in a row group of Parquet, or in a record batch of Arrow, in bytes.
        part_bytes: tokens in a file of a folder, in bytes.
        compression: of Parquet `zstd`, `snappy`, `gzip`, …; of Arrow `zstd` or `lz4`; None for none. Files of Arrow
            can be mapped without a copy only if they are not compressed.
        overwrite: replace what is there: a file, or a folder that holds nothing but such parts.

    Raises:
        OutputExistsError: something is there, and is not to be replaced.
        DatasetNotFoundError, DatasetFormatError, StorageError: the pair cannot be read, or the files not be written.
    """
    target = _Target(os.fspath(output), file_format, row_group_bytes, part_bytes, compression, overwrite)
    return target.write(DocumentRows(prefix, tokenizer=tokenizer))


def export_samples(
    dataset: Any,
    output: str | os.PathLike[str],
    *,
    num_samples: int | None = None,
    file_format: str = "parquet",
    row_group_bytes: int = ROW_GROUP_BYTES,
    part_bytes: int = PART_BYTES,
    compression: str | None = "zstd",
    overwrite: bool = False,
) -> ExportReport:
    """Writes the samples of a dataset, blend or run as rows, with the columns of `sample_batches`.

    Args:
        dataset: anything with `batch`, or samples of one shape; `load(…)` gives one.
        output, file_format, row_group_bytes, part_bytes, compression, overwrite: see `export_documents`.
        num_samples: how many from the first one on; None for all.

    Raises:
        OutputExistsError, StorageError: see `export_documents`.
    """
    target = _Target(os.fspath(output), file_format, row_group_bytes, part_bytes, compression, overwrite)
    return target.write(SampleRows(dataset, num_samples=num_samples))


@dataclass
class _Target:
    """Where rows go: a file, or a folder of parts."""

    output: str
    file_format: str
    row_group_bytes: int
    part_bytes: int
    compression: str | None
    overwrite: bool

    def __post_init__(self) -> None:
        if is_remote(self.output):
            message = f"expected a file or folder on this machine to export to, got `{self.output}`"
            raise ConfigError(message, hint="export to a local folder, and copy it to the bucket")
        if self.file_format not in _SUFFIXES.values():
            message = f"expected `file_format` parquet or arrow, got {self.file_format!r}"
            raise ConfigError(message)
        for name in ("row_group_bytes", "part_bytes"):
            if getattr(self, name) < _LEAST_BYTES:
                message = f"expected `{name}` of at least {_LEAST_BYTES}, got {getattr(self, name)!r}"
                raise ConfigError(message)
        self._path = self.output.rstrip("/") or self.output
        suffix = os.path.splitext(self._path)[1].lower()
        self._new, self._old = hidden_path(self._path, "export"), hidden_path(self._path, "export.old")
        self._is_file = suffix in _SUFFIXES and not self.output.endswith("/") and not os.path.isdir(self._path)
        self._format = _SUFFIXES[suffix] if self._is_file else self.file_format
        if suffix in _OTHER_FORMATS and not self.output.endswith("/"):
            message = f"expected a folder, or a file that ends in {' or '.join(_SUFFIXES)}, found `{self.output}`"
            raise ConfigError(message, hint="export to Parquet, which what reads such files can convert")
        self._check_free()

    def write(self, rows: Rows) -> ExportReport:
        """Writes all rows, while others who write there wait or fail."""
        make_folder_of(self._path)
        with task(f"export {rows.what}", unit=rows.what, total=len(rows)) as advance, OutputLock(self._path):
            self._recover()
            self._check_free()
            try:
                paths, num_tokens = self._write_files(rows, advance)
                if not self._is_file:
                    self._publish_folder()
            finally:
                self._recover()
        if not self._is_file:
            paths = [os.path.join(self._path, os.path.basename(path)) for path in paths]
        num_bytes = sum(os.path.getsize(path) for path in paths)
        return ExportReport(paths=tuple(paths), num_rows=len(rows), num_tokens=num_tokens, num_bytes=num_bytes)

    def _write_files(self, rows: Rows, advance: Task) -> tuple[list[str], int]:
        """Writes the file, or parts into a hidden folder; returns their paths, and the tokens."""
        if not self._is_file:
            with storage_errors("create", self._new):
                os.makedirs(self._new)
        most = sys.maxsize if self._is_file else self.part_bytes
        batches = rows.batches(batch_bytes=min(self.row_group_bytes, most))
        batch = next(batches, None)
        paths: list[str] = []
        num_tokens = 0
        while batch is not None or not paths:
            name = f"part-{len(paths):05}.{self._format}"
            paths.append(self._path if self._is_file else os.path.join(self._new, name))
            num_bytes = 0
            with (
                PendingFile(paths[-1]) as pending,
                storage_errors("write", paths[-1]),
                self._opened(pending, rows.schema) as writer,
            ):
                while batch is not None and (not num_bytes or num_bytes + self.row_group_bytes <= most):
                    writer.write_batch(batch)
                    num_tokens += rows.num_tokens(batch)
                    num_bytes += batch.nbytes
                    advance(len(batch))
                    batch = next(batches, None)
        return paths, num_tokens

    @contextmanager
    def _opened(self, pending: PendingFile, schema: Any) -> Iterator[Any]:
        """Opens a file; yields what writes a batch. It is ended in any case, or its end would be written later."""
        arrow = require("pyarrow", extra="parquet")
        sink = arrow.PythonFile(pending.stream, mode="w")
        try:
            if self._format == "arrow":
                options = arrow.ipc.IpcWriteOptions(compression=self.compression)
                writer = arrow.ipc.new_file(sink, schema, options=options)
            else:
                parquet = require("pyarrow.parquet", extra="parquet")
                columns = [name for name in ("file",) if name in schema.names]  # the one whose values repeat
                writer = parquet.ParquetWriter(
                    sink, schema, compression=self.compression or "none", use_dictionary=columns or False
                )
        except (arrow.ArrowException, ValueError, TypeError) as error:
            message = f"{self._format} has no compression {self.compression!r}: {error}"
            raise ConfigError(message) from error
        try:
            yield writer
        finally:
            try:
                writer.close()
            finally:
                writer.is_open = False  # of `ParquetWriter`, which would close once more what cannot be closed

    def _publish_folder(self) -> None:
        """Gives the hidden folder its name; what has it goes first, and comes back if a kill ends this in between."""
        sync_folder(self._new)
        with storage_errors("publish", self._path):
            if os.path.lexists(self._path):
                os.rename(self._path, self._old)
            os.rename(self._new, self._path)
        sync_folder(os.path.dirname(self._path) or ".")

    def _recover(self) -> None:
        """Removes what an export left, and puts back what it was replacing when it could not go on."""
        if os.path.lexists(self._old) and not os.path.lexists(self._path):
            with storage_errors("recover", self._path):
                os.rename(self._old, self._path)
        for left in (self._new, self._old):
            shutil.rmtree(left, ignore_errors=True)

    def _check_free(self) -> None:
        """Refuses to take the place of what is there, unless it is to be replaced and nothing else."""
        if not os.path.lexists(self._path):
            return
        if os.path.isdir(self._path):
            with storage_errors("list", self._path):
                names = os.listdir(self._path)
            others = [name for name in names if not _PART.fullmatch(name)]
            if others and self.overwrite:
                message = f"cannot replace the folder `{self._path}`: it holds {sorted(others)[0]!r}, which is no part"
                raise StorageError(message, hint="export to a new folder")
            if not names or self.overwrite:
                return
        elif self.overwrite and self._is_file:
            return
        raise exists_error(self._path)
