"""A 128-bit hash of the text of each document of a pair: `PREFIX.hashes`, a file beside the pair.

Readers that do not know the file read the pair as before. FORMAT.md describes the bytes; this module is their owner.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import DatasetFormatError, StorageError
from tokenloom.indexed.checksums import FileTally
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.manifest.contents import FileChecksum, index_start_crc32
from tokenloom.kernels import crc32
from tokenloom.storage.atomic import PendingFile, storage_errors
from tokenloom.storage.copies import PendingObject
from tokenloom.storage.locks import write_at
from tokenloom.storage.resolve import is_missing, map_whole, open_pending
from tokenloom.storage.settings import ObjectStorageSettings

MAGIC = b"TLHASHES"
VERSION = 1
_HEADER = struct.Struct("<8sIIQII")
HEADER_BYTES = _HEADER.size  # 32
HASH_BYTES = 16

_ROWS = 1 << 20
_HINT = "the file is damaged, or belongs to other data; write the pair again, or remove it to do without hashes"


def hashes_path(prefix: str) -> str:
    """Returns the path of the hashes of the documents of a prefix."""
    return prefix + ".hashes"


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
    path = hashes_path(prefix)
    try:
        data = map_whole(path, settings=object_storage)
    except StorageError as error:
        if is_missing(error):
            return None
        raise
    if len(data) < HEADER_BYTES:
        message = f"`{path}`: expected a header of {HEADER_BYTES} bytes, found a file of {len(data)} bytes"
        raise DatasetFormatError(message, hint=_HINT)
    header = data[:HEADER_BYTES].tobytes()
    magic, version, index_start, count, expected, own = _HEADER.unpack(header)
    if (magic, version, own) != (MAGIC, VERSION, crc32(header[:-4])):
        message = f"`{path}`: expected {MAGIC!r}, version {VERSION} and a sound header, found {magic!r}, version "
        message += f"{version}" if (magic, version) != (MAGIC, VERSION) else f"{version} and another checksum"
        raise DatasetFormatError(message, hint=_HINT)
    pair = IndexedDataset(prefix, object_storage=object_storage)
    if count != pair.num_documents or len(data) != HEADER_BYTES + HASH_BYTES * count:
        message = f"`{path}`: expected the hashes of {pair.num_documents} documents, found {count} in "
        message += f"{len(data) - HEADER_BYTES} bytes"
        raise DatasetFormatError(message, hint=_HINT)
    if index_start != index_start_crc32(pair.index.header, pair.index.arrays.lengths):
        message = f"`{path}` was written for another pair than the one that is there"
        raise DatasetFormatError(message, hint=_HINT)
    hashes: NDArray[np.uint64] = data[HEADER_BYTES:].view(np.uint64).reshape(-1, 2)
    if is_checked and (found := crc32(hashes)) != expected:
        message = f"`{path}`: expected hashes with CRC-32 {expected:08x}, found {found:08x}"
        raise DatasetFormatError(message, hint=_HINT)
    return hashes


def write_document_hashes(
    prefix: str, hashes: Iterable[NDArray[np.uint64]], *, index_start_crc32: int, durable: bool = True
) -> tuple[PendingFile | PendingObject, FileChecksum]:
    """Writes `PREFIX.hashes`, and returns the file, which has no name yet, and its checksum.

    Args:
        prefix: prefix of the pair.
        hashes: uint64[…, 2] each, those of all documents, in order; they are not kept.
        index_start_crc32: that of the pair, as `PairFacts` has it.
        durable: whether it survives a loss of power once it is published.

    Raises:
        StorageError: writing failed.
    """
    file, tally = open_pending(hashes_path(prefix), durable=durable), FileTally()
    try:
        file.write(bytes(HEADER_BYTES))
        for part in hashes:
            for begin in range(0, len(part), _ROWS):
                data = np.ascontiguousarray(part[begin : begin + _ROWS], dtype="<u8").view(np.uint8).ravel().data
                file.write(data)
                tally.add(data)
        start = _HEADER.pack(MAGIC, VERSION, index_start_crc32, tally.num_bytes // HASH_BYTES, tally.crc32, 0)[:-4]
        header = start + struct.pack("<I", crc32(start))
        file.sync()
        with storage_errors("write", file.path):
            write_at(file.stream.fileno(), memoryview(header), 0)
        file.sync()
    except BaseException:
        file.discard()
        raise
    whole = FileTally()
    whole.add(header)
    whole.add_part(tally.checksum())
    return file, whole.checksum()
