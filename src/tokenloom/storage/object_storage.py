"""What a process holds of object storage: clients, threads, budgets, and what was announced of objects."""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import numpy as np

from tokenloom.errors import AccessDeniedError, StorageError, UnavailableError
from tokenloom.forks import cached_property
from tokenloom.progress import Wait, waiting_for
from tokenloom.storage.addresses import ObjectAddress, ObjectVersion
from tokenloom.storage.atomic import own_folder, storage_errors
from tokenloom.storage.block_cache import BlockCache
from tokenloom.storage.client import ObjectClient, make_client, missing
from tokenloom.storage.ending import ENDING, daemons_stopped, interruptible, submit
from tokenloom.storage.local import Bytes
from tokenloom.storage.read_ahead import ReadAhead
from tokenloom.storage.secrets import is_signed_alike
from tokenloom.storage.settings import ObjectStorageSettings, local_processes
from tokenloom.storage.statistics import count_reads, forget_statistics

T = TypeVar("T")

_LOGGER = logging.getLogger(__name__)

_FIRST_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 5.0

Piece = tuple[int, Bytes]
"""Some bytes of an object, behind the offset of the first."""


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
        self.share(1)

    @cached_property
    def folder(self) -> str:
        """The folder of this user's copies and blocks, and of nobody else; made when something is to be kept."""
        own = os.path.join(self._cache_path, f"objects-{os.geteuid()}")
        return own_folder(own, hint="name another folder as the cache of object storage")

    @cached_property
    def cache(self) -> BlockCache:
        """The blocks in it."""
        blocks = os.path.join(self.folder, "blocks")
        with storage_errors("create", blocks):
            os.makedirs(blocks, mode=0o700, exist_ok=True)
        return BlockCache(blocks, budget_bytes=self.settings.cache_bytes)

    def share(self, num_processes: int) -> None:
        """Divides the budgets of the node among the processes that read."""
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
        """Says which bucket is waited for where the `with` block takes long."""
        return waiting_for(f"an answer of `{address.root}`")


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
            storage.share(_num_sharers * local_processes())
        return storage


def share_budgets(num_processes: int) -> None:
    """Says that this is one of several processes that read for one rank, so that budgets are divided among them."""
    global _num_sharers
    if num_processes == _num_sharers:
        return
    _num_sharers = num_processes
    with _STORAGES_LOCK:
        for storage in _STORAGES.values():
            storage.share(num_processes * local_processes())


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
