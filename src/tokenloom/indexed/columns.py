"""Columns: NumPy arrays beside a pair. A column has one row per token, sequence, document, or range of documents.

A column is the file `PREFIX.NAME.npy`; `PREFIX.columns.json` describes all columns of the pair. See also FORMAT.md.
"""

from __future__ import annotations

import hashlib
import io
import math
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import ConfigError, DatasetFormatError, DatasetNotFoundError, StorageError
from tokenloom.indexed import layout
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.layout import Header, check_choice, column_path, columns_path, damaged, idx_path
from tokenloom.indexed.manifests import FileChecksum, check_start, foreign, index_start_crc32, read_if_exists, start_of
from tokenloom.kernels.storage import Watch, crc32
from tokenloom.numbers import check_count
from tokenloom.storage.addresses import is_remote
from tokenloom.storage.atomic import PendingFile, storage_errors, write_at
from tokenloom.storage.extents import extents_of
from tokenloom.storage.json_files import MAY_BE_MISSING, Crc32, members_of
from tokenloom.storage.local import ByteSource, sampled_hash
from tokenloom.storage.publishing import FileGroup, OutputLock, exists_error, publish_together, recover
from tokenloom.storage.resolve import exists, is_missing, open_pending, remove
from tokenloom.storage.settings import ObjectStorageSettings

FORMAT = "tokenloom columns"

Kind = Literal["token", "sequence", "document", "runs"]
"""The unit with one row in a column. A row of "runs" is int64 (first document, file, first record), see `Origins`."""

_NAME = re.compile("[A-Za-z][A-Za-z0-9_-]{0,63}")
_BLOCK_BYTES = 16 << 20
_REWRITE = "write the column again, or remove it: the file is damaged, or belongs to other data"


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnFacts:
    """The description of a column in `PREFIX.columns.json`.

    Attributes:
        kind: the unit with one row, see `Kind`.
        dtype: name of a boolean, integer or float NumPy dtype.
        shape: (number of rows,) or (number of rows, values per row).
        num_bytes, crc32: size and CRC-32 of the `.npy` file; both 0 before the file is written.
        of: in a column per token, "token" if rows are for tokens as inputs, "label" if rows are for tokens as targets.
        padding: value for the slots of a sample that contain no token.
        made_by: origin of the values, such as the program that wrote the column; None if unknown.
        about: further metadata as JSON values, such as the tokenizer for roles or the input files for origins.
    """

    kind: Kind
    dtype: str
    shape: tuple[int, ...] = (0,)
    num_bytes: int = 0
    crc32: Crc32 = 0
    of: Literal["token", "label"] = "token"
    padding: float = 0
    made_by: str | None = field(default=None, metadata=MAY_BE_MISSING)
    about: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_choice("kind", self.kind, get_args(Kind))
        check_choice("of", self.of, ("token", "label"))
        dtype = checked_dtype(self.dtype)
        check_padding(self.padding, dtype)
        object.__setattr__(self, "dtype", dtype.name)
        object.__setattr__(self, "padding", float(self.padding))
        check_count("num_bytes of the column", self.num_bytes)
        for size in self.shape:
            check_count("a dimension of the column", size)
        if len(self.shape) not in (1, 2) or (self.kind == "runs" and (self.dtype, self.shape[1:]) != ("int64", (3,))):
            rule = "must have one or two dimensions, and be int64[…, 3] for the kind 'runs'"
            raise ConfigError(f"`shape`: {rule}, got {self.dtype}{[*self.shape]}")

    @property
    def form(self) -> tuple[object, ...]:
        """The values that must be equal in all columns that are joined into one column."""
        about = {} if self.kind == "runs" else dict(self.about)
        return (self.kind, self.dtype, self.shape[1:], self.of, self.padding, about)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Record:
    """The contents of `PREFIX.columns.json`."""

    format: str = FORMAT
    version: int = layout.RECORD_VERSION
    index_start_crc32: Crc32
    pair: str
    columns: Mapping[str, ColumnFacts]

    def __post_init__(self) -> None:
        for name in self.columns:
            checked_name(name)


