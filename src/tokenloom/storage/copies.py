"""Whole objects as local files: what is mapped lies here, what is written is built here first."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from functools import partial

from tokenloom.errors import ConfigError
from tokenloom.progress import task, waiting_for
from tokenloom.rendering.words import size
from tokenloom.storage.addresses import parse_address, short_hash
from tokenloom.storage.atomic import PendingFile, storage_errors
from tokenloom.storage.local import Bytes
from tokenloom.storage.locks import filling, write_at
from tokenloom.storage.object_storage import ObjectStorage, object_storage
from tokenloom.storage.objects import RemoteFile
from tokenloom.storage.secrets import query_of
from tokenloom.storage.settings import ObjectStorageSettings
from tokenloom.storage.statistics import count_reads

_COPIED_NS = 10**18
"""Time of change that a whole copy has: whatever is changed later has another one."""


def local_copy(remote: RemoteFile) -> str:
    """Returns the path of a local file with the bytes of an object, downloaded once for all processes of the node.

    Its name is made of hashes of the address, and of etag and size: no key leads out of the folder, and an object that
    changed has another copy. The copies of earlier versions are removed; who has mapped one keeps it. A copy that was
    changed is made again.

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
                os.utime(descriptor, ns=(_COPIED_NS, _COPIED_NS))
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


def _is_sound(path: str, num_bytes: int) -> bool:
    """Whether a copy is there, as it was downloaded; another one is removed."""
    with suppress(FileNotFoundError):
        found = os.lstat(path)
        if stat.S_ISREG(found.st_mode) and (found.st_size, found.st_mtime_ns) == (num_bytes, _COPIED_NS):
            return True
        os.unlink(path)
    return False


def _download(storage: ObjectStorage, remote: RemoteFile, descriptor: int) -> None:
    step = remote.settings.block_bytes

    def copy(start: int) -> None:
        data: Bytes = storage.fetch(remote.address, remote.version, start, min(start + step, remote.num_bytes))
        write_at(descriptor, data.data, start)
        advance(len(data))
        count_reads(str(remote.address), bytes_used=len(data))

    os.ftruncate(descriptor, remote.num_bytes)
    with task(f"download of {remote.address}", unit="bytes", total=remote.num_bytes) as advance:
        storage.together([partial(copy, start) for start in range(0, remote.num_bytes, step)])


def _remove_others(folder: str, address: str, name: str) -> None:
    for other in os.listdir(folder):
        if other.startswith(f"{address}-") and other != name and not other.endswith(".part"):
            with suppress(FileNotFoundError):
                os.unlink(os.path.join(folder, other))


class PendingObject(PendingFile):
    """An object being written to a local file; `publish` uploads it, and it appears in one step.

    Needs room for the whole object in the cache folder of object storage.

    Args:
        path: the address.
        settings: settings of the storage.
    """

    def __init__(self, path: str, settings: ObjectStorageSettings | None = None) -> None:
        self._address = parse_address(path)
        if query_of(str(self._address)) is not None:
            message = f"expected an address to write to without a query, found `{self._address}?…`"
            raise ConfigError(message, hint="signed addresses are for reading")
        storage = object_storage(settings or ObjectStorageSettings())
        self._client = storage.client(self._address)
        local = os.path.join(_folder(storage, "uploads"), f"{short_hash(path)}-{os.getpid()}-{id(self):x}")
        super().__init__(local, durable=False)
        self.path: str = str(self._address)

    def publish(self) -> None:
        """Uploads the object, replacing what had its name, and removes the local file."""
        try:
            self.sync()
            what = f"the upload of `{self.path}`, {size(os.path.getsize(self.readable_path))}"
            with waiting_for(what):
                self._client.upload(self._address, self.readable_path)
        finally:
            self.discard()
