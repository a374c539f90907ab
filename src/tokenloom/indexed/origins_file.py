"""`PREFIX.origins` as bytes: header, packed runs, table of files, directory. FORMAT.md describes them."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import ConfigError, DatasetFormatError
from tokenloom.indexed.checksums import FileTally
from tokenloom.indexed.manifest.contents import FileChecksum
from tokenloom.indexed.origin_blocks import BLOCK_RUNS, ENTRY, BlockEncoder, Blocks
from tokenloom.indexed.origin_runs import MOST_RECORDS, OriginFile, OriginRuns
from tokenloom.kernels import crc32
from tokenloom.storage.atomic import PendingFile, storage_errors
from tokenloom.storage.copies import PendingObject
from tokenloom.storage.json_files import UnusableJsonError, parse_json
from tokenloom.storage.locks import write_at
from tokenloom.storage.resolve import open_pending
from tokenloom.storage.typed_json import from_members, members_of

MAGIC = b"TLORIGIN"
VERSION = 1
HEADER = struct.Struct("<8sIIIIQQQQQ")
HEADER_BYTES = HEADER.size  # 64
_CRC_AT = 12
_MOST_TABLE_BYTES = 1 << 29
"""More is refused: room for some millions of files."""
_MOST_RATIO = 100
"""More is refused of what was compressed: names that differ in numbers alone come to 21."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Table:
    """The files that documents came from."""

    files: tuple[OriginFile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OriginsContent:
    """What the file holds.

    Attributes:
        files: the files that runs are of.
        blocks: the runs.
        index_start_crc32: tells whether it is of the pair beside it, see `PairFacts`.
    """

    files: tuple[OriginFile, ...]
    blocks: Blocks
    index_start_crc32: int


class OriginsFileWriter:
    """Writes the file as runs come; they are not kept, but for 64 bytes per 256 of them.

    Args:
        path: where it will be.
        durable: whether it survives a loss of power once it is published.

    Raises:
        StorageError: writing failed.
    """

    def __init__(self, path: str, *, durable: bool = True) -> None:
        self._tally = FileTally()
        self._file = open_pending(path, durable=durable)
        try:
            self._file.write(bytes(HEADER_BYTES))
        except BaseException:
            self._file.discard()
            raise
        self._encoder = BlockEncoder(self._write)

    def append(self, runs: OriginRuns) -> None:
        """Appends documents."""
        self._encoder.append(runs)

    def finish(
        self, files: Sequence[OriginFile], *, index_start_crc32: int
    ) -> tuple[PendingFile | PendingObject, FileChecksum]:
        """Returns the file, written and without its name yet, and its checksum.

        Args:
            files: the files that runs are of.
            index_start_crc32: see `PairFacts`.

        Raises:
            ConfigError: there are so many files that no reader would take them.
            StorageError: writing failed.
        """
        table = json.dumps(members_of(_Table(files=tuple(files))), separators=(",", ":")).encode()
        if len(table) > _MOST_TABLE_BYTES:
            message = f"expected a table of at most {_MOST_TABLE_BYTES} bytes, found {len(table)}: {len(files)} files"
            raise ConfigError(message, hint="make several pairs of so many files")
        directory = self._encoder.finish().tobytes()
        packed = zlib.compress(table)
        for data in (packed, directory):
            self._write(data)
        counts = self._encoder.num_documents, self._encoder.num_runs, len(files), len(packed), len(table)
        header = HEADER.pack(MAGIC, VERSION, 0, index_start_crc32, 0, *counts)
        header = HEADER.pack(MAGIC, VERSION, _crc(header, packed, directory), index_start_crc32, 0, *counts)
        with storage_errors("write", self._file.path):
            self._file.stream.flush()
            write_at(self._file.stream.fileno(), memoryview(header), 0)
        self._file.sync()
        whole = FileTally()
        whole.add(header)
        whole.add_part(self._tally.checksum())
        return self._file, whole.checksum()

    def discard(self) -> None:
        """Gives it up; harmless when repeated."""
        self._file.discard()

    def _write(self, data: bytes | memoryview) -> None:
        self._file.write(data)
        self._tally.add(data)


def parse_origins(data: NDArray[np.uint8], *, name: str) -> OriginsContent:
    """Returns what a file holds; packed runs are views of it, and looked at when they are unpacked.

    Args:
        data: uint8[…], the whole file.
        name: its path, for errors.

    Raises:
        DatasetFormatError: it is foreign, truncated, damaged, or was written by something newer.
    """

    def damaged(*, expected: str, found: object) -> DatasetFormatError:
        message = f"`{name}`: expected {expected}, found {found}"
        return DatasetFormatError(message, hint="write the pair again, or remove the file to do without origins")

    if len(data) < HEADER_BYTES:
        raise damaged(expected=f"a header of {HEADER_BYTES} bytes", found=f"a file of {len(data)} bytes")
    header = data[:HEADER_BYTES].tobytes()
    magic, version, crc, index_start, _, num_documents, num_runs, num_files, packed_bytes, table_bytes = HEADER.unpack(
        header
    )
    if (magic, version) != (MAGIC, VERSION):
        raise damaged(expected=f"{MAGIC!r} and version {VERSION}", found=f"{magic!r} and version {version}")
    num_blocks = -(-num_runs // BLOCK_RUNS)
    directory_at = len(data) - num_blocks * ENTRY.itemsize
    table_at = directory_at - packed_bytes
    most_bytes = min(_MOST_TABLE_BYTES, _MOST_RATIO * packed_bytes)
    if table_at < HEADER_BYTES or table_bytes > most_bytes or not num_runs <= num_documents < MOST_RECORDS:
        counts = f"{num_documents} documents in {num_runs} runs, and {table_bytes} bytes about {num_files} files"
        raise damaged(expected="counts that fit its size", found=counts)
    packed, directory = data[table_at:directory_at].tobytes(), data[directory_at:]
    cleared = header[:_CRC_AT] + bytes(4) + header[_CRC_AT + 4 :]
    if (found := _crc(cleared, packed, directory.data)) != crc:
        raise damaged(expected=f"CRC-32 {crc:08x} of header, table and directory", found=f"{found:08x}")
    try:
        files = from_members(_Table, parse_json(_unpacked(packed, table_bytes), most_bytes=_MOST_TABLE_BYTES)).files
    except (zlib.error, UnusableJsonError) as error:
        raise damaged(expected="a table of files", found=str(error).removeprefix(": ")) from error
    if len(files) != num_files:
        raise damaged(expected=f"{num_files} files", found=len(files))
    blocks = Blocks(
        np.frombuffer(directory.tobytes(), dtype=ENTRY),
        data[HEADER_BYTES:table_at],
        num_documents=num_documents,
        num_runs=num_runs,
        num_files=num_files,
        name=name,
    )
    return OriginsContent(files=files, blocks=blocks, index_start_crc32=index_start)


def _unpacked(packed: bytes, num_bytes: int) -> bytes:
    """Returns what a table is without its compression; no more than so many bytes are made."""
    unpacking = zlib.decompressobj()
    data = unpacking.decompress(packed, num_bytes + 1)
    if len(data) != num_bytes or not unpacking.eof or unpacking.unused_data:
        message = f"expected {num_bytes} bytes, found others"
        raise UnusableJsonError(message)
    return data


def _crc(*parts: Any) -> int:
    value = 0
    for part in parts:
        value = crc32(part, value)
    return value