def checked_dtype(dtype: Any) -> np.dtype[Any]:
    """Returns a dtype in native byte order; raises `ConfigError` if columns do not support the dtype."""
    try:
        found: np.dtype[Any] = np.dtype(dtype)
    except TypeError:
        found = np.dtype(object)
    if found.kind not in "biuf" or found.itemsize > 8 or found.name != np.dtype(found.name).name:
        raise ConfigError(f"`dtype`: must be a boolean, integer or float type of at most 8 bytes, got {dtype!r}")
    return found.newbyteorder("=")


def check_padding(padding: float, dtype: np.dtype[Any], *, name: str = "`padding`:") -> None:
    """Raises a `ConfigError` if the dtype of a column cannot represent the value `padding`."""
    with np.errstate(all="ignore"):
        is_held = np.array(padding, dtype=np.float64).astype(dtype) == padding or dtype.kind == "f"
    if not math.isfinite(padding) or not is_held:
        hint = "choose a number that the dtype of the column can represent"
        raise ConfigError(f"{name} {padding!r} does not fit {dtype.name}", hint=hint)


def checked_name(name: str) -> str:
    """Returns a column name; raises `ConfigError` if the name is invalid. The name becomes part of a file name."""
    if not _NAME.fullmatch(name):
        raise ConfigError(f"`name`: must be a letter, then letters, digits, `_` or `-`, got {name!r}")
    return name


# --- reading --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Column:
    """An open column. Size and header of its file match the description; its values are not verified. Not picklable.

    Attributes:
        path: path of the `.npy` file.
        facts: description of the column.
        data: dtype[num_rows] or dtype[num_rows, values per row], the rows; a read-only view of the mapped file.
    """

    path: str
    facts: ColumnFacts
    data: NDArray[Any]
    _bytes: NDArray[np.uint8]
    _watch: Watch

    def check(self) -> None:
        """Raises a `ChangedFileError` if the file was truncated or overwritten since opening; takes nanoseconds."""
        self._watch.check()

    def verify(self) -> None:
        """Reads the whole file; `DatasetFormatError` if its CRC-32 is not `facts.crc32`."""
        found = crc32(self._bytes)
        self.check()
        if found != self.facts.crc32:
            raise self.damaged(expected=f"CRC-32 {self.facts.crc32:08x}", found=f"{found:08x}")

    def damaged(self, *, expected: str, found: object) -> DatasetFormatError:
        """Returns the error for wrong values in this column."""
        return damaged(self.path, expected, found, hint=_REWRITE)


def has_column(pair: IndexedDataset, name: str) -> bool:
    """Returns whether the file of a column exists; does not open the file."""
    return exists(column_path(pair.path_prefix, name), settings=pair.object_storage)


def read_columns(pair: IndexedDataset) -> Mapping[str, ColumnFacts]:
    """Returns the descriptions of the columns of a pair, by name.

    Raises:
        DatasetFormatError: `PREFIX.columns.json` is damaged, or was written for another pair.
    """
    return _read_record(pair).columns


def recorded_columns(prefix: str, *, object_storage: ObjectStorageSettings | None = None) -> Mapping[str, ColumnFacts]:
    """Returns the columns in `PREFIX.columns.json`, not compared with the pair; {} if it is missing or damaged."""
    with suppress(DatasetFormatError):
        return _parsed_record(prefix, object_storage).columns
    return {}


def _read_record(pair: IndexedDataset) -> _Record:
    record = _parsed_record(pair.path_prefix, pair.object_storage)
    if record.columns:
        check_start(pair, record.index_start_crc32, path=columns_path(pair.path_prefix))
    return record


def _parsed_record(prefix: str, settings: ObjectStorageSettings | None) -> _Record:
    path = columns_path(prefix)
    recover(path)  # finishes a replacement whose process died; else the description could be older than the column
    if (data := read_if_exists(path, None, settings)) is None:
        return _Record(index_start_crc32=0, pair="", columns={})
    return layout.parse_record(_Record, data, path=path, what=FORMAT, hint=_REWRITE)


