"""From a path to its bytes: local files and objects of a store behind the same calls."""

from __future__ import annotations

import io
import os
from typing import Any

import numpy as np

from tokenloom.errors import MissingObjectError, StorageError
from tokenloom.storage.addresses import is_remote, parse_address
from tokenloom.storage.atomic import PendingFile, storage_errors
from tokenloom.storage.copies import PendingObject, local_copy
from tokenloom.storage.local import Bytes, ByteSource, MappedFile, PositionalFile, map_file
from tokenloom.storage.objects import RemoteFile, object_storage
from tokenloom.storage.settings import ObjectStorageSettings

_STEPS_AHEAD = 4


def open_source(path: str, *, mmap: bool, settings: ObjectStorageSettings | None = None) -> ByteSource:
    """Returns the bytes of a file or object, by position; a local file mapped if asked for.

    Raises:
        StorageError: it cannot be opened.
    """
    if is_remote(path):
        return RemoteFile(path, settings)
    return MappedFile(path) if mmap else PositionalFile(path)


def open_whole(path: str, *, settings: ObjectStorageSettings | None = None) -> ByteSource:
    """Returns all bytes of a file or object, mapped; an object through a local copy, see `local_copy`.

    Raises:
        StorageError: it cannot be opened.
    """
    return MappedFile(local_copy(RemoteFile(path, settings)) if is_remote(path) else path)


def map_whole(path: str, *, settings: ObjectStorageSettings | None = None) -> Bytes:
    """Returns all bytes of a file or object as a read-only view, uint8[size]."""
    return map_file(local_copy(RemoteFile(path, settings)) if is_remote(path) else path)


def exists(path: str, *, settings: ObjectStorageSettings | None = None) -> bool:
    """Whether a file or object exists.

    Raises:
        StorageError: a store does not say.
    """
    if not is_remote(path):
        return os.path.exists(path)
    try:
        RemoteFile(path, settings)
    except MissingObjectError:
        return False
    return True


def is_missing(error: StorageError) -> bool:
    """Whether an error says that there is no such file or object."""
    return isinstance(error, MissingObjectError) or isinstance(error.__cause__, FileNotFoundError)


def size_of(path: str, *, settings: ObjectStorageSettings | None = None) -> int:
    """Returns the size of a file or object in bytes."""
    if is_remote(path):
        return RemoteFile(path, settings).num_bytes
    with storage_errors("open", path):
        return os.stat(path).st_size


def read_start(path: str, num_bytes: int, *, settings: ObjectStorageSettings | None = None) -> bytes:
    """Returns the first bytes of a file or object, as many as there are."""
    if is_remote(path):
        remote = RemoteFile(path, settings)
        return remote.read(0, min(num_bytes, remote.num_bytes)).tobytes()
    with storage_errors("open", path), open(path, "rb") as stream:
        return stream.read(num_bytes)


def names_in(folder: str, *, settings: ObjectStorageSettings | None = None) -> list[str]:
    """Returns the names of the files right in a folder, sorted; of a store, those right below a key and a slash.

    Raises:
        StorageError: it cannot be listed.
    """
    if not is_remote(folder):
        with storage_errors("list", folder):
            return sorted(os.listdir(folder))
    address = parse_address(folder, is_folder=True)
    keys = object_storage(settings or ObjectStorageSettings()).client(address).keys(address)
    return sorted(key.rsplit("/", 1)[-1] for key in keys)


def open_pending(
    path: str, *, settings: ObjectStorageSettings | None = None, durable: bool = True
) -> PendingFile | PendingObject:
    """Returns a file or object that appears, whole, when it is published; see `PendingFile` for `durable`."""
    return PendingObject(path, settings) if is_remote(path) else PendingFile(path, durable=durable)


def remove(path: str, *, settings: ObjectStorageSettings | None = None) -> None:
    """Removes a file or object if there is one."""
    if is_remote(path):
        address = parse_address(path)
        object_storage(settings or ObjectStorageSettings()).client(address).delete(address)
        return
    with storage_errors("remove", path):
        if os.path.lexists(path):
            os.unlink(path)


class RemoteStream(io.RawIOBase):
    """An object read from beginning to end, with what comes next on its way."""

    def __init__(self, path: str, settings: ObjectStorageSettings | None = None) -> None:
        super().__init__()
        self._remote = RemoteFile(path, settings)
        self._step = self._remote.settings.block_bytes
        self._chunk: Bytes = np.empty(0, dtype=np.uint8)
        self._chunk_start = 0
        self._announced = 0
        self._position = 0

    @property
    def num_bytes(self) -> int:
        """The size of the object."""
        return self._remote.num_bytes

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        """Says so for `tell`; there is no way back."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        if (offset, whence) not in ((0, os.SEEK_CUR), (self._position, os.SEEK_SET)):
            raise io.UnsupportedOperation
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: Any) -> int:
        begin = self._position - self._chunk_start
        if begin == len(self._chunk):
            begin, self._chunk, self._chunk_start = 0, self._next_chunk(), self._position
        view = memoryview(buffer).cast("B")
        data = self._chunk[begin : begin + len(view)]
        view[: len(data)] = data.data
        self._position += len(data)
        return len(data)

    def _next_chunk(self) -> Bytes:
        stop = min(self._position + _STEPS_AHEAD * self._step, self.num_bytes)
        if self._announced < stop:
            starts = np.arange(self._announced, stop, self._step, dtype=np.int64)
            for start in starts.tolist():  # one by one, so that they are not merged into one request
                length = min(self._step, self.num_bytes - start)
                self._remote.will_need(np.array([start]), np.array([length]))
                self._announced = start + length
        return self._remote.read(self._position, min(self._step, self.num_bytes - self._position))


def open_stream(path: str, *, buffer_bytes: int) -> tuple[io.BufferedReader, int]:
    """Returns a file or object as a buffered binary stream, and its size in bytes.

    Raises:
        StorageError: it cannot be opened.
    """
    if is_remote(path):
        stream = RemoteStream(path)
        return io.BufferedReader(stream, buffer_bytes), stream.num_bytes
    with storage_errors("open", path):
        file = io.FileIO(path)
        return io.BufferedReader(file, buffer_bytes), os.fstat(file.fileno()).st_size
