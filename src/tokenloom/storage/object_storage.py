"""What a process holds of object storage: clients, threads, budgets, and what was announced of objects."""

from __future__ import annotations

import fcntl
import logging
import os
import random
import stat
import struct
import threading
import time
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, TypeVar

import numpy as np

from tokenloom import kernels
from tokenloom.errors import AccessDeniedError, CacheNotWrittenWarning, StorageError, UnavailableError
from tokenloom.forks import cached_property
from tokenloom.progress import Wait, waiting_for
from tokenloom.storage.addresses import ObjectAddress, ObjectVersion
from tokenloom.storage.atomic import close_lock, is_file_at, open_for_lock, remove_leftover, storage_errors, write_at
from tokenloom.storage.client import ObjectClient, make_client, missing
from tokenloom.storage.ending import ENDING, daemons_stopped, interruptible, submit
from tokenloom.storage.local import Bytes
from tokenloom.storage.read_ahead import ReadAhead
from tokenloom.storage.secrets import is_signed_alike
from tokenloom.storage.settings import ObjectStorageSettings
from tokenloom.storage.statistics import count_reads, forget_statistics
from tokenloom.storage.stores.obstore import s3_endpoint

T = TypeVar("T")

_LOGGER = logging.getLogger(__name__)

_FIRST_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 5.0

_CHECKSUM = struct.Struct("<I")

Piece = tuple[int, Bytes]
"""Some bytes of an object, behind the offset of the first."""


def own_folder(path: str, *, hint: str) -> str:
    """Makes a folder for this user alone, if need be, and returns its path.

    Args:
        path: path of the folder.
        hint: what to do if it is not.

    Raises:
        StorageError: it cannot be made; or it is a link, somebody else's, or others may write into it, so that what is
            in it cannot be trusted.
    """
    with storage_errors("create", path):
        os.makedirs(path, mode=0o700, exist_ok=True)
        found = os.lstat(path)
    if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022:
        return path
    expected = f"expected a folder that user {os.geteuid()} alone may write into"
    message = f"`{path}`: {expected}, found {stat.filemode(found.st_mode)} of user {found.st_uid}"
    raise StorageError(message, hint=f"{hint}, or allow nobody else to write there: `chmod 700 {path}`")


@contextmanager
def filling(path: str) -> Iterator[tuple[int, str] | None]:
    """Yields (descriptor, name) of a part file to fill and rename to `path`; one process or thread at a time.

    Others wait. None means that things have changed meanwhile: look again whether the file is there. A part file that
    was not renamed is removed.
    """
    part = f"{path}.part"
    descriptor = open_for_lock(part, os.O_RDWR | os.O_CREAT)
    try:
        with waiting_for(f"`{path}`, which another process makes"):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield (descriptor, part) if is_file_at(descriptor, part) and not os.path.lexists(path) else None
    finally:
        with suppress(OSError):
            if is_file_at(descriptor, part):
                remove_leftover(part)
        close_lock(descriptor)


class BlockCache:
    """Blocks of objects in a folder that all processes of a node share; safe from several threads and processes.

    A block is a file under a hashed name: its bytes and their CRC-32, so that what a loss of power left behind is not
    believed. It is mapped, and so stays readable when it is evicted. The process that fills a block holds a lock on
    the part file it grows in, which the system releases when its holder dies; others that want the block wait there,
    so it is fetched once. The budget counts blocks, and not those that are being filled at the same moment.

    Args:
        folder: exists; on a file system of this node, where `flock` works.
        budget_bytes: most bytes of all files in it together.
    """

    def __init__(self, folder: str, *, budget_bytes: int) -> None:
        self._folder = folder
        self._budget_bytes = budget_bytes

    def obtain(self, name: str, num_bytes: int, fetch: Callable[[], Bytes]) -> Bytes | None:
        """Returns a block, fetched if it is not here; None if the cache cannot take it.

        Args:
            name: name of the block, one for one content.
            num_bytes: its size.
            fetch: returns its bytes; called by one process at a time, and raises what it likes.
        """
        while True:
            path = os.path.join(self._folder, f"{name}.block")
            try:
                if (found := _open_block(path, num_bytes)) is not None:
                    return found
                with filling(path) as part:
                    if part is None:
                        continue
                    if num_bytes + _CHECKSUM.size > self._budget_bytes:
                        return None
                    descriptor, part_path = part
                    fetched = fetch()
                    self._make_room(num_bytes + _CHECKSUM.size)
                    write_at(descriptor, fetched.data, 0)
                    write_at(descriptor, memoryview(_CHECKSUM.pack(zlib.crc32(fetched.data))), num_bytes)
                    data, _ = kernels.map_file(part_path)
                    os.rename(part_path, path)
                    return data[:num_bytes]
            except OSError as error:
                if error.errno is None:  # ours, from `fetch`
                    raise
                message = f"blocks of object storage are not kept in `{self._folder}`: {error.strerror or error}; "
                warnings.warn(message + "reads go on without the cache", CacheNotWrittenWarning, stacklevel=2)
                return None

    def _make_room(self, num_bytes: int) -> None:
        """Removes the blocks that were used longest ago."""
        found = []
        for entry in os.scandir(self._folder):
            with suppress(FileNotFoundError):  # removed by another process
                status = entry.stat(follow_symlinks=False)
                if entry.name.endswith(".block"):
                    found.append((status.st_mtime, status.st_size, entry.path))
        excess = sum(size for _, size, _ in found) + num_bytes - self._budget_bytes
        for _, size, path in sorted(found):
            if excess <= 0:
                break
            with suppress(FileNotFoundError):
                os.unlink(path)
            excess -= size


