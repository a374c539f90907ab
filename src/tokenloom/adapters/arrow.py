"""Documents and samples as Arrow record batches, and as Parquet or Arrow files."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.datasets.shortcuts import batch_of
from tokenloom.errors import ConfigError, StorageError
from tokenloom.indexed.columns import has_column
from tokenloom.indexed.dataset import IndexedDataset, mapped_bytes
from tokenloom.indexed.manifests import manifest_document, manifest_of
from tokenloom.indexed.origins import read_origins
from tokenloom.indexed.roles import NAME, read_roles
from tokenloom.numbers import checked_integer
from tokenloom.optional import require
from tokenloom.progress import Task, task
from tokenloom.storage.addresses import is_remote
from tokenloom.storage.atomic import PendingFile, hidden_path, storage_errors, sync_folder
from tokenloom.storage.publishing import OutputLock, exists_error, make_folder_of
from tokenloom.tokenizers.load import load_tokenizer

_EXTRA = "parquet"
_BATCH_BYTES = 32 << 20
_MAX_ROWS = 1 << 16
_MAX_TOKENS = (1 << 31) - 1
"""Maximum tokens of a record batch, because the offsets of Arrow lists are int32."""

_IDS = ("input_ids", "tokens", "labels", "position_ids")
_NOT_EXPORTED = ("attention_mask",)  # sequence_length**2 values, which follow from positions and boundaries


class DocumentRows:
    """The documents of a pair as Arrow rows, see `document_batches`. Thread-safe."""

    unit: str = "documents"
    tokens_column: str = "tokens"

    def __init__(self, prefix: str | os.PathLike[str], *, tokenizer: Any = None) -> None:
        self._arrow = require("pyarrow", extra=_EXTRA)
        self._pair = IndexedDataset(prefix)
        self._origins = read_origins(self._pair)
        self._roles = read_roles(self._pair) if has_column(self._pair, NAME) else None
        self._tokenizer = load_tokenizer(tokenizer) if isinstance(tokenizer, (str, os.PathLike)) else tokenizer
        bounds = self._pair.document_indices
        self._has_sequences = len(self._pair) != len(bounds) - 1 or bool((np.diff(bounds) != 1).any())
        manifest = manifest_of(self._pair)
        metadata = {"rows": self.unit, "manifest": None if manifest is None else manifest_document(manifest)}
        self.schema: Any = _schema(self._arrow, self._columns(0, 0, np.zeros(1, dtype=np.int64)), metadata)

    def __len__(self) -> int:
        return len(self._pair.document_indices) - 1

    def batches(self, *, batch_bytes: int) -> Iterator[Any]:
        max_tokens = min(max(1, batch_bytes // self._pair.dtype.itemsize), _MAX_TOKENS)
        for first in range(0, len(self), _MAX_ROWS):
            last = min(first + _MAX_ROWS, len(self))
            ends = self._token_ends(first, last)
            start = 0
            while start < last - first:
                stop = max(start + 1, int(np.searchsorted(ends, ends[start] + max_tokens, side="right")) - 1)
                yield self._batch(first + start, first + stop, ends[start : stop + 1] - ends[start])
                start = stop

    def table(self, first: int, last: int) -> Any:
        """Returns documents [first, last) as a `pyarrow.Table`."""
        return self._arrow.Table.from_batches([self._batch(first, last, self._token_ends(first, last))])

    def _token_ends(self, first: int, last: int) -> NDArray[np.int64]:
        """Returns int64[last - first + 1]: 0, then the cumulative token counts of documents [first, last)."""
        bounds = self._pair.document_indices[first : last + 1]
        sums = np.append(0, np.cumsum(self._pair.sequence_lengths[bounds[0] : bounds[-1]], dtype=np.int64))
        ends: NDArray[np.int64] = sums[bounds - bounds[0]]
        return ends

    def _batch(self, first: int, last: int, ends: NDArray[np.int64]) -> Any:
        if ends[-1] > _MAX_TOKENS:
            where = f"`{self._pair.path_prefix}`: document {first}"
            raise ConfigError(f"{where}: must have at most {_MAX_TOKENS} tokens, got {ends[-1]}")
        columns = self._columns(first, last, ends)
        return self._arrow.RecordBatch.from_arrays(list(columns.values()), schema=self.schema)

    def _columns(self, first: int, last: int, ends: NDArray[np.int64]) -> dict[str, Any]:
        arrow = self._arrow
        bounds = self._pair.document_indices[first : last + 1]
        values = self._values(int(bounds[0]), int(bounds[-1]))
        columns = {"document": arrow.array(np.arange(first, last)), "tokens": _lists(arrow, ends, values)}
        if self._has_sequences:
            lengths = np.array(self._pair.sequence_lengths[bounds[0] : bounds[-1]])
            columns["sequence_lengths"] = _lists(arrow, bounds - bounds[0], lengths)
        if self._roles is not None:
            documents = itertools.pairwise(bounds.tolist())
            parts = [[part for row in range(*rows) for part in self._roles.of(row)] for rows in documents]
            places = np.cumsum([0, *map(len, parts)])
            stops = np.array([stop for each in parts for _, stop, _ in each], dtype=np.int32)
            kinds = np.array([kind for each in parts for _, _, kind in each], dtype=np.uint8)
            columns |= {"part_stops": _lists(arrow, places, stops), "part_kinds": _lists(arrow, places, kinds)}
        if self._origins is not None:
            files, records = self._origins.locate(np.arange(first, last))
            paths = arrow.array([file.path for file in self._origins.files], arrow.string())
            names = arrow.DictionaryArray.from_arrays(arrow.array(files, mask=files < 0), paths)
            columns |= {"file": names.dictionary_decode(), "record": arrow.array(records, mask=files < 0)}
        if self._tokenizer is not None:
            ids = [values[start:stop].tolist() for start, stop in itertools.pairwise(ends)]
            columns["text"] = arrow.array([self._tokenizer.detokenize(each) for each in ids], arrow.string())
        return columns

    def _values(self, first: int, last: int) -> NDArray[Any]:
        """Returns the tokens of sequences [first, last), as a view if the sequences are contiguous in a mapped file."""
        pair = self._pair
        pointers, lengths = pair.index.sequence_pointers[first:last], pair.sequence_lengths[first:last]
        mapped, itemsize = mapped_bytes(pair.byte_source), pair.dtype.itemsize
        if mapped is not None and len(lengths):
            begin, num_bytes = int(pointers[0]), int(lengths.sum(dtype=np.int64)) * itemsize
            is_contiguous = bool((np.diff(pointers) == lengths[:-1].astype(np.int64) * itemsize).all())
            if is_contiguous and begin % itemsize == 0 and 0 <= begin <= len(mapped) - num_bytes:
                pair.check_tokens(begin, num_bytes)
                return mapped[begin : begin + num_bytes].view(pair.dtype)
        return pair.gather(np.arange(first, last), np.zeros(last - first, np.int64), lengths.astype(np.int64))


class SampleRows:
    """The samples of a dataset, blend or run as Arrow rows, see `sample_batches`."""

    unit: str = "samples"
    tokens_column: str = "input_ids"

    def __init__(self, dataset: Any, *, num_samples: int | None = None) -> None:
        self._arrow = require("pyarrow", extra=_EXTRA)
        self._dataset = dataset
        self._num_rows = len(dataset) if num_samples is None else min(num_samples, len(dataset))
        if self._num_rows < 1:
            raise ConfigError(f"no samples to export: the dataset has {len(dataset)} samples")
        first = self._columns(0, 1)
        self._row_bytes = max(1, sum(array.nbytes for array in first.values()))
        metadata = {"rows": self.unit, "labels": "of the next token: shifted already", "left_out": list(_NOT_EXPORTED)}
        self.schema: Any = _schema(self._arrow, first, metadata)

    def __len__(self) -> int:
        return self._num_rows

    def batches(self, *, batch_bytes: int) -> Iterator[Any]:
        step = max(1, batch_bytes // self._row_bytes)
        for first in range(0, self._num_rows, step):
            columns = self._columns(first, min(first + step, self._num_rows))
            yield self._arrow.RecordBatch.from_arrays([columns[name] for name in self.schema.names], schema=self.schema)

    def _columns(self, first: int, last: int) -> dict[str, Any]:
        arrays = named_samples(self._dataset, np.arange(first, last))
        return {name: self._column(array) for name, array in arrays.items()}

    def _column(self, array: NDArray[Any]) -> Any:
        flat = self._arrow.array(np.ascontiguousarray(array).reshape(-1))
        return flat if array.ndim == 1 else self._arrow.FixedSizeListArray.from_arrays(flat, array[0].size)


Rows = DocumentRows | SampleRows


def document_batches(prefix: str | os.PathLike[str], *, tokenizer: Any = None, batch_bytes: int = _BATCH_BYTES) -> Any:
    """Returns a `pyarrow.RecordBatchReader` over the documents of a pair, in order.

    Columns: `document`, the document index; `tokens`, a list of ids in the pair's dtype; `sequence_lengths` if some
    document does not have exactly one sequence; `part_stops` and `part_kinds` if the pair has roles (see `PartKind`);
    `file` and `record`, which name the input record, if the pair has origins; `text` if a tokenizer is given. Tokens
    are views of the mapped file if the pair's sequences are contiguous, as after `preprocess` and `merge`.

    Example:
        >>> import tempfile
        >>> from tokenloom import IndexedDatasetBuilder
        >>> prefix = f"{tempfile.mkdtemp()}/corpus"
        >>> with IndexedDatasetBuilder(f"{prefix}.bin") as builder:
        ...     builder.add_document([5, 6, 7], [3])
        ...     builder.add_document([8], [1])
        ...     builder.finalize(f"{prefix}.idx")
        >>> document_batches(prefix).read_all().to_pydict()
        {'document': [0, 1], 'tokens': [[5, 6, 7], [8]]}

    Args:
        prefix: path or address of the pair, without suffix.
        tokenizer: tokenizer for the column `text`: an object, or a path or name for `load_tokenizer`; None: no column.
        batch_bytes: maximum bytes of tokens in a batch; a larger document gets a batch of its own.
    """
    return _reader(DocumentRows(prefix, tokenizer=tokenizer), batch_bytes)


def sample_batches(dataset: Any, *, num_samples: int | None = None, batch_bytes: int = _BATCH_BYTES) -> Any:
    """Returns a `pyarrow.RecordBatchReader` over the samples of a dataset, blend or run, in order.

    Columns: `sample`, the position; `input_ids`, `labels`, `loss_mask` and `position_ids` as lists of fixed size. Token
    and position ids are int32. There is no attention mask. **Labels are already shifted by one token**: do not pass
    them to Hugging Face models, which shift labels themselves.

    Args:
        dataset: a dataset with the method `batch`, or with samples of equal shapes.
        num_samples: number of samples to read, from sample 0 on; None for all samples.
        batch_bytes: approximate size of a batch, in bytes.
    """
    return _reader(SampleRows(dataset, num_samples=num_samples), batch_bytes)


def named_samples(dataset: Any, positions: NDArray[np.integer[Any]]) -> dict[str, NDArray[Any]]:
    """Returns the columns of `sample_batches` for the samples at `positions`, as {name: NumPy array}."""
    batch = {name: array for name, array in batch_of(dataset, positions).items() if name not in _NOT_EXPORTED}
    arrays = {"input_ids" if name == "tokens" else name: narrow(name, array) for name, array in batch.items()}
    return {"sample": positions, **arrays}


def narrow(name: str, array: Any) -> NDArray[Any]:
    """Returns `array` as int32 if the column `name` has int64 token ids or position ids, else unchanged."""
    values = np.asarray(array)
    return values.astype(np.int32) if name in _IDS and values.dtype == np.int64 else values


def _reader(rows: Rows, batch_bytes: int) -> Any:
    arrow = require("pyarrow", extra=_EXTRA)
    return arrow.RecordBatchReader.from_batches(rows.schema, rows.batches(batch_bytes=batch_bytes))


def _schema(arrow: Any, columns: Mapping[str, Any], metadata: Mapping[str, Any]) -> Any:
    fields = [(name, column.type) for name, column in columns.items()]
    return arrow.schema(fields, metadata={b"tokenloom": json.dumps(metadata).encode()})


def _lists(arrow: Any, ends: NDArray[np.int64], values: NDArray[Any]) -> Any:
    """Returns an Arrow list array over flat values, without a copy; list i is `values[ends[i]:ends[i + 1]]`."""
    kind = arrow.from_numpy_dtype(values.dtype)
    flat = arrow.Array.from_buffers(kind, len(values), [None, arrow.py_buffer(np.ascontiguousarray(values))])
    return arrow.ListArray.from_arrays(arrow.array(ends.astype(np.int32)), flat)


_SUFFIXES = {".parquet": "parquet", ".pq": "parquet", ".arrow": "arrow", ".feather": "arrow"}
_OTHER_FORMATS = (".csv", ".json", ".jsonl", ".orc", ".tsv", ".txt")
_PART = re.compile(r"part-\d{5,}\.(parquet|arrow)")
_MIN_BYTES = 1 << 10
ROW_GROUP_BYTES, PART_BYTES = 32 << 20, 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportReport:
    """The result of an export: file paths in row order, and counts of rows, tokens (with padding) and file bytes."""

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
    """Exports the documents of a pair to Parquet or Arrow files; needs memory for one row group.

    Args:
        prefix, tokenizer: see `document_batches`, which also describes the columns.
        output: a `.parquet` or `.arrow` file, or a folder for the files `part-00000.parquet` and so on.
        file_format: format of the parts in a folder: `parquet` or `arrow`.
        row_group_bytes: maximum bytes of tokens in a row group (Parquet) or record batch (Arrow).
        part_bytes: maximum bytes of tokens in one part file of a folder.
        compression: codec: for Parquet `zstd`, `snappy`, `gzip`, …; for Arrow `zstd` or `lz4`; None for no compression.
            Only uncompressed Arrow files can be memory-mapped without a copy.
        overwrite: whether to replace an existing file, or a folder that contains only parts of an export.

    Raises:
        OutputExistsError: the output exists, and `overwrite` is False.
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
    """Exports the samples of a dataset, blend or run to Parquet or Arrow files.

    Args:
        dataset, num_samples: see `sample_batches`, which also describes the columns.
        output, file_format, row_group_bytes, part_bytes, compression, overwrite: see `export_documents`.
    """
    target = _Target(os.fspath(output), file_format, row_group_bytes, part_bytes, compression, overwrite)
    return target.write(SampleRows(dataset, num_samples=num_samples))


