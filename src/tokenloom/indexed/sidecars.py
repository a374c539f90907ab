"""The files beside a pair, one format for all: a header, columns, and a table of JSON. FORMAT.md has the bytes.

Readers that do not know these files read the pair as before. Here are also the hashes of documents, which are nothing
but a column; roles and origins have a module each.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import ConfigError, DatasetFormatError, StorageError
from tokenloom.indexed.checksums import FileTally
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.layout import sidecar_path
from tokenloom.indexed.manifests import FileChecksum, index_start_crc32
from tokenloom.kernels import Watch, crc32
from tokenloom.storage.atomic import PendingFile, storage_errors, write_at
from tokenloom.storage.json_files import UnusableJsonError, parse_json
from tokenloom.storage.objects import PendingObject
from tokenloom.storage.resolve import is_missing, map_whole, open_pending
from tokenloom.storage.settings import ObjectStorageSettings

VERSION = 2
HEADER = struct.Struct("<8sIIIIQQQ16x")
HEADER_BYTES = HEADER.size  # 64

HASH_BYTES = 16
RUN_BYTES = 24
_MOST_TABLE_BYTES = 1 << 29
"""More is refused: room for some millions of input files."""

Written = tuple[PendingFile | PendingObject, FileChecksum]
"""A file, written and without its name yet, and its checksum."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of file: how it begins, what of the pair its rows are, and the bytes of its columns from its counts."""

    magic: bytes
    rows: str
    num_bytes: Callable[[int, int], int]