def _open_block(path: str, num_bytes: int) -> Bytes | None:
    """Returns the bytes of a block that is there, which is used now; one that is damaged is removed."""
    try:
        data, _ = kernels.map_file(path)
        if len(data) == num_bytes + _CHECKSUM.size:
            content = data[:num_bytes]
            if _CHECKSUM.unpack(data[num_bytes:].tobytes())[0] == zlib.crc32(content.data):
                os.utime(path)
                return content
        os.unlink(path)
    except FileNotFoundError:  # or evicted meanwhile
        pass
    return None


class ObjectStorage:
    """What a process holds of object storage under some settings: clients, threads, the cache, and what was announced.

    Safe from several threads. A forked child has its own, see `object_storage`.
    """

    def __init__(self, settings: ObjectStorageSettings) -> None:
        self.settings = settings
        self._cache_path = settings.folder  # as the environment says now
        self._clients: dict[str, ObjectClient] = {}
        self._lock = threading.Lock()
        self._is_closed = False
        self._executor = ThreadPoolExecutor(max_workers=settings.concurrency, thread_name_prefix="tokenloom-objects")
        self.ahead: ReadAhead[Piece] = ReadAhead(self._submit, budget_bytes=0, concurrency=1)
        self.share(_num_sharers)

    @cached_property
    def folder(self) -> str:
        """The folder of this user's copies and blocks, and of nobody else; made when something is to be kept."""
        own = os.path.join(self._cache_path, f"objects-{os.geteuid()}")
        return own_folder(own, hint="name another folder as the cache of object storage")

    def subfolder(self, name: str) -> str:
        """Returns a folder in it, made if need be."""
        folder = os.path.join(self.folder, name)
        with storage_errors("create", folder):
            os.makedirs(folder, mode=0o700, exist_ok=True)
        return folder

    @cached_property
    def cache(self) -> BlockCache:
        """The blocks in it."""
        return BlockCache(self.subfolder("blocks"), budget_bytes=self.settings.cache_bytes)

    def share(self, num_processes: int) -> None:
        """Divides the budgets of the node among the processes that read; a rank has so many."""
        num_processes *= _local_processes()
        self.ahead.budget_bytes = self.settings.read_ahead_bytes // num_processes
        self.ahead.concurrency = max(1, self.settings.concurrency // num_processes)

    def client(self, address: ObjectAddress) -> ObjectClient:
        """Returns the client of a bucket."""
        with self._lock:
            if (client := self._clients.get(address.root)) is None:
                client = self._clients[address.root] = make_client(address, self.settings)
            return client

    def version(self, address: ObjectAddress) -> ObjectVersion:
        """Returns what an object is now; a denied access is believed."""
        client = self.client(address)
        try:
            return interruptible(lambda: self._ask(address, lambda: client.version(address), may_be_denied=True))
        except AccessDeniedError:
            if is_signed_alike(str(address)):  # a signature may be for one file, not for what lies beside it
                raise missing(address) from None
            raise

    def fetch(self, address: ObjectAddress, version: ObjectVersion, start: int, stop: int) -> Bytes:
        """Returns bytes [start, stop) of a version from the store, all of them, as uint8[stop - start]."""
        client = self.client(address)

        def attempt() -> Bytes:
            data: Bytes = np.frombuffer(client.read(address, start, stop, version), dtype=np.uint8)
            count_reads(str(address), bytes_fetched=len(data))
            if len(data) != stop - start:
                message = f"`{address}`: expected {stop - start} bytes from byte {start} on, found {len(data)}"
                raise UnavailableError(message)
            return data

        return self._ask(address, attempt)

    def together(self, tasks: Sequence[Callable[[], Any]]) -> list[Any]:
        """Returns the results of tasks that run at the same time, as far as the concurrency goes."""
        if len(tasks) == 1:
            return [tasks[0]()]
        with daemons_stopped():
            return [future.result() for future in [self._submit(task) for task in tasks]]

    def _submit(self, task: Callable[[], T]) -> Future[T]:
        return submit(self._executor, task)

    def close(self) -> None:
        """Ends the threads, without waiting for what is under way, and forgets what was announced."""
        self._is_closed = True
        self.ahead.close()
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _ask(self, address: ObjectAddress, attempt: Callable[[], T], *, may_be_denied: bool = False) -> T:
        """Returns what an attempt returns, made again after pauses that double, with jitter, until the deadline.

        A denied access is final if it `may_be_denied`. Else one was granted before, and an expired token or a busy
        server is likelier than wrong credentials.
        """
        passing = (UnavailableError,) if may_be_denied else (UnavailableError, AccessDeniedError)
        started, pause, num_attempts = time.monotonic(), _FIRST_PAUSE_SECONDS, 1
        with daemons_stopped(), self.waiting_for_answer(address) as wait:
            wait.note = "attempt 1"
            while not (self._is_closed or ENDING.is_set()):
                count_reads(str(address), requests=1)
                try:
                    return attempt()
                except passing as error:
                    delay = pause * random.uniform(0.5, 1.0)  # so that many readers do not come back at once
                    elapsed = time.monotonic() - started
                    is_late = elapsed + delay > self.settings.deadline_seconds
                    if is_late or ENDING.is_set() or num_attempts - 1 == self.settings.retries:
                        message = f"{error.message}; given up after {num_attempts} attempts in {elapsed:.1f} s"
                        hint = error.hint or "check the endpoint and the network"
                        raise type(error)(message, hint=hint) from error
                    _LOGGER.info("attempt %d failed and is repeated in %.2f s: %s", num_attempts, delay, error.message)
                    wait.note = f"attempt {num_attempts + 1}, as {error.message}"
                ENDING.wait(delay)
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
                num_attempts += 1
                count_reads(str(address), retries=1)
            message = f"`{address}` is not read any more: its storage was closed"
            raise StorageError(message)

    def waiting_for_answer(self, address: ObjectAddress) -> AbstractContextManager[Wait]:
        """Says which bucket is waited for where the `with` block takes long, and the endpoint of S3 that is set."""
        endpoint = s3_endpoint() if address.scheme == "s3" else None
        return waiting_for(f"an answer of `{address.root}`", setting=endpoint and "=".join(endpoint))


def _local_processes() -> int:
    """Returns how many processes of a run this node has, as launchers such as torchrun say it; 1 if none does."""
    text = os.environ.get("LOCAL_WORLD_SIZE", "")
    return max(1, int(text)) if text.isdecimal() else 1


_STORAGES: dict[ObjectStorageSettings, ObjectStorage] = {}
_STORAGES_LOCK = threading.Lock()
_num_sharers = 1


def object_storage(settings: ObjectStorageSettings) -> ObjectStorage:
    """Returns this process's storage for some settings."""
    if (storage := _STORAGES.get(settings)) is not None:
        return storage
    with _STORAGES_LOCK:
        if (storage := _STORAGES.get(settings)) is None:
            storage = _STORAGES[settings] = ObjectStorage(settings)
        return storage


def share_budgets(num_processes: int) -> None:
    """Says that this is one of several processes that read for one rank, so that budgets are divided among them."""
    global _num_sharers
    if num_processes == _num_sharers:
        return
    _num_sharers = num_processes
    with _STORAGES_LOCK:
        for storage in _STORAGES.values():
            storage.share(num_processes)


def close_storages() -> None:
    """Ends the threads and drops the clients of this process; what is opened or read next begins anew."""
    with _STORAGES_LOCK:
        storages = list(_STORAGES.values())
        _STORAGES.clear()
    for storage in storages:
        storage.close()


def _begin_in_child() -> None:
    global _STORAGES_LOCK
    _STORAGES_LOCK = threading.Lock()  # another thread of the parent may have held it
    _STORAGES.clear()
    forget_statistics()


os.register_at_fork(after_in_child=_begin_in_child)
