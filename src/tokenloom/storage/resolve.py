"""Functions that take the path of a local file or the address of an object."""

from __future__ import annotations

import difflib
import io
import os
from typing import Any

import numpy as np

from tokenloom.errors import ConfigError, MissingObjectError, StorageError
from tokenloom.storage.addresses import ObjectVersion, is_remote, parse_address
from tokenloom.storage.atomic import PendingFile, storage_errors
from tokenloom.storage.ending import interruptible
from tokenloom.storage.local import Bytes, ByteSource, PositionalFile, map_file
from tokenloom.storage.objects import PendingObject, RemoteFile, local_copy, object_storage
from tokenloom.storage.settings import ObjectStorageSettings

_STEPS_AHEAD = 4
_TAIL_BYTES = 64 << 10  # size of the first request past the expected end; doubled for each further request


def open_source(path: str, settings: ObjectStorageSettings | None = None) -> ByteSource:
    """Opens a file or object for reads at any offset."""
    return RemoteFile(path, settings) if is_remote(path) else PositionalFile(path)


def map_whole(path: str, *, settings: ObjectStorageSettings | None = None) -> Bytes:
    """Maps a file, or the local copy of an object; returns a read-only view, uint8[size]."""
    return map_file(local_copy(RemoteFile(path, settings)) if is_remote(path) else path)


def exists(path: str, *, settings: ObjectStorageSettings | None = None) -> bool:
    if not is_remote(path):
        return os.path.exists(path)
    try:
        RemoteFile(path, settings)
    except MissingObjectError:
        return False
    return True


def is_missing(error: StorageError) -> bool:
    """Returns whether an error means that a file or object does not exist."""
    return isinstance(error, MissingObjectError) or isinstance(error.__cause__, FileNotFoundError)


def size_of(path: str) -> int:
    return open_source(path).num_bytes


def read_start(path: str, num_bytes: int, *, settings: ObjectStorageSettings | None = None) -> bytes:
    """Returns at most the first `num_bytes` of a file or object."""
    source = open_source(path, settings)
    return source.read(0, min(num_bytes, source.num_bytes)).tobytes()


def _called(folder: str, method: str, settings: ObjectStorageSettings | None = None, *, is_folder: bool = True) -> Any:
    """Calls the client's method named `method` with the address `folder`; returns (parsed address, result)."""
    address = parse_address(folder, is_folder=is_folder)
    storage = object_storage(settings or ObjectStorageSettings())
    with storage.waiting_for_answer(address):
        return address, interruptible(lambda: getattr(storage.client(address), method)(address))


def names_in(folder: str) -> list[str]:
    """Returns the names of the files or objects directly in a folder, sorted."""
    if not is_remote(folder):
        with storage_errors("list", folder):
            return sorted(os.listdir(folder))
    _, keys = _called(folder, "keys")
    return sorted(key.rsplit("/", 1)[-1] for key in keys)


def did_you_mean(path: str, *, suffix: str = "") -> str | None:
    """Returns a hint for a missing path: a similar path, or that the folder of the path is missing, too; else None."""
    folder, name = os.path.split(path)
    try:
        found = names_in(folder or ".")
    except (StorageError, ConfigError):  # the folder does not exist, or we may not list it
        is_absent = folder and not is_remote(folder) and not os.path.lexists(folder)
        return f"there is no folder `{folder}`" if is_absent else None
    names = [each.removesuffix(suffix) for each in found if each.endswith(suffix) and not each.startswith(".")]
    begun = [each for each in names if name and each.startswith(name)]
    near = begun[:1] or difflib.get_close_matches(name, [each for each in names if each != name], n=1)
    return f"did you mean `{os.path.join(folder, near[0])}`?" if near else None


def objects_below(folder: str, *, settings: ObjectStorageSettings | None = None) -> dict[str, ObjectVersion]:
    """Returns {address: version} of all objects below a folder, at any depth, sorted by address."""
    address, found = _called(folder, "objects", settings)
    return {f"{address.root}/{key}": found[key] for key in sorted(found)}


def open_pending(path: str, *, durable: bool = True) -> PendingFile:
    """Opens a new file or object for writing; see `PendingFile`. Only `publish` makes the file or object visible."""
    return PendingObject(path) if is_remote(path) else PendingFile(path, durable=durable)


def remove(path: str, *, settings: ObjectStorageSettings | None = None) -> None:
    """Removes a file or object if it exists."""
    if is_remote(path):
        _called(path, "delete", settings, is_folder=False)
        return
    with storage_errors("remove", path):
        if os.path.lexists(path):
            os.unlink(path)


def keep_copy(path: str) -> PendingObject | None:
    """Returns a copy of an object; `publish` of the copy restores the object. None if the object does not exist."""
    if not exists(path):
        return None
    kept = PendingObject(path)
    kept.write(map_whole(path).data)
    return kept


class RemoteStream(io.RawIOBase):
    """A binary stream of an object, starting at byte `start`.

    If `stop` is None, access is random, with one request per read. Else access is sequential: bytes before `stop` are
    prefetched, and bytes from `stop` on are fetched in small requests when they are read.
    """

    def __init__(self, remote: RemoteFile, *, start: int = 0, stop: int | None = None) -> None:
        super().__init__()
        self._remote = remote
        self._position = self._announced = start
        self._stop = stop
        self._chunk: Bytes = np.empty(0, dtype=np.uint8)
        self._tail_bytes = _TAIL_BYTES

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        bases = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._remote.num_bytes}
        position = bases[whence] + offset
        if self._stop is not None and position != self._position:
            raise io.UnsupportedOperation
        self._position = position
        return position

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        length = max(0, min(len(view), self._remote.num_bytes - self._position))
        if self._stop is None:
            data = self._remote.read(self._position, length)
        else:
            if length and not len(self._chunk):
                self._chunk = self._next_chunk(self._stop)
            data, self._chunk = self._chunk[:length], self._chunk[length:]
        view[: len(data)] = data.data
        self._position += len(data)
        return len(data)

    def _next_chunk(self, stop: int) -> Bytes:
        step = self._remote.settings.block_bytes
        if self._position >= stop:
            stop = self._stop = min(self._position + self._tail_bytes, self._remote.num_bytes)
            self._tail_bytes = min(2 * self._tail_bytes, step)
        ahead = min(self._position + _STEPS_AHEAD * step, stop)
        while self._announced < ahead:  # one announcement of several ranges would be merged into one request
            length = min(step, stop - self._announced)
            self._remote.will_need(np.array([self._announced]), np.array([length]))
            self._announced += length
        return self._remote.read(self._position, min(step, stop - self._position))


def open_stream(
    path: str, *, buffer_bytes: int, start: int = 0, stop: int | None = None, version: ObjectVersion | None = None
) -> io.BufferedReader:
    """Opens a buffered binary stream from byte `start` to the end; an object is prefetched up to byte `stop`."""
    if is_remote(path):
        remote = RemoteFile(path, version=version)
        end = remote.num_bytes if stop is None else min(stop, remote.num_bytes)
        return io.BufferedReader(RemoteStream(remote, start=start, stop=end), buffer_bytes)
    with storage_errors("open", path):
        file = io.FileIO(path)
        if start:  # a pipe cannot seek
            file.seek(start)
        return io.BufferedReader(file, buffer_bytes)