_KINDS = {
    "roles": _Kind(b"TLROLES\x00", "sequences", lambda rows, count: 8 * (rows + 1) + 5 * count),
    "origins": _Kind(b"TLORIGIN", "documents", lambda rows, count: RUN_BYTES * count),
    "hashes": _Kind(b"TLHASHES", "documents", lambda rows, count: HASH_BYTES * rows),
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sidecar:
    """A file beside a pair, of which header and table are checked.

    Attributes:
        path: its path.
        data: uint8[…], its columns.
        num_rows: sequences or documents of the pair.
        count: parts of roles, runs of origins.
        table: what the table holds.
        crc32: what the header says of the columns.
    """

    path: str
    data: NDArray[np.uint8]
    num_rows: int
    count: int
    table: Any
    crc32: int

    def check(self) -> None:
        """Compares the columns, which are read as a whole, with their checksum."""
        found, watch = crc32(self.data), Watch([self.data])
        watch.check()
        if found != self.crc32:
            raise self.damaged(expected=f"columns with CRC-32 {self.crc32:08x}", found=f"{found:08x}")

    def damaged(self, *, expected: str, found: object) -> DatasetFormatError:
        """Returns the error for something that is not as it should be."""
        return _damaged(self.path, expected=expected, found=found)


def _damaged(path: str, *, expected: str, found: object) -> DatasetFormatError:
    message = f"`{path}`: expected {expected}, found {found}"
    hint = "the file is damaged, or belongs to other data; write the pair again, or remove it to do without"
    return DatasetFormatError(message, hint=hint)


def read_sidecar(prefix: str, name: str, *, object_storage: ObjectStorageSettings | None = None) -> Sidecar | None:
    """Returns a file beside a pair, mapped; None if there is none. Those in object storage come as a local copy."""
    try:
        data = map_whole(sidecar_path(prefix, name), settings=object_storage)
    except StorageError as error:
        if is_missing(error):
            return None
        raise
    return open_sidecar(IndexedDataset(prefix, object_storage=object_storage), name, data)


def open_sidecar(pair: IndexedDataset, name: str, data: NDArray[np.uint8]) -> Sidecar:
    """Returns a file beside a pair from its bytes, after checking header, table, sizes, and that it is of this pair."""
    path, kind = sidecar_path(pair.path_prefix, name), _KINDS[name]
    if len(data) < HEADER_BYTES:
        raise _damaged(path, expected=f"a header of {HEADER_BYTES} bytes", found=f"a file of {len(data)} bytes")
    header = data[:HEADER_BYTES].tobytes()
    magic, version, own, start, expected_crc32, rows, count, table_bytes = HEADER.unpack(header)
    if (magic, version) != (kind.magic, VERSION):
        expected = f"{kind.magic!r} and version {VERSION}"
        raise _damaged(path, expected=expected, found=f"{magic!r} and version {version}")
    if table_bytes > _MOST_TABLE_BYTES or len(data) != HEADER_BYTES + kind.num_bytes(rows, count) + table_bytes:
        counts = f"{rows} {kind.rows}, {count} more rows, and a table of {table_bytes} bytes"
        raise _damaged(path, expected=f"counts that fit a file of {len(data)} bytes", found=counts)
    table_at = len(data) - table_bytes
    table = data[table_at:].tobytes()
    if (found := _own_crc32(header, table)) != own:
        raise _damaged(path, expected=f"CRC-32 {own:08x} of header and table", found=f"{found:08x}")
    num_rows = len(pair) if kind.rows == "sequences" else pair.num_documents
    if rows != num_rows:
        raise _damaged(path, expected=f"the {num_rows} {kind.rows} of the pair", found=rows)
    if start != index_start_crc32(pair.index.header, pair.index.sequence_lengths):
        message = f"`{path}` was written for another pair than the one that is there"
        raise DatasetFormatError(message, hint="if the data were replaced on purpose, remove it; else write them again")
    try:
        content = parse_json(table, most_bytes=_MOST_TABLE_BYTES)
    except UnusableJsonError as error:
        raise _damaged(path, expected="a table of JSON", found=error) from error
    columns = data[HEADER_BYTES:table_at]
    return Sidecar(path=path, data=columns, num_rows=rows, count=count, table=content, crc32=expected_crc32)


def write_sidecar(
    prefix: str,
    name: str,
    columns: Iterable[NDArray[Any]],
    describe: Callable[[int], tuple[int, int, dict[str, Any]]],
    *,
    index_start_crc32: int,
    durable: bool = True,
) -> Written:
    """Writes a file beside a pair, and returns it, which has no name yet, and its checksum.

    Args:
        prefix: prefix of the pair.
        name: one of `SIDECARS`.
        columns: arrays that follow each other; they are not kept.
        describe: takes the bytes of all columns, once they are written; returns rows, count and table, see `Sidecar`.
        index_start_crc32: that of the pair, as `PairFacts` has it.
        durable: whether the file survives a loss of power once it is published.
    """
    file, tally = open_pending(sidecar_path(prefix, name), durable=durable), FileTally()
    try:
        file.write(bytes(HEADER_BYTES))
        for column in columns:
            data = np.ascontiguousarray(column).reshape(-1).view(np.uint8).data
            file.write(data)
            tally.add(data)
        rows, count, content = describe(tally.num_bytes)
        table = json.dumps(content, separators=(",", ":")).encode()
        _check_table(table, file.path)
        file.write(table)
        fields = index_start_crc32, tally.crc32, rows, count, len(table)
        header = HEADER.pack(_KINDS[name].magic, VERSION, 0, *fields)
        header = HEADER.pack(_KINDS[name].magic, VERSION, _own_crc32(header, table), *fields)
        with storage_errors("write", file.path):
            file.stream.flush()
            write_at(file.stream.fileno(), memoryview(header), 0)
        file.sync()
    except BaseException:
        file.discard()
        raise
    tally.add(table)
    whole = FileTally()
    whole.add(header)
    whole.add_part(tally.checksum())
    return file, whole.checksum()


def _check_table(table: bytes, path: str) -> None:
    if len(table) > _MOST_TABLE_BYTES:
        message = f"expected a table of at most {_MOST_TABLE_BYTES} bytes for `{path}`, found {len(table)}"
        raise ConfigError(message, hint="make several pairs of so many files")


def _own_crc32(header: bytes, table: bytes) -> int:
    """Returns the checksum of a header, without its own field, and of the table."""
    return crc32(table, crc32(header[:12] + bytes(4) + header[16:]))


def read_document_hashes(
    prefix: str, *, is_checked: bool = False, object_storage: ObjectStorageSettings | None = None
) -> NDArray[np.uint64] | None:
    """Returns the hashes beside a pair, mapped: uint64[num_documents, 2]; None if there are none. O(1).

    Args:
        prefix: prefix of the pair.
        is_checked: whether to compare them with their checksum, which reads all of them.
        object_storage: settings of object storage, from where they come as a local copy.

    Raises:
        DatasetNotFoundError: there is no such pair.
        DatasetFormatError: the file is truncated, foreign, or belongs to other data; or not what its checksum says.
        StorageError: a store denies access, or does not answer.
    """
    if (found := read_sidecar(prefix, "hashes", object_storage=object_storage)) is None:
        return None
    if is_checked:
        found.check()
    hashes: NDArray[np.uint64] = found.data.view(np.uint64).reshape(-1, 2)
    return hashes


def write_document_hashes(
    prefix: str, hashes: Iterable[NDArray[np.uint64]], *, index_start_crc32: int, durable: bool = True
) -> Written:
    """Writes `PREFIX.hashes`, and returns the file, which has no name yet, and its checksum.

    Args:
        prefix: prefix of the pair.
        hashes: uint64[…, 2] each, those of all documents, in order; they are not kept.
        index_start_crc32: that of the pair, as `PairFacts` has it.
        durable: whether it survives a loss of power once it is published.
    """
    return write_sidecar(
        prefix,
        "hashes",
        hashes,
        lambda num_bytes: (num_bytes // HASH_BYTES, num_bytes // HASH_BYTES, {}),
        index_start_crc32=index_start_crc32,
        durable=durable,
    )
