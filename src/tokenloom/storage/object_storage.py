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
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from tokenloom.errors import AccessDeniedError, StorageError, UnavailableError
from tokenloom.forks import cached_property
from tokenloom.progress import Wait, waiting_for
from tokenloom.storage.addresses import ObjectAddress, ObjectVersion
from tokenloom.storage.atomic import own_folder, storage_errors
from tokenloom.storage.block_cache import Block, BlockCache
from tokenloom.storage.client import ObjectClient, make_client, missing
from tokenloom.storage.ending import at_end, daemons_stopped, interruptible, submit
from tokenloom.storage.endpoint import server_words
from tokenloom.storage.local import Bytes
from tokenloom.storage.read_ahead import ReadAhead
from tokenloom.storage.secrets import is_signed_alike
from tokenloom.storage.settings import ObjectStorageSettings, local_processes
from tokenloom.storage.statistics import count_reads, forget_statistics

T = TypeVar("T")

_LOGGER = logging.getLogger(__name__)

_FIRST_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 5.0
_MOST_HELD_BLOCKS = 256
"""Each costs a descriptor."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Some bytes of an object, from `start` on; of a block that is held, or in memory."""

    start: int
    bytes: Bytes
    block: Block | None = None


class ObjectStorage:
    """What a process holds of object storage under some settings: clients, threads, the cache, and what was announced.

    Safe from several threads. A forked child has its own, see `object_storage`.
    """

    def __init__(self, settings: ObjectStorageSettings) -> None:
        self.settings = settings
        self._cache_path = settings.folder  # as the environment says now
        self._clients: dict[str, ObjectClient] = {}
        self._server_words: dict[str, str] = {}
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._executor = ThreadPoolExecutor(max_workers=settings.concurrency, thread_name_prefix="tokenloom-objects")
        self.ranges: ReadAhead[Piece] = ReadAhead(self._submit, budget_bytes=0, concurrency=1)
        self.blocks: ReadAhead[Piece] = ReadAhead(self._submit, budget_bytes=0, concurrency=1)
        self.share(1)

    @cached_property
    def folder(self) -> str:
        """The folder of this user's copies and blocks; made when something is to be kept."""
        return _own_folder(self._cache_path)

    @cached_property
    def cache(self) -> BlockCache:
        """The blocks in it."""
        blocks = os.path.join(self.folder, "blocks")
        with storage_errors("create", blocks):
            os.makedirs(blocks, mode=0o700, exist_ok=True)
        return BlockCache(blocks, budget_bytes=self.settings.cache_bytes)

    def share(self, num_processes: int) -> None:
        """Divides the budgets of the node among the processes that read."""
        settings = self.settings
        self.ranges.budget_bytes = settings.read_ahead_bytes // num_processes
        self.blocks.budget_bytes = min(settings.cache_bytes // num_processes, _MOST_HELD_BLOCKS * settings.block_bytes)
        self.ranges.concurrency = self.blocks.concurrency = max(1, settings.concurrency // num_processes)

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

    def hurry(self) -> None:
        """Lets what is under way end with its next failure, and what has not begun fail."""
        self._stopping.set()

    def close(self) -> None:
        """Ends the threads, without waiting for what is under way, and forgets what was announced."""
        self.hurry()
        self.ranges.close()
        self.blocks.close()
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _ask(self, address: ObjectAddress, attempt: Callable[[], T], *, may_be_denied: bool = False) -> T:
        source = str(address)

        def count_and_attempt() -> T:
            if self._stopping.is_set():
                message = f"`{address}` is not read any more: its storage was closed"
                raise StorageError(message)
            count_reads(source, requests=1)
            return attempt()

        with daemons_stopped(), self.waiting_for_answer(address) as wait:
            return patiently(
                count_and_attempt,
                deadline_seconds=self.settings.deadline_seconds,
                on_retry=lambda: count_reads(source, retries=1),
                most_retries=self.settings.retries,
                may_be_denied=may_be_denied,
                stopping=self._stopping,
                wait=wait,
            )

    def waiting_for_answer(self, address: ObjectAddress) -> AbstractContextManager[Wait]:
        """Says which server is waited for where the `with` block takes long, and what names it."""
        if (words := self._server_words.get(address.root)) is None:
            words = self._server_words[address.root] = server_words(address)
        return waiting_for(f"an answer of `{address.root}`", setting=words or None)


def patiently(
    attempt: Callable[[], T],
    *,
    deadline_seconds: float,
    on_retry: Callable[[], None],
    most_retries: int | None = None,
    may_be_denied: bool = False,
    stopping: threading.Event | None = None,
    wait: Wait | None = None,
) -> T:
    """Returns what an attempt returns, trying again after pauses that double, with jitter, until the deadline.

    Args:
        attempt: raises `UnavailableError` for what may pass; any other error is final.
        deadline_seconds: time from now, after which no attempt begins.
        on_retry: called before each further attempt.
        most_retries: further attempts at most; None for as many as the deadline allows.
        may_be_denied: whether a denied access is final. Without, it may pass too: where access was granted before, an
            expired token or a busy server is likelier than wrong credentials.
        stopping: set when nobody waits for the result any more.
        wait: is told which attempt it is, and why the one before failed.

    Raises:
        StorageError: the last attempt's, with the number of attempts.
    """
    stopping = stopping or threading.Event()
    passing = (UnavailableError,) if may_be_denied else (UnavailableError, AccessDeniedError)
    started = time.monotonic()
    pause = _FIRST_PAUSE_SECONDS
    num_attempts = 1
    if wait is not None:
        wait.note = "attempt 1"
    while True:
        try:
            return attempt()
        except passing as error:
            delay = pause * random.uniform(0.5, 1.0)  # so that many readers do not come back at once
            elapsed = time.monotonic() - started
            is_leaving = stopping.is_set()
            if is_leaving or elapsed + delay > deadline_seconds or num_attempts - 1 == most_retries:
                raise _given_up(error, num_attempts, elapsed) from error
            _LOGGER.info("attempt %d failed and is repeated in %.2f s: %s", num_attempts, delay, error.message)
            if wait is not None:
                wait.note = f"attempt {num_attempts + 1}, as {error.message}"
        stopping.wait(delay)
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        num_attempts += 1
        on_retry()


def _given_up(error: StorageError, num_attempts: int, elapsed: float) -> StorageError:
    message = f"{error.message}; given up after {num_attempts} attempts in {elapsed:.1f} s"
    return type(error)(message, hint=error.hint or "check the endpoint and the network")


def _own_folder(folder: str) -> str:
    """Returns the part of the cache folder that is this user's alone, made if need be; never someone else's."""
    own = os.path.join(folder, f"objects-{os.geteuid()}")
    return own_folder(own, hint="name another folder as the cache of object storage")


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


def _hurry_all() -> None:
    for storage in list(_STORAGES.values()):
        storage.hurry()


os.register_at_fork(after_in_child=_begin_in_child)
at_end(_hurry_all)