def open_column(pair: IndexedDataset, name: str) -> Column | None:
    """Maps a column of a pair (in object storage: a local copy of the column); None if the pair has no such column.

    Raises:
        DatasetNotFoundError: of the column file and its description, only one exists.
        DatasetFormatError: the file differs from its description, or belongs to another pair.
    """
    record, path = _read_record(pair), column_path(pair.path_prefix, checked_name(name))
    if name not in record.columns:
        if not has_column(pair, name):
            return None
        hint = "copy both files with the pair, or add the column again"
        raise DatasetNotFoundError(f"`{columns_path(pair.path_prefix)}` does not describe `{path}`", hint=hint)
    facts = record.columns[name]
    try:
        data = pair.map_beside(path)
    except StorageError as error:
        if not is_missing(error):
            raise
        message = f"no file `{path}`, which `{columns_path(pair.path_prefix)}` describes"
        raise DatasetNotFoundError(message, hint="copy the file with the pair, or remove the column") from error
    _check_rows(facts, pair.index.header, pair.num_tokens, path=path)
    if facts.kind == "token" and record.pair != _pair_hash(pair.index_source(), pair.byte_source):
        raise foreign(path)
    return Column(path, facts, _values(path, data, facts), data, Watch([data]))


def _values(path: str, data: NDArray[np.uint8], facts: ColumnFacts) -> NDArray[Any]:
    """Compares size and header of a `.npy` file with the description; returns the array in the file."""
    if len(data) != facts.num_bytes:
        raise damaged(path, f"{facts.num_bytes} bytes", len(data), hint=_REWRITE)
    expected, header = np.dtype(facts.dtype), npy_header(np.dtype(facts.dtype), facts.shape)
    begin, size = len(header), int(np.prod(facts.shape, dtype=np.float64)) * expected.itemsize
    if data[:begin].tobytes() != header or begin + size != len(data):
        wanted = f"a NumPy file of {facts.dtype}{[*facts.shape]} in C order"
        raise damaged(path, wanted, "another header", hint=_REWRITE)
    values: NDArray[Any] = data[begin:].view(expected).reshape(facts.shape)
    return values


def npy_header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """Returns a NumPy header of version 1.0; the size of the header does not depend on the number of rows."""
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": dtype.str, "fortran_order": False, "shape": shape})
    return stream.getvalue()


def _check_rows(facts: ColumnFacts, header: Header, num_tokens: int, *, path: str) -> None:
    """Raises a `DatasetFormatError` if a column has the wrong number of rows; a column of kind "runs" may have any."""
    rows = {"token": num_tokens, "sequence": header.num_sequences, "document": header.num_boundaries - 1}
    if facts.kind != "runs" and facts.shape[0] != rows[facts.kind]:
        wanted = f"{rows[facts.kind]} rows, one per {facts.kind}"
        raise damaged(path, wanted, facts.shape[0], hint="write the column again")


def _pair_hash(index: ByteSource, tokens: ByteSource) -> str:
    samples = [sampled_hash(source) for source in (index, tokens)]
    return hashlib.sha256(" ".join(samples).encode()).hexdigest()


# --- writing --------------------------------------------------------------------------------------------------

WrittenColumn = tuple[PendingFile, ColumnFacts]
"""The complete but unpublished file of a column, and the description of the column."""


class ColumnWriter:
    """Writes a column, block by block, to a file with a hidden name. Not thread-safe.

    `facts.shape` may set the number of values per row; otherwise the first block does. Integers must fit the dtype.
    """

    def __init__(self, prefix: str, name: str, facts: ColumnFacts, *, durable: bool = True) -> None:
        self.facts: ColumnFacts = facts
        self._name, self._dtype = checked_name(name), np.dtype(facts.dtype)
        self._checksum = FileChecksum()
        self._width: tuple[int, ...] | None = facts.shape[1:] or None
        self.num_rows: int = 0
        self._file = open_pending(column_path(prefix, name), durable=durable)
        self._file.write(npy_header(self._dtype, facts.shape))

    def append(self, rows: NDArray[Any]) -> None:
        """Appends rows of any dtype: shape [count], or [count, k] with the same k in each call."""
        rows = np.asarray(rows)
        if self._width is None:
            self._width = rows.shape[1:]
        data = _row_bytes(self._name, rows, self._dtype, self._width)
        self._file.write(data)
        self._checksum = self._checksum.with_bytes(data)
        self.num_rows += len(rows)

    def finish(self) -> WrittenColumn:
        """Completes the file; returns the file and the description of the column."""
        shape = (self.num_rows, *(self._width or ()))
        header = npy_header(self._dtype, shape)
        with storage_errors("write", self._file.path):
            self._file.stream.flush()
            write_at(self._file.stream.fileno(), memoryview(header), 0)
        self._file.sync()
        whole = FileChecksum().with_bytes(header).with_part(self._checksum)
        return self._file, replace(self.facts, shape=shape, num_bytes=whole.num_bytes, crc32=whole.crc32)

    def discard(self) -> None:
        """Removes the file if it was not published; may be called again."""
        self._file.discard()