@dataclass
class _Target:
    """The output of an export: a file, or a folder of parts."""

    output: str
    file_format: str
    row_group_bytes: int
    part_bytes: int
    compression: str | None
    overwrite: bool

    def __post_init__(self) -> None:
        if is_remote(self.output):
            hint = "export to a local folder, and copy it to the bucket"
            raise ConfigError(f"`output`: must be a local path, got {self.output!r}", hint=hint)
        if self.file_format not in _SUFFIXES.values():
            raise ConfigError(f"`file_format`: must be 'parquet' or 'arrow', got {self.file_format!r}")
        checked_integer("`row_group_bytes`", self.row_group_bytes, at_least=_MIN_BYTES)
        checked_integer("`part_bytes`", self.part_bytes, at_least=_MIN_BYTES)
        self._path = self.output.rstrip("/") or self.output
        suffix = os.path.splitext(self._path)[1].lower()
        self._new, self._old = hidden_path(self._path, "export"), hidden_path(self._path, "export.old")
        self._is_file = suffix in _SUFFIXES and not self.output.endswith("/") and not os.path.isdir(self._path)
        self._format = _SUFFIXES[suffix] if self._is_file else self.file_format
        if suffix in _OTHER_FORMATS and not self.output.endswith("/"):
            message = f"`output`: must be a folder, or end with {' or '.join(_SUFFIXES)}, got {self.output!r}"
            raise ConfigError(message, hint="export to Parquet, and convert the Parquet file")

    def write(self, rows: Rows) -> ExportReport:
        """Writes all rows while holding the output lock."""
        make_folder_of(self._path)
        with task(f"export {rows.unit}", unit=rows.unit, total=len(rows)) as advance, OutputLock(self._path):
            self._recover()
            self._check_free()
            try:
                paths, num_tokens = self._write_files(rows, advance)
                if not self._is_file:  # if killed between the renames, the next export restores the old folder
                    sync_folder(self._new)
                    with storage_errors("publish", self._path):
                        if os.path.lexists(self._path):
                            os.rename(self._path, self._old)
                        os.rename(self._new, self._path)
                    sync_folder(os.path.dirname(self._path) or ".")
                    paths = [os.path.join(self._path, os.path.basename(path)) for path in paths]
            finally:
                self._recover()
        num_bytes = sum(os.path.getsize(path) for path in paths)
        return ExportReport(paths=tuple(paths), num_rows=len(rows), num_tokens=num_tokens, num_bytes=num_bytes)

    def _write_files(self, rows: Rows, advance: Task) -> tuple[list[str], int]:
        """Writes the file, or parts in a hidden folder; returns the paths and the number of tokens."""
        if not self._is_file:
            with storage_errors("create", self._new):
                os.makedirs(self._new)
        max_bytes = sys.maxsize if self._is_file else self.part_bytes
        batches = rows.batches(batch_bytes=min(self.row_group_bytes, max_bytes))
        batch = next(batches, None)
        paths: list[str] = []
        num_tokens = 0
        while batch is not None or not paths:
            path = self._path if self._is_file else f"{self._new}/part-{len(paths):05}.{self._format}"
            paths.append(path)
            num_bytes = 0
            with PendingFile(path) as file, storage_errors("write", path), self._opened(file, rows.schema) as writer:
                while batch is not None and (not num_bytes or num_bytes + self.row_group_bytes <= max_bytes):
                    writer.write_batch(batch)
                    if rows.tokens_column in batch.schema.names:
                        num_tokens += len(batch.column(rows.tokens_column).flatten())
                    num_bytes += batch.nbytes
                    advance(len(batch))
                    batch = next(batches, None)
        return paths, num_tokens

    @contextmanager
    def _opened(self, pending: PendingFile, schema: Any) -> Iterator[Any]:
        """Yields a writer of record batches; closes the writer even on error, so that no footer is written later."""
        arrow = require("pyarrow", extra="parquet")
        sink = arrow.PythonFile(pending.stream, mode="w")
        try:
            if self._format == "arrow":
                options = arrow.ipc.IpcWriteOptions(compression=self.compression)
                writer = arrow.ipc.new_file(sink, schema, options=options)
            else:
                columns = ["file"] if "file" in schema.names else False  # the only column whose values repeat
                writer = require("pyarrow.parquet", extra="parquet").ParquetWriter(
                    sink, schema, compression=self.compression or "none", use_dictionary=columns
                )
        except (arrow.ArrowException, ValueError, TypeError) as error:
            message = f"`compression`: {self._format} does not support {self.compression!r}: {error}"
            raise ConfigError(message) from error
        try:
            yield writer
        finally:
            try:
                writer.close()
            finally:
                writer.is_open = False  # else `ParquetWriter` closes a broken file a second time

    def _recover(self) -> None:
        """Removes the hidden folders of a killed export; restores the folder that the export was replacing."""
        if os.path.lexists(self._old) and not os.path.lexists(self._path):
            with storage_errors("recover", self._path):
                os.rename(self._old, self._path)
        for folder in (self._new, self._old):
            shutil.rmtree(folder, ignore_errors=True)

    def _check_free(self) -> None:
        """Raises if the output exists and may not be overwritten."""
        if os.path.isdir(self._path):
            with storage_errors("list", self._path):
                names = os.listdir(self._path)
            others = sorted(name for name in names if not _PART.fullmatch(name))
            if others and self.overwrite:
                message = f"cannot overwrite `{self._path}`: the folder has {others[0]!r}, which no export wrote"
                raise StorageError(message, hint="export to a new folder")
            is_free = self.overwrite or not names
        else:
            is_free = not os.path.lexists(self._path) or (self.overwrite and self._is_file)
        if not is_free:
            raise exists_error(self._path)
