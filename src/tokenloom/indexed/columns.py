"""Columns: NumPy arrays beside a pair, a row per token, sequence or document, or runs of documents.

`PREFIX.NAME.npy` holds a column, `PREFIX.columns.json` describes all of them; FORMAT.md has the bytes.
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
from tokenloom.indexed.manifests import FileChecksum, check_start, foreign, index_start_crc32, read_if_there, start_of
from tokenloom.kernels.arrays import crc32
from tokenloom.kernels.storage import Watch
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
"""Alignment of the rows of a column; those of "runs" are int64: first document, file, first record."""

_NAME = re.compile("[A-Za-z][A-Za-z0-9_-]{0,63}")
_BLOCK_BYTES = 16 << 20
_REWRITE = "the file is damaged, or belongs to other data; write it again, or remove the column to do without"


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnFacts:
    """Description of a column.

    Attributes:
        kind: alignment of its rows, see `Kind`.
        dtype: name of a NumPy dtype: booleans, integers or floats.
        shape: number of rows, and of values per row if there are several.
        num_bytes, crc32: size and CRC-32 of the file; 0 before it is written.
        of: whether values belong to a token as it is read ("token") or as it is predicted ("label").
        padding: the value at positions without a token.
        made_by: name of the writer; None if unknown.
        about: further facts, values of JSON: the tokenizer of roles, the input files of origins.
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
            check_count("a size of the column", size)
        if len(self.shape) not in (1, 2) or (self.kind == "runs" and (self.dtype, self.shape[1:]) != ("int64", (3,))):
            rule = "must have one or two dimensions, and int64[…, 3] for runs"
            raise ConfigError(f"`shape`: {rule}, got {self.dtype}{[*self.shape]}")

    @property
    def form(self) -> tuple[object, ...]:
        """The facts that must be equal to join columns."""
        about = {} if self.kind == "runs" else dict(self.about)
        return (self.kind, self.dtype, self.shape[1:], self.of, self.padding, about)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Record:
    """`PREFIX.columns.json`, see FORMAT.md."""

    format: str = FORMAT
    version: int = layout.RECORD_VERSION
    index_start_crc32: Crc32
    pair: str
    columns: Mapping[str, ColumnFacts]

    def __post_init__(self) -> None:
        for name in self.columns:
            checked_name(name)


def checked_dtype(dtype: Any) -> np.dtype[Any]:
    """Returns the dtype of a column; `ConfigError` for one that columns do not have."""
    try:
        found: np.dtype[Any] = np.dtype(dtype)
    except TypeError:
        found = np.dtype(object)
    if found.kind not in "biuf" or found.itemsize > 8 or found.name != np.dtype(found.name).name:
        raise ConfigError(f"`dtype`: must be booleans, integers or floats of at most 8 bytes, got {dtype!r}")
    return found.newbyteorder("=")


def check_padding(padding: float, dtype: np.dtype[Any], *, name: str = "padding") -> None:
    """Checks that a column can hold its padding."""
    with np.errstate(all="ignore"):
        is_held = np.array(padding, dtype=np.float64).astype(dtype) == padding or dtype.kind == "f"
    if not math.isfinite(padding) or not is_held:
        hint = "choose a number that the dtype of the column holds"
        raise ConfigError(f"{name} {padding!r} does not fit {dtype.name}", hint=hint)


def checked_name(name: str) -> str:
    """Returns the name of a column; `ConfigError` for one that cannot be part of a file name everywhere."""
    if not _NAME.fullmatch(name):
        raise ConfigError(f"column name {name!r}: must be letters, digits, `_` and `-`, and begin with a letter")
    return name


# --- reading --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Column:
    """An open column; its file was compared with its description in O(1). Not picklable.

    Attributes:
        path: its path.
        facts: its description.
        data: its values, mapped: dtype[rows] or dtype[rows, k].
    """

    path: str
    facts: ColumnFacts
    data: NDArray[Any]
    _bytes: NDArray[np.uint8]
    _watch: Watch

    def check(self) -> None:
        """Raises a `ChangedFileError` if the file changed since it was opened; costs nothing."""
        self._watch.check()

    def verify(self) -> None:
        """Compares the whole file with its checksum; `DatasetFormatError` if it differs."""
        found = crc32(self._bytes)
        self.check()
        if found != self.facts.crc32:
            raise self.damaged(expected=f"CRC-32 {self.facts.crc32:08x}", found=f"{found:08x}")

    def damaged(self, *, expected: str, found: object) -> DatasetFormatError:
        """Returns the error for wrong values."""
        return damaged(self.path, expected, found, hint=_REWRITE)