def _row_bytes(name: str, rows: NDArray[Any], dtype: np.dtype[Any], width: tuple[int, ...]) -> memoryview:
    """Returns rows as bytes of `dtype`; `ConfigError` if the shape of a row is not `width`, or a value does not fit."""
    if rows.ndim not in (1, 2) or rows.shape[1:] != width:
        raise ConfigError(f"column `{name}`: expected rows of shape {[*width]}, found {[*rows.shape[1:]]}")
    values = np.ascontiguousarray(rows, dtype=dtype)
    if dtype.kind in "biu" and rows.dtype != dtype and not np.array_equal(values, rows):
        wrong = rows[(values != rows)].ravel()[0]
        raise ConfigError(f"column `{name}`: value {wrong} does not fit {dtype.name}", hint="choose a wider dtype")
    return values.reshape(-1).view(np.uint8).data


class ScatteredColumn(AbstractContextManager["ScatteredColumn"]):
    """A column with one row per token; any number of processes can write the rows, in any order.

    The folder `PREFIX.NAME.npy.HASH.part` holds the rows until `finish`, so a later process can add missing rows. One
    process calls `finish`, after all others have called `close`. The last write to a row wins. Not thread-safe.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> from tokenloom import IndexedDatasetBuilder
        >>> prefix = f"{tempfile.mkdtemp()}/corpus"
        >>> with IndexedDatasetBuilder(f"{prefix}.bin") as builder:
        ...     builder.add_document([5, 6, 7], [3])
        ...     builder.finalize(f"{prefix}.idx")
        >>> with ScatteredColumn(prefix, "weight", dtype="float16") as column:
        ...     column.write(0, np.array([1.0]), offset=2)
        ...     column.write(0, np.array([0.5, 0.25]))
        ...     column.finish().shape
        (3,)

    Args:
        path_prefix: path of a local pair without `.bin` or `.idx`.
        name, dtype: see `add_column`.
        width: number of values per row; None for a column of one dimension.
        resumes: whether to keep the rows that were written earlier; False removes these rows.
    """

    def __init__(
        self,
        path_prefix: str | os.PathLike[str],
        name: str,
        *,
        dtype: Any,
        width: int | None = None,
        resumes: bool = True,
    ) -> None:
        self._pair = pair = IndexedDataset(path_prefix)
        self._name, self._dtype = checked_name(name), checked_dtype(dtype)
        self._width = () if width is None else (width,)
        if pair.is_remote:
            hint = "write the column for a local copy of the pair, then pass the array of this column to `add_column`"
            raise ConfigError(f"`{pair.path_prefix}`: must be a pair in a local folder", hint=hint)
        start = index_start_crc32(pair.index.header, pair.index.sequence_lengths)
        self._folder = f"{column_path(pair.path_prefix, name)}.{start:08x}.part"
        self._row_size = self._dtype.itemsize * math.prod(self._width)
        if not resumes:
            self.discard()
        with ExitStack() as stack, storage_errors("write", self._folder):
            os.makedirs(self._folder, exist_ok=True)
            self._values = stack.enter_context(self._opened("values", self._row_size))
            self._written = stack.enter_context(self._opened("rows-there", 1))
            self._files = stack.pop_all()

    def _opened(self, name: str, row_size: int) -> io.FileIO:
        size = self._pair.num_tokens * row_size
        path = os.path.join(self._folder, name)
        file = io.FileIO(path, "rb+", opener=lambda path, flags: os.open(path, flags | os.O_CREAT, 0o666))
        if (found := os.fstat(file.fileno()).st_size) not in (0, size):
            file.close()
            hint = "pass the dtype and width that the column was begun with, or `resumes=False` to start again"
            raise ConfigError(f"column `{self._name}`: expected {size} bytes in `{path}`, found {found}", hint=hint)
        os.ftruncate(file.fileno(), size)
        return file

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the files of this process; may be called again."""
        self._files.close()

    def discard(self) -> None:
        """Removes all rows written so far, by any process."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def write(self, sequence: int, rows: NDArray[Any], *, offset: int = 0) -> None:
        """Writes `rows`, [count] or [count, width] of any dtype, one per token of a sequence from token `offset` on.

        Raises:
            ConfigError: the tokens are out of range, the rows have another shape, or a value does not fit the dtype.
        """
        rows = np.asarray(rows)
        data = _row_bytes(self._name, rows, self._dtype, self._width)
        length = int(self._pair.sequence_lengths[sequence]) if 0 <= sequence < len(self._pair) else -1
        if not 0 <= offset <= length - len(rows):
            where = f"[{offset}, {offset + len(rows)}) of sequence {sequence}"
            raise ConfigError(f"column `{self._name}`: tokens {where} do not exist")
        first = int(self._pair.first_tokens(np.array([sequence]))[0]) + offset
        with storage_errors("write", self._folder):
            write_at(self._values.fileno(), data, first * self._row_size)
            write_at(self._written.fileno(), memoryview(b"\1" * len(rows)), first)

    def _map(self, name: str, dtype: Any, shape: tuple[int, ...]) -> NDArray[Any]:
        path, count = os.path.join(self._folder, name), self._pair.num_tokens
        return np.memmap(path, dtype, "r", shape=(count, *shape)) if count else np.empty((0, *shape), dtype)

    def num_missing(self) -> int:
        """Returns the number of tokens that have no row yet; reads one byte per token."""
        return self._pair.num_tokens - int(np.count_nonzero(self._map("rows-there", np.uint8, ())))

    def finish(self, **facts: Any) -> ColumnFacts:
        """Adds the complete column to the pair; `facts` are keyword arguments of `add_column`.

        Raises:
            ConfigError: a token has no row yet; the message names the first such token.
            OutputExistsError: the column exists already, and `overwrite` is False.
        """
        if missing := self.num_missing():
            first = token_place(self._pair, int(np.argmin(self._map("rows-there", np.uint8, ()))))
            raise ConfigError(f"column `{self._name}`: {missing:,} tokens have no row, the first one {first}")
        values = self._map("values", self._dtype, self._width)
        found = add_column(self._pair.path_prefix, self._name, blocks_of(values), dtype=self._dtype, **facts)
        self.close()
        self.discard()
        return found


