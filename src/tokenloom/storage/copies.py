"""Whole objects as local files: what is mapped lies here, what is written is built here first."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import IO, Self

from tokenloom.storage.addresses import parse_address, short_hash
from tokenloom.storage.atomic import PendingFile, storage_errors
from tokenloom.storage.local import Bytes
from tokenloom.storage.locks import filling, write_at
from tokenloom.storage.objects import ObjectStorage, RemoteFile, object_storage
from tokenloom.storage.settings import ObjectStorageSettings
from tokenloom.storage.statistics import book


def local_copy(remote: RemoteFile) -> str:
    """Returns the path of a local file with the bytes of an object, downloaded once for all processes of the node.

    Its name is made of hashes of the address, and of etag and size: no key leads out of the folder, and an object that
    changed has another copy. The copies of earlier versions are removed; who has mapped one keeps it.

    Raises:
        StorageError: the object cannot be read, or the copy cannot be written.
    """
    storage = object_storage(remote.settings)
    folder = _folder(storage, "copies")
    address = short_hash(remote.address)
    path = os.path.join(folder, f"{address}-{short_hash(remote.version.num_bytes, remote.version.etag)}")
    while not _has_size(path, remote.num_bytes):
        with storage_errors("write", path), filling(path) as part:
            if part is not None:
                descriptor, part_path = part
                _download(storage, remote, descriptor)
                os.fsync(descriptor)
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


def _has_size(path: str, num_bytes: int) -> bool:
    """Whether a copy is there; one of another size, which a loss of power can leave, is removed."""
    try:
        if os.lstat(path).st_size == num_bytes:
            return True
        os.unlink(path)
    except FileNotFoundError:
        pass
    return False


def _download(storage: ObjectStorage, remote: RemoteFile, descriptor: int) -> None:
    step = remote.settings.block_bytes

    def copy(start: int) -> None:
        data: Bytes = storage.fetch(remote.address, remote.version, start, min(start + step, remote.num_bytes))
        write_at(descriptor, data.data, start)
        book().add(str(remote.address), bytes_used=len(data))

    os.ftruncate(descriptor, remote.num_bytes)
    storage.together([partial(copy, start) for start in range(0, remote.num_bytes, step)])


def _remove_others(folder: str, address: str, name: str) -> None:
    for other in os.listdir(folder):
        if other.startswith(f"{address}-") and other != name and not other.endswith(".part"):
            with suppress(FileNotFoundError):
                os.unlink(os.path.join(folder, other))


class PendingObject:
    """An object being written to a local file; `publish` uploads it, and it appears in one step.

    Like `PendingFile`: anything but `publish` removes what was written. Needs room for the whole object in the cache
    folder of object storage.

    Args:
        path: the address.
        settings: of the storage.
    """

    def __init__(self, path: str, settings: ObjectStorageSettings | None = None) -> None:
        self.path = path
        self._address = parse_address(path)
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

    def sync(self) -> None:
        """Hands all bytes to the operating system."""
        with storage_errors("write", self.path):
            self._file.stream.flush()

    def publish(self) -> None:
        """Uploads the object, replacing what had its name, and removes the local file."""
        self._file.publish()
        try:
            self._client.upload(self._address, self._file.path)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(self._file.path)

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