def has_column(pair: IndexedDataset, name: str) -> bool:
    """Whether a column lies beside a pair; does not open it."""
    return exists(column_path(pair.path_prefix, name), settings=pair.object_storage)


def read_columns(pair: IndexedDataset) -> Mapping[str, ColumnFacts]:
    """Returns the columns beside a pair, by name.

    Raises:
        DatasetFormatError: the description is damaged, or was written for another pair.
    """
    return _read_record(pair).columns


def columns_there(prefix: str, *, object_storage: ObjectStorageSettings | None = None) -> Mapping[str, ColumnFacts]:
    """Returns the columns under a prefix, of any pair; none if the description is damaged."""
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
    recover(path)  # a process died while it replaced a column: an older description would not fit
    if (data := read_if_there(path, None, settings)) is None:
        return _Record(index_start_crc32=0, pair="", columns={})
    return layout.parse_record(_Record, data, path=path, what=FORMAT, hint=_REWRITE)


def open_column(pair: IndexedDataset, name: str) -> Column | None:
    """Returns a column beside a pair, mapped, from object storage by a local copy; None if there is none.

    Raises:
        DatasetNotFoundError: the file is missing, or nothing describes it.
        DatasetFormatError: it is not what its description says, or belongs to another pair.
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
        raise DatasetNotFoundError(message, hint="copy it with the pair, or remove the column") from error
    _check_rows(facts, pair.index.header, pair.num_tokens, path=path)
    if facts.kind == "token" and record.pair != _pair_hash(pair.index_source(), pair.byte_source):
        raise foreign(path)
    return Column(path, facts, _values(path, data, facts), data, Watch([data]))


def _values(path: str, data: NDArray[np.uint8], facts: ColumnFacts) -> NDArray[Any]:
    """Returns the array in a `.npy` file after comparing it with its description."""
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
    """Returns the header of a NumPy file of version 1.0; it has the same size for any number of rows."""
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": dtype.str, "fortran_order": False, "shape": shape})
    return stream.getvalue()


def _check_rows(facts: ColumnFacts, header: Header, num_tokens: int, *, path: str) -> None:
    """Checks that a column has a row per token, sequence or document."""
    rows = {"token": num_tokens, "sequence": header.num_sequences, "document": header.num_boundaries - 1}
    if facts.kind != "runs" and facts.shape[0] != rows[facts.kind]:
        wanted = f"a row for each of {rows[facts.kind]} {facts.kind}s"
        raise damaged(path, wanted, facts.shape[0], hint="make the column again")


def _pair_hash(index: ByteSource, tokens: ByteSource) -> str:
    """Returns a hash of pieces of both files."""
    samples = [sampled_hash(source) for source in (index, tokens)]
    return hashlib.sha256(" ".join(samples).encode()).hexdigest()


# --- writing --------------------------------------------------------------------------------------------------

WrittenColumn = tuple[PendingFile, ColumnFacts]
"""The complete file of a column, not published yet, and its description."""


class ColumnWriter:
    """Writes a column beside a pair, block by block, under a hidden name. Not safe from several threads.

    The shape in `facts` may say how many values a row has. Integers that do not fit the dtype are an error.
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
        """Appends rows: any[count] or any[count, k], the same k each time."""
        rows = np.asarray(rows)
        if self._width is None:
            self._width = rows.shape[1:]
        data = _row_bytes(self._name, rows, self._dtype, self._width)
        self._file.write(data)
        self._checksum = self._checksum.with_bytes(data)
        self.num_rows += len(rows)

    def finish(self) -> WrittenColumn:
        """Returns the complete file and its description."""
        shape = (self.num_rows, *(self._width or ()))
        header = npy_header(self._dtype, shape)
        with storage_errors("write", self._file.path):
            self._file.stream.flush()
            write_at(self._file.stream.fileno(), memoryview(header), 0)
        self._file.sync()
        whole = FileChecksum().with_bytes(header).with_part(self._checksum)
        return self._file, replace(self.facts, shape=shape, num_bytes=whole.num_bytes, crc32=whole.crc32)

    def discard(self) -> None:
        """Removes the file; harmless when repeated, and after publication."""
        self._file.discard()


