"""Documents and samples as Arrow, without copies of mapped tokens where possible, and as files."""

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
_MOST_ROWS = 1 << 16
_MOST_TOKENS = (1 << 31) - 1
"""Offsets of Arrow's lists are int32."""

_IDS = ("input_ids", "tokens", "labels", "position_ids")
_NOT_EXPORTED = ("attention_mask",)  # dense, sequence length squared; position ids and boundaries say the same


class DocumentRows:
    """The documents of a pair as rows; see `document_batches`. Thread-safe."""

    what = "documents"

    def __init__(self, prefix: str | os.PathLike[str], *, tokenizer: Any = None) -> None:
        self._arrow = require("pyarrow", extra=_EXTRA)
        self._pair = IndexedDataset(prefix)
        self._origins = read_origins(self._pair)
        self._roles = read_roles(self._pair) if has_column(self._pair, NAME) else None
        self._tokenizer = load_tokenizer(tokenizer) if isinstance(tokenizer, (str, os.PathLike)) else tokenizer
        bounds = self._pair.document_indices
        self._has_sequences = len(self._pair) != len(bounds) - 1 or bool((np.diff(bounds) != 1).any())
        manifest = manifest_of(self._pair)
        said = {"rows": self.what, "manifest": None if manifest is None else manifest_document(manifest)}
        self.schema: Any = _schema(self._arrow, self._columns(0, 0, np.zeros(1, dtype=np.int64)), said)

    def __len__(self) -> int:
        return len(self._pair.document_indices) - 1

    def num_tokens(self, batch: Any) -> int:
        return len(batch.column("tokens").flatten())

    def batches(self, *, batch_bytes: int) -> Iterator[Any]:
        most = min(max(1, batch_bytes // self._pair.dtype.itemsize), _MOST_TOKENS)
        for first in range(0, len(self), _MOST_ROWS):
            last = min(first + _MOST_ROWS, len(self))
            ends = self._token_ends(first, last)
            start = 0
            while start < last - first:
                stop = max(start + 1, int(np.searchsorted(ends, ends[start] + most, side="right")) - 1)
                yield self._batch(first + start, first + stop, ends[start : stop + 1] - ends[start])
                start = stop

    def table(self, first: int, last: int) -> Any:
        """Returns documents [first, last) as a `pyarrow.Table`."""
        return self._arrow.Table.from_batches([self._batch(first, last, self._token_ends(first, last))])

    def _token_ends(self, first: int, last: int) -> NDArray[np.int64]:
        """Returns the cumulative tokens of documents [first, last): int64[last - first + 1], from 0."""
        bounds = self._pair.document_indices[first : last + 1]
        ends = np.append(0, np.cumsum(self._pair.sequence_lengths[bounds[0] : bounds[-1]], dtype=np.int64))
        before: NDArray[np.int64] = ends[bounds - bounds[0]]
        return before

    def _batch(self, first: int, last: int, ends: NDArray[np.int64]) -> Any:
        if ends[-1] > _MOST_TOKENS:
            message = f"document {first} of `{self._pair.path_prefix}` has {ends[-1]} tokens: more than {_MOST_TOKENS}"
            raise ConfigError(message)
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
        """Returns the tokens of sequences [first, last) back to back, as a view of the mapping if they lie so."""
        pair = self._pair
        pointers, lengths = pair.index.sequence_pointers[first:last], pair.sequence_lengths[first:last]
        mapped, itemsize = mapped_bytes(pair.byte_source), pair.dtype.itemsize
        if mapped is not None and len(lengths):
            begin, num_bytes = int(pointers[0]), int(lengths.sum(dtype=np.int64)) * itemsize
            in_a_row = bool((np.diff(pointers) == lengths[:-1].astype(np.int64) * itemsize).all())
            if in_a_row and begin % itemsize == 0 and 0 <= begin <= len(mapped) - num_bytes:
                pair.check_tokens(begin, num_bytes)
                return mapped[begin : begin + num_bytes].view(pair.dtype)
        return pair.gather(np.arange(first, last), np.zeros(last - first, np.int64), lengths.astype(np.int64))


class SampleRows:
    """The samples of a dataset, blend or run as rows; see `sample_batches`."""

    what = "samples"

    def __init__(self, dataset: Any, *, num_samples: int | None = None) -> None:
        self._arrow = require("pyarrow", extra=_EXTRA)
        self._dataset = dataset
        self._num_rows = len(dataset) if num_samples is None else min(num_samples, len(dataset))
        if self._num_rows < 1:
            raise ConfigError(f"no samples to write: the dataset has {len(dataset)}")
        first = self._columns(0, 1)
        self._row_bytes = max(1, sum(array.nbytes for array in first.values()))
        said = {"rows": self.what, "labels": "of the next token: shifted already", "left_out": list(_NOT_EXPORTED)}
        self.schema: Any = _schema(self._arrow, first, said)

    def __len__(self) -> int:
        return self._num_rows

    def num_tokens(self, batch: Any) -> int:
        """Returns the tokens of a batch, padding included."""
        return len(batch.column("input_ids").flatten()) if "input_ids" in batch.schema.names else 0

    def batches(self, *, batch_bytes: int) -> Iterator[Any]:
        step = max(1, batch_bytes // self._row_bytes)
        for first in range(0, self._num_rows, step):
            columns = self._columns(first, min(first + step, self._num_rows))
            yield self._arrow.RecordBatch.from_arrays([columns[name] for name in self.schema.names], schema=self.schema)

    def _columns(self, first: int, last: int) -> dict[str, Any]:
        positions = np.arange(first, last)
        arrays = {"sample": positions, **named_samples(self._dataset, positions)}
        return {name: self._column(array) for name, array in arrays.items()}

    def _column(self, array: NDArray[Any]) -> Any:
        flat = self._arrow.array(np.ascontiguousarray(array).reshape(-1))
        return flat if array.ndim == 1 else self._arrow.FixedSizeListArray.from_arrays(flat, array[0].size)


Rows = DocumentRows | SampleRows


def document_batches(prefix: str | os.PathLike[str], *, tokenizer: Any = None, batch_bytes: int = _BATCH_BYTES) -> Any:
    """Returns a `pyarrow.RecordBatchReader` over the documents of a pair, in order.

    Columns: `document`, its number; `tokens`, a list of the pair's dtype, a view of the mapped file if sequences are
    contiguous there (after `preprocess` and `merge` they are); `sequence_lengths` if a document is not one sequence;
    `part_stops` and `part_kinds` with roles (see `PartKind`); `file` and `record` with origins; `text` with a
    tokenizer.

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
        prefix: path of the pair without suffix, or its address.
        tokenizer: adds the texts; a tokenizer, or an argument of `load_tokenizer`.
        batch_bytes: most bytes of tokens in a batch, unless one document has more.
    """
    return _reader(DocumentRows(prefix, tokenizer=tokenizer), batch_bytes)


def sample_batches(dataset: Any, *, num_samples: int | None = None, batch_bytes: int = _BATCH_BYTES) -> Any:
    """Returns a `pyarrow.RecordBatchReader` over the samples of a dataset, blend or run, by position.

    Columns: `sample`, its position; `input_ids` and the other arrays of `dataset.batch` (`labels`, `loss_mask`,
    `position_ids`) in lists of fixed size, ids as int32; no dense attention mask. **Labels are those of the next
    token**: do not give them to models of Hugging Face, which shift labels themselves.

    Args:
        dataset: anything with `batch`, or samples of one shape.
        num_samples: the first so many; None for all.
        batch_bytes: approximate bytes of a batch.
    """
    return _reader(SampleRows(dataset, num_samples=num_samples), batch_bytes)


def named_samples(dataset: Any, positions: NDArray[np.integer[Any]]) -> dict[str, NDArray[Any]]:
    """Returns samples as arrays under Hugging Face's names, ids and positions as int32."""
    batch = {name: array for name, array in batch_of(dataset, positions).items() if name not in _NOT_EXPORTED}
    return {"input_ids" if name == "tokens" else name: narrow(name, array) for name, array in batch.items()}


def narrow(name: str, array: Any) -> NDArray[Any]:
    """Returns ids and positions as int32, other arrays unchanged."""
    found = np.asarray(array)
    return found.astype(np.int32) if name in _IDS and found.dtype == np.int64 else found


def _reader(rows: Rows, batch_bytes: int) -> Any:
    arrow = require("pyarrow", extra=_EXTRA)
    return arrow.RecordBatchReader.from_batches(rows.schema, rows.batches(batch_bytes=batch_bytes))


def _schema(arrow: Any, columns: Mapping[str, Any], said: Mapping[str, Any]) -> Any:
    """Returns a schema with metadata of the rows."""
    fields = [(name, column.type) for name, column in columns.items()]
    return arrow.schema(fields, metadata={b"tokenloom": json.dumps(said).encode()})


def _lists(arrow: Any, ends: NDArray[np.int64], values: NDArray[Any]) -> Any:
    """Returns lists over flat values, without a copy."""
    kind = arrow.from_numpy_dtype(values.dtype)
    flat = arrow.Array.from_buffers(kind, len(values), [None, arrow.py_buffer(np.ascontiguousarray(values))])
    return arrow.ListArray.from_arrays(arrow.array(ends.astype(np.int32)), flat)


_SUFFIXES = {".parquet": "parquet", ".pq": "parquet", ".arrow": "arrow", ".feather": "arrow"}
_OTHER_FORMATS = (".csv", ".json", ".jsonl", ".orc", ".tsv", ".txt")
_PART = re.compile(r"part-\d{5,}\.(parquet|arrow)")
_LEAST_BYTES = 1 << 10
ROW_GROUP_BYTES, PART_BYTES = 32 << 20, 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportReport:
    """Files of an export, in the order of their rows, and their counts; tokens include padding."""

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
    """Writes the documents of a pair with the columns of `document_batches`; needs memory for one row group.

    Args:
        prefix, tokenizer: see `document_batches`.
        output: a `.parquet` or `.arrow` file, or a folder for `part-00000.parquet` and so on.
        file_format: of the parts of a folder: `parquet` or `arrow`.
        row_group_bytes: tokens in a row group of Parquet, or in a record batch of Arrow, in bytes.
        part_bytes: tokens in a file of a folder, in bytes.
        compression: of Parquet `zstd`, `snappy`, `gzip`, …; of Arrow `zstd` or `lz4`; None for none, which lets files
            of Arrow be mapped without a copy.
        overwrite: replace an existing file, or a folder of nothing but such parts.

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
    """Writes the samples of a dataset, blend or run with the columns of `sample_batches`.

    Args:
        dataset, num_samples: see `sample_batches`.
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
            raise ConfigError(f"cannot export to `{self.output}`: it is not on this machine", hint=hint)
        if self.file_format not in _SUFFIXES.values():
            raise ConfigError(f"`file_format`: must be 'parquet' or 'arrow', got {self.file_format!r}")
        checked_integer("`row_group_bytes`", self.row_group_bytes, at_least=_LEAST_BYTES)
        checked_integer("`part_bytes`", self.part_bytes, at_least=_LEAST_BYTES)
        self._path = self.output.rstrip("/") or self.output
        suffix = os.path.splitext(self._path)[1].lower()
        self._new, self._old = hidden_path(self._path, "export"), hidden_path(self._path, "export.old")
        self._is_file = suffix in _SUFFIXES and not self.output.endswith("/") and not os.path.isdir(self._path)
        self._format = _SUFFIXES[suffix] if self._is_file else self.file_format
        if suffix in _OTHER_FORMATS and not self.output.endswith("/"):
            hint = "export to Parquet, and convert that"
            raise ConfigError(f"`{self.output}`: must be a folder, or end in {' or '.join(_SUFFIXES)}", hint=hint)

    def write(self, rows: Rows) -> ExportReport:
        """Writes all rows under a lock of the output."""
        make_folder_of(self._path)
        with task(f"export {rows.what}", unit=rows.what, total=len(rows)) as advance, OutputLock(self._path):
            self._recover()
            self._check_free()
            try:
                paths, num_tokens = self._write_files(rows, advance)
                if not self._is_file:  # the old folder is moved first, and restored after a kill in between
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
        """Writes the file, or parts into a hidden folder; returns paths and tokens."""
        if not self._is_file:
            with storage_errors("create", self._new):
                os.makedirs(self._new)
        most = sys.maxsize if self._is_file else self.part_bytes
        batches = rows.batches(batch_bytes=min(self.row_group_bytes, most))
        batch = next(batches, None)
        paths: list[str] = []
        num_tokens = 0
        while batch is not None or not paths:
            path = self._path if self._is_file else f"{self._new}/part-{len(paths):05}.{self._format}"
            paths.append(path)
            num_bytes = 0
            with PendingFile(path) as file, storage_errors("write", path), self._opened(file, rows.schema) as writer:
                while batch is not None and (not num_bytes or num_bytes + self.row_group_bytes <= most):
                    writer.write_batch(batch)
                    num_tokens += rows.num_tokens(batch)
                    num_bytes += batch.nbytes
                    advance(len(batch))
                    batch = next(batches, None)
        return paths, num_tokens

    @contextmanager
    def _opened(self, pending: PendingFile, schema: Any) -> Iterator[Any]:
        """Yields a writer of batches, and closes it in any case, or it would write its footer later."""
        arrow = require("pyarrow", extra="parquet")
        sink = arrow.PythonFile(pending.stream, mode="w")
        try:
            if self._format == "arrow":
                options = arrow.ipc.IpcWriteOptions(compression=self.compression)
                writer = arrow.ipc.new_file(sink, schema, options=options)
            else:
                columns = ["file"] if "file" in schema.names else False  # the one whose values repeat
                writer = require("pyarrow.parquet", extra="parquet").ParquetWriter(
                    sink, schema, compression=self.compression or "none", use_dictionary=columns
                )
        except (arrow.ArrowException, ValueError, TypeError) as error:
            raise ConfigError(f"{self._format} has no compression {self.compression!r}: {error}") from error
        try:
            yield writer
        finally:
            try:
                writer.close()
            finally:
                writer.is_open = False  # or `ParquetWriter` would close a broken file once more

    def _recover(self) -> None:
        """Removes files of an earlier export, and restores the folder that it was replacing."""
        if os.path.lexists(self._old) and not os.path.lexists(self._path):
            with storage_errors("recover", self._path):
                os.rename(self._old, self._path)
        for left in (self._new, self._old):
            shutil.rmtree(left, ignore_errors=True)

    def _check_free(self) -> None:
        """Refuses an existing output, unless `overwrite` covers it."""
        if os.path.isdir(self._path):
            with storage_errors("list", self._path):
                names = os.listdir(self._path)
            others = sorted(name for name in names if not _PART.fullmatch(name))
            if others and self.overwrite:
                message = f"cannot replace the folder `{self._path}`: it has another file, {others[0]!r}"
                raise StorageError(message, hint="export to a new folder")
            is_free = self.overwrite or not names
        else:
            is_free = not os.path.lexists(self._path) or (self.overwrite and self._is_file)
        if not is_free:
            raise exists_error(self._path)