def blocks_of(values: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """Splits `values` into blocks of rows: first an empty block, then blocks of up to 16 MiB or of one larger row."""
    rows = max(1, _BLOCK_BYTES // max(1, values[:1].nbytes))
    yield values[:0]
    for begin in range(0, len(values), rows):
        yield values[begin : begin + rows]


def token_place(pair: IndexedDataset, number: int) -> str:
    """Describes where the token with index `number` is, such as "at token 3 of document 7"."""
    boundaries = pair.document_indices[:-1]
    starts = pair.first_tokens(np.minimum(boundaries, len(pair) - 1))
    document = int(np.searchsorted(starts, number, side="right")) - 1
    return f"at token {number - int(starts[document])} of document {document}"


def written_column(writer: ColumnWriter, blocks: Iterable[NDArray[Any]]) -> WrittenColumn:
    """Writes all blocks and returns the complete column; removes the file on failure."""
    try:
        for block in blocks:
            writer.append(block)
        return writer.finish()
    except BaseException:
        writer.discard()
        raise


def describe_columns(prefix: str, columns: Mapping[str, ColumnFacts], index: ByteSource, tokens: ByteSource) -> bytes:
    """Returns the bytes of `PREFIX.columns.json` for a complete pair; raises if a column has a wrong number of rows."""
    header, lengths = start_of(index)
    num_tokens = extents_of(tokens).num_held_bytes // header.dtype.itemsize
    for name, facts in columns.items():
        _check_rows(facts, header, num_tokens, path=column_path(prefix, name))
    start = index_start_crc32(header, lengths)
    record = _Record(index_start_crc32=start, pair=_pair_hash(index, tokens), columns=columns)
    return layout.record_bytes(members_of(record), path=columns_path(prefix), indent=1)


def add_column(
    path_prefix: str | os.PathLike[str],
    name: str,
    blocks: NDArray[Any] | Iterable[NDArray[Any]],
    *,
    dtype: Any,
    kind: Kind = "token",
    of: Literal["token", "label"] = "token",
    padding: float = 0,
    made_by: str | None = None,
    overwrite: bool = False,
    object_storage: ObjectStorageSettings | None = None,
) -> ColumnFacts:
    """Adds a column to an existing pair: writes it in bounded memory, and publishes it atomically.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> from tokenloom import IndexedDatasetBuilder
        >>> prefix = f"{tempfile.mkdtemp()}/corpus"
        >>> with IndexedDatasetBuilder(f"{prefix}.bin") as builder:
        ...     builder.add_document([5, 6, 7], [3])
        ...     builder.finalize(f"{prefix}.idx")
        >>> add_column(prefix, "weight", [np.array([0.5, 1.0, 1.0])], dtype="float16").shape
        (3,)

    Args:
        path_prefix: path or address of the pair without `.bin` or `.idx`.
        name: a letter, then letters, digits, `_` or `-`.
        blocks: the rows, of any dtype: one array, or an iterable of arrays; each has shape [count] or [count, k].
        dtype, kind, of, padding, made_by: see `ColumnFacts`; `kind` cannot be "runs".
        overwrite: whether to replace an existing column of this name.
        object_storage: cache and limits for data in object storage.

    Raises:
        ConfigError: the name, the dtype, the kind or a block is invalid.
        DatasetNotFoundError: the pair does not exist.
        DatasetFormatError: the number of rows does not match the pair.
        OutputExistsError: the column exists already, and `overwrite` is False.
        OutputBusyError: another process is writing the pair.
    """
    pair = IndexedDataset(path_prefix, object_storage=object_storage)
    if kind == "runs":
        raise ConfigError("`kind`: must be token, sequence or document, got 'runs', which only preprocessing writes")
    path = column_path(pair.path_prefix, checked_name(name))
    with OutputLock(idx_path(pair.path_prefix)):
        known = read_columns(pair)
        if name in known and not overwrite:
            raise exists_error(path)
        facts = ColumnFacts(kind=kind, dtype=dtype, of=of, padding=padding, made_by=made_by)
        writer = ColumnWriter(pair.path_prefix, name, facts)
        written = written_column(writer, [blocks] if isinstance(blocks, np.ndarray) else blocks)
        publish_columns(pair, {**known, name: written[1]}, [written[0]])
    return written[1]


def remove_column(
    path_prefix: str | os.PathLike[str], name: str, *, object_storage: ObjectStorageSettings | None = None
) -> None:
    """Removes a column of a pair; `DatasetNotFoundError` if the column does not exist."""
    pair = IndexedDataset(path_prefix, object_storage=object_storage)
    with OutputLock(idx_path(pair.path_prefix)):
        columns = dict(read_columns(pair))
        if columns.pop(name, None) is None:
            hint = f"the columns of the pair are: {', '.join(sorted(columns)) or 'none'}"
            raise DatasetNotFoundError(f"`{pair.path_prefix}` has no column `{name}`", hint=hint)
        if columns:
            publish_columns(pair, columns, [])
        else:
            remove(columns_path(pair.path_prefix), settings=object_storage)
        remove(column_path(pair.path_prefix, name), settings=object_storage)


def publish_columns(pair: IndexedDataset, columns: Mapping[str, ColumnFacts], files: Sequence[PendingFile]) -> None:
    """Publishes column files of an existing pair together with a new description of all columns of the pair."""
    path = columns_path(pair.path_prefix)
    with ExitStack() as stack:
        for file in files:
            stack.callback(file.discard)
        description = open_pending(path)
        stack.callback(description.discard)
        description.write(describe_columns(pair.path_prefix, columns, pair.index_source(), pair.byte_source))
        if is_remote(path):
            for file in (*files, description):
                file.publish()
        else:
            publish_together([FileGroup(key=path, files=[*files, description], names=[])], replace=True)