def _row_bytes(name: str, rows: NDArray[Any], dtype: np.dtype[Any], width: tuple[int, ...]) -> memoryview:
    """Returns the bytes of rows of a column after checking their width and values."""
    if rows.ndim not in (1, 2) or rows.shape[1:] != width:
        raise ConfigError(f"column `{name}`: expected rows of shape {[*width]}, found {[*rows.shape[1:]]}")
    values = np.ascontiguousarray(rows, dtype=dtype)
    if dtype.kind in "biu" and rows.dtype != dtype and not np.array_equal(values, rows):
        wrong = rows[(values != rows)].ravel()[0]
        raise ConfigError(f"column `{name}`: {wrong} does not fit {dtype.name}", hint="choose a wider dtype")
    return values.reshape(-1).view(np.uint8).data


class ScatteredColumn(AbstractContextManager["ScatteredColumn"]):
    """A column with a row per token, written in any order by any number of processes until all rows are there.

    Until it is finished, rows lie in a folder beside the pair, `PREFIX.NAME.npy.HASH.part`, so that another process can
    go on. Close it in each process before one of them calls `finish`; a row written twice keeps the last value. Not
    safe from several threads.

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
        path_prefix: the path of a pair without `.bin` or `.idx`; not in object storage.
        name, dtype: see `add_column`.
        width: values per row; None for a single one.
        resumes: whether to go on with rows written before; else they are removed.
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
            hint = "write the column beside a copy of it, and add its `.npy` file"
            raise ConfigError(f"`{pair.path_prefix}`: must be a pair in a local folder", hint=hint)
        start = index_start_crc32(pair.index.header, pair.index.sequence_lengths)
        self._folder = f"{column_path(pair.path_prefix, name)}.{start:08x}.part"
        self._row_size = self._dtype.itemsize * math.prod(self._width)
        if not resumes:
            self.discard()
        with ExitStack() as stack, storage_errors("write", self._folder):
            os.makedirs(self._folder, exist_ok=True)
            self._values = stack.enter_context(self._opened("values", self._row_size))
            self._is_there = stack.enter_context(self._opened("rows-there", 1))
            self._files = stack.pop_all()

    def _opened(self, name: str, row_size: int) -> io.FileIO:
        size = self._pair.num_tokens * row_size
        path = os.path.join(self._folder, name)
        file = io.FileIO(path, "rb+", opener=lambda path, flags: os.open(path, flags | os.O_CREAT, 0o666))
        if (found := os.fstat(file.fileno()).st_size) not in (0, size):
            file.close()
            hint = "it was begun with another dtype or width; go on with these, or remove it"
            raise ConfigError(f"column `{self._name}`: expected {size} bytes in `{path}`, found {found}", hint=hint)
        os.ftruncate(file.fileno(), size)
        return file

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the files of this process; harmless when repeated."""
        self._files.close()

    def discard(self) -> None:
        """Removes the rows of all processes."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def write(self, sequence: int, rows: NDArray[Any], *, offset: int = 0) -> None:
        """Writes rows of the tokens of a sequence from `offset` on: any[count], or any[count, width].

        Raises:
            ConfigError: there are no such tokens, or rows are of another shape, or integers do not fit the dtype.
        """
        rows = np.asarray(rows)
        data = _row_bytes(self._name, rows, self._dtype, self._width)
        length = int(self._pair.sequence_lengths[sequence]) if 0 <= sequence < len(self._pair) else -1
        if not 0 <= offset <= length - len(rows):
            where = f"[{offset}, {offset + len(rows)}) of sequence {sequence}"
            raise ConfigError(f"column `{self._name}`: there are no tokens {where}")
        first = int(self._pair.first_tokens(np.array([sequence]))[0]) + offset
        with storage_errors("write", self._folder):
            write_at(self._values.fileno(), data, first * self._row_size)
            write_at(self._is_there.fileno(), memoryview(b"\1" * len(rows)), first)

    def _map(self, name: str, dtype: Any, shape: tuple[int, ...]) -> NDArray[Any]:
        path, count = os.path.join(self._folder, name), self._pair.num_tokens
        return np.memmap(path, dtype, "r", shape=(count, *shape)) if count else np.empty((0, *shape), dtype)

    def num_missing(self) -> int:
        """Returns the number of tokens without a row yet; reads a byte for each token."""
        return self._pair.num_tokens - int(np.count_nonzero(self._map("rows-there", np.uint8, ())))

    def finish(self, **facts: Any) -> ColumnFacts:
        """Adds the column, which must be complete, to the pair; takes options of `add_column`.

        Raises:
            ConfigError: tokens have no row yet; the message names the first.
            OutputExistsError: there is such a column, and no `overwrite`.
        """
        if missing := self.num_missing():
            first = token_place(self._pair, int(np.argmin(self._map("rows-there", np.uint8, ()))))
            raise ConfigError(f"column `{self._name}`: {missing:,} tokens have no row yet, the first {first}")
        values = self._map("values", self._dtype, self._width)
        found = add_column(self._pair.path_prefix, self._name, blocks_of(values), dtype=self._dtype, **facts)
        self.close()
        self.discard()
        return found


def blocks_of(values: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """Yields the rows of an array in blocks of 16 MiB."""
    rows = max(1, _BLOCK_BYTES // max(1, values[:1].nbytes))
    yield values[:0]
    for begin in range(0, len(values), rows):
        yield values[begin : begin + rows]


def token_place(pair: IndexedDataset, number: int) -> str:
    """Returns the place of a token in words: its number in its document."""
    boundaries = pair.document_indices[:-1]
    starts = pair.first_tokens(np.minimum(boundaries, len(pair) - 1))
    document = int(np.searchsorted(starts, number, side="right")) - 1
    return f"at token {number - int(starts[document])} of document {document}"


def written_column(writer: ColumnWriter, blocks: Iterable[NDArray[Any]]) -> WrittenColumn:
    """Returns a column of some blocks, written; removes it if that fails."""
    try:
        for block in blocks:
            writer.append(block)
        return writer.finish()
    except BaseException:
        writer.discard()
        raise


def describe_columns(prefix: str, columns: Mapping[str, ColumnFacts], index: ByteSource, tokens: ByteSource) -> bytes:
    """Returns `PREFIX.columns.json` for a pair whose files are complete; each column must have its rows."""
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
    """Writes a column beside a pair that is there, in bounded memory; it appears whole, or not at all.

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
        path_prefix: the path or address of the pair without `.bin` or `.idx`.
        name: letters, digits, `_` and `-`.
        blocks: its rows, any[count] or any[count, k]: one array, or several.
        dtype, kind, of, padding, made_by: see `ColumnFacts`; only preprocessing writes runs.
        overwrite: whether a column of this name may be replaced.
        object_storage: how to read and write data in object storage.

    Raises:
        ConfigError: the name, the dtype or a block is not one of a column.
        DatasetNotFoundError, DatasetFormatError: there is no such pair, or it has another number of rows.
        OutputExistsError: there is such a column, and no `overwrite`.
        OutputBusyError: another process writes the pair.
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
    """Removes a column beside a pair; `DatasetNotFoundError` if there is none."""
    pair = IndexedDataset(path_prefix, object_storage=object_storage)
    with OutputLock(idx_path(pair.path_prefix)):
        columns = dict(read_columns(pair))
        if columns.pop(name, None) is None:
            hint = f"it has {', '.join(sorted(columns)) or 'none'}"
            raise DatasetNotFoundError(f"`{pair.path_prefix}` has no column `{name}`", hint=hint)
        if columns:
            publish_columns(pair, columns, [])
        else:
            remove(columns_path(pair.path_prefix), settings=object_storage)
        remove(column_path(pair.path_prefix, name), settings=object_storage)


def publish_columns(pair: IndexedDataset, columns: Mapping[str, ColumnFacts], files: Sequence[PendingFile]) -> None:
    """Publishes files of columns beside a pair that exists, with a description of all its columns."""
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
