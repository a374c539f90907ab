"""Whole objects as local files: what is mapped lies here, what is written is built here first."""

from __future__ import annotations

import os
import stat
import zlib
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import IO, Self

from tokenloom.errors import ConfigError, StorageError
from tokenloom.progress import task, waiting_for
from tokenloom.rendering.words import size
from tokenloom.storage.addresses import parse_address, short_hash
from tokenloom.storage.atomic import PendingFile, publish_bytes, remove_leftover, storage_errors
from tokenloom.storage.endpoint import server_words
from tokenloom.storage.local import Bytes, map_file
from tokenloom.storage.locks import filling, write_at
from tokenloom.storage.object_storage import ObjectStorage, object_storage
from tokenloom.storage.objects import RemoteFile
from tokenloom.storage.secrets import query_of
from tokenloom.storage.settings import ObjectStorageSettings
from tokenloom.storage.statistics import book

_CHECKSUM = ".crc32"
_CHECKSUM_LINE = b"%08x %d %d\n"
"""CRC-32 in hex, inode, and time of change in ns."""


def local_copy(remote: RemoteFile) -> str:
    """Returns the path of a local file with the bytes of an object, downloaded once for all processes of the node.

    Its name is made of hashes of the address, and of etag and size: no key leads out of the folder, and an object that
    changed has another copy. The copies of earlier versions are removed; who has mapped one keeps it. The checksum of
    what was downloaded lies beside a copy, with inode and time of change: one that has others is read and compared once
    per node, and made again if it differs.

    Raises:
        StorageError: the object cannot be read, or the copy cannot be written.
    """
    storage = object_storage(remote.settings)
    folder = _folder(storage, "copies")
    address = short_hash(remote.address)
    path = os.path.join(folder, f"{address}-{short_hash(remote.version.num_bytes, remote.version.etag)}")
    while not _is_sound(path, remote.num_bytes):
        with storage_errors("write", path), filling(path) as part:
            if part is not None:
                descriptor, part_path = part
                _download(storage, remote, descriptor)
                os.fsync(descriptor)
                _record(path, part_path)
                os.rename(part_path, path)
                _remove_others(folder, address, os.path.basename(path))
    return path


def scratch_folder(path: str) -> str:
    """Returns a local folder, made if need be, for what becomes objects; the same for the same address."""
    storage = object_storage(ObjectStorageSettings())
    return _folder(storage, os.path.join("jobs", short_hash(path)))


def _folder(storage: ObjectStorage, name: str) -> str:
    folder = os.path.join(storage.folder, name)
    with storage_errors("create", folder):
        os.makedirs(folder, mode=0o700, exist_ok=True)
    return folder


def _is_sound(path: str, num_bytes: int) -> bool:
    """Whether a copy is there, with the bytes that were downloaded; another one is removed."""
    with suppress(FileNotFoundError):
        status = os.lstat(path)
        if stat.S_ISREG(status.st_mode) and status.st_size == num_bytes and _is_recorded(path, status):
            return True
        os.unlink(path)
    return False


def _record(path: str, file: str) -> None:
    """Notes the checksum of a copy before it gets its name."""
    checksum, status = zlib.crc32(map_file(file).data), os.stat(file)
    publish_bytes(f"{path}{_CHECKSUM}", _CHECKSUM_LINE % (checksum, status.st_ino, status.st_mtime_ns))


def _is_recorded(path: str, status: os.stat_result) -> bool:
    """Whether a copy is the one that was noted, or has its checksum, which is noted again then."""
    try:
        line = map_file(f"{path}{_CHECKSUM}").tobytes()
        checksum, (inode, modified_ns) = int(line[:8], 16), map(int, line[8:].split())
    except (StorageError, ValueError):  # there is none: the copy of an earlier version of this package
        return False
    if (inode, modified_ns) == (status.st_ino, status.st_mtime_ns):
        return True
    if zlib.crc32(map_file(path).data) != checksum:
        return False
    _record(path, path)
    return True


def _download(storage: ObjectStorage, remote: RemoteFile, descriptor: int) -> None:
    step = remote.settings.block_bytes

    def copy(start: int) -> None:
        data: Bytes = storage.fetch(remote.address, remote.version, start, min(start + step, remote.num_bytes))
        write_at(descriptor, data.data, start)
        advance(len(data))
        book().add(str(remote.address), bytes_used=len(data))

    os.ftruncate(descriptor, remote.num_bytes)
    with task(f"download of {remote.address}", unit="bytes", total=remote.num_bytes) as advance:
        storage.together([partial(copy, start) for start in range(0, remote.num_bytes, step)])


def _remove_others(folder: str, address: str, name: str) -> None:
    for other in os.listdir(folder):
        if other.startswith(f"{address}-") and not other.startswith(name) and not other.endswith(".part"):
            with suppress(FileNotFoundError):
                os.unlink(os.path.join(folder, other))


class PendingObject:
    """An object being written to a local file; `publish` uploads it, and it appears in one step.

    Like `PendingFile`: anything but `publish` removes what was written. Needs room for the whole object in the cache
    folder of object storage.

    Args:
        path: the address.
        settings: settings of the storage.
    """

    def __init__(self, path: str, settings: ObjectStorageSettings | None = None) -> None:
        self._address = parse_address(path)
        self.path: str = str(self._address)
        if query_of(self.path) is not None:
            message = f"expected an address to write to without a query, found `{self.path}?…`"
            raise ConfigError(message, hint="signed addresses are for reading")
        self._storage = object_storage(settings or ObjectStorageSettings())
        self._client = self._storage.client(self._address)
        local = os.path.join(_folder(self._storage, "uploads"), f"{short_hash(path)}-{os.getpid()}-{id(self):x}")
        self._file = PendingFile(local, durable=False)

    @property
    def stream(self) -> IO[bytes]:
        """The open binary stream of the local file."""
        return self._file.stream

    @property
    def is_durable(self) -> bool:
        """Never: the local file is only for the upload."""
        return False

    def write(self, data: bytes | memoryview) -> None:
        """Appends bytes."""
        self._file.write(data)

    @property
    def readable_path(self) -> str:
        """A local path that leads to what was written and handed to the system."""
        return self._file.readable_path

    def sync(self) -> None:
        """Hands all bytes to the operating system."""
        self._file.sync()

    def seal(self) -> None:
        """Closes the local file, which is complete."""
        self._file.seal()

    def identity(self) -> tuple[int, int]:
        """Returns device and inode of the local file."""
        return self._file.identity()

    def place(self) -> None:
        """Uploads the object, as `publish` does."""
        self.publish()

    def publish(self) -> None:
        """Uploads the object, replacing what had its name, and removes the local file."""
        self._file.publish()
        what = f"the upload of `{self.path}`, {size(os.path.getsize(self._file.path))}"
        try:
            with waiting_for(what, setting=server_words(self._address) or None):
                self._client.upload(self._address, self._file.path)
        finally:
            remove_leftover(self._file.path)

    def discard(self) -> None:
        """Removes the local file; harmless when repeated."""
        self._file.discard()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.publish()
        else:
            self.discard()
