"""Reads objects of a store (exact ranges, cached blocks, prefetched ranges or local copies), and writes objects.

Announced ranges are fetched in order, within a memory budget and a limit of concurrent requests, and dropped after
their last use. Ranges of an abandoned loader are dropped once later ranges were read and memory is needed.
"""

from __future__ import annotations

import fcntl
import glob
import logging
import os
import random
import stat
import struct
import threading
import time
import warnings
import zlib
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

import numpy as np

from tokenloom.errors import AccessDeniedError, CacheNotWrittenWarning, ConfigError, StorageError, UnavailableError
from tokenloom.forks import cached_property
from tokenloom.kernels.storage import map_file
from tokenloom.progress import Wait, task, waiting_for
from tokenloom.rendering.words import size
from tokenloom.storage import atomic
from tokenloom.storage.addresses import (
    ObjectAddress,
    ObjectClient,
    ObjectVersion,
    make_client,
    missing,
    parse_address,
    short_hash,
)
from tokenloom.storage.atomic import PendingFile, remove_leftover, storage_errors, write_at
from tokenloom.storage.ending import ENDING, daemons_stopped, interruptible, submit
from tokenloom.storage.local import Bytes, ByteSource, Integers, Ranges, out_of_range
from tokenloom.storage.secrets import is_signed_alike, queries_for_child, query_of, remember
from tokenloom.storage.settings import ObjectStorageSettings
from tokenloom.storage.statistics import count_reads, forget_statistics
from tokenloom.storage.stores import s3_endpoint

T = TypeVar("T")

_LOGGER = logging.getLogger(__name__)

_FIRST_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 5.0

_CHECKSUM = struct.Struct("<I")

_SLACK = 8  # number of announcements by which readers in several threads may be ahead of each other

_GAP_SHARE = 20
"""Ranges are merged if the gap is at most 1/20 of each range, so at most 1.05 bytes are fetched per byte used."""

Piece = tuple[int, Bytes]
"""The offset and the bytes of a part of an object."""


@dataclass(eq=False, slots=True)
class Chunk(Generic[T]):
    """A range to fetch with one request, for one or more announced reads."""

    num_bytes: int
    load: Callable[[], T]
    name: Hashable = None
    keys: list[Hashable] = field(default_factory=list)  # of the announced reads that remain
    turn: int = 0  # number of the last announcement that uses this chunk
    future: Future[T] | None = None
    value: T | None = None  # set after fetching


class ReadAhead(Generic[T]):
    """A queue that prefetches the chunks of announced reads, and keeps them until they are read. Thread-safe.

    Chunks in memory or in flight take at most `budget_bytes`, and at most `concurrency` chunks are in flight. A chunk
    that a reader waits for is fetched regardless of both limits. `submit` runs a fetch in the background.
    """

    def __init__(self, submit: Callable[[Callable[[], T]], Future[T]], *, budget_bytes: int, concurrency: int) -> None:
        self.budget_bytes = budget_bytes
        self.concurrency = concurrency
        self._submit = submit
        self._lock = threading.RLock()
        self._announced: dict[Hashable, deque[tuple[Chunk[T], int]]] = {}  # by read key; int: announcement number
        self._chunks: dict[Hashable, Chunk[T]] = {}  # by name: chunks with announced reads
        self._waiting: deque[Chunk[T]] = deque()
        self._held: dict[Chunk[T], None] = {}  # chunks in memory or in flight, in the order of their requests
        self._held_bytes = 0
        self.num_loading: int = 0
        self._turn = 0
        self._turn_read = 0

    def __len__(self) -> int:
        """The number of chunks in memory or in flight."""
        return len(self._held)

    def announce(self, uses: Sequence[tuple[Hashable, Hashable]], make: Callable[[Hashable], Chunk[T]]) -> None:
        """Announces reads as (read key, chunk name), in read order; calls `make(name)` for each new chunk name."""
        with self._lock:
            self._turn += 1
            for key, name in uses:
                if (chunk := self._chunks.get(name)) is None:
                    chunk = self._chunks[name] = make(name)
                    chunk.name = name
                    self._waiting.append(chunk)
                chunk.keys.append(key)
                chunk.turn = self._turn
                self._announced.setdefault(key, deque()).append((chunk, self._turn))
            self._start_waiting()

    def expects(self, key: Hashable) -> bool:
        return key in self._announced

    def use(self, keys: Sequence[Hashable], start: int = 0) -> tuple[list[T], bool]:
        """Reads the announced `keys[start]`, `keys[start + 1]`, ...; returns (values, whether a read had to wait).

        Returns no values if `keys[start]` was not announced. Stops before a later key that was not announced or is not
        fetched yet, and after the last use of a chunk; so a caller holds at most one dropped chunk.
        """
        found: list[T] = []
        waited = is_last = False
        for number in range(start, len(keys)):
            with self._lock:
                if is_last or not (known := self._announced.get(keys[number])):
                    break
                chunk, turn = known[0]
                if found and chunk.value is None:
                    break
                known.popleft()
                if not known:
                    del self._announced[keys[number]]
                self._turn_read = max(self._turn_read, turn)
                future = chunk.future or self._start(chunk)
            waited = waited or not future.done()
            try:
                found.append(future.result())
            finally:
                with self._lock:
                    chunk.keys.remove(keys[number])
                    if is_last := not chunk.keys:
                        self._chunks.pop(chunk.name, None)
                        self._drop(chunk)
                        self._start_waiting()
        return found, waited

    def close(self) -> None:
        with self._lock:
            self._waiting.clear()

    def _start_waiting(self) -> None:
        while self._waiting and self.num_loading < self.concurrency and not ENDING.is_set():
            chunk = self._waiting[0]
            is_wanted = chunk.future is None and bool(chunk.keys)
            if is_wanted and self._is_abandoned(chunk):
                self._forget(chunk)
                is_wanted = False
            if is_wanted and not self._has_room(chunk):
                return
            self._waiting.popleft()
            if is_wanted:
                self._start(chunk)  # may finish at once and call this method again

    def _has_room(self, chunk: Chunk[T]) -> bool:
        """Drops abandoned chunks until `chunk` fits the budget; returns whether it fits."""
        for held in list(self._held):
            if self._held_bytes + chunk.num_bytes <= self.budget_bytes:
                break
            if self._is_abandoned(held) and held.future is not None and held.future.done():
                self._forget(held)
                self._drop(held)
        return not self._held or self._held_bytes + chunk.num_bytes <= self.budget_bytes

    def _start(self, chunk: Chunk[T]) -> Future[T]:
        future = chunk.future = self._submit(chunk.load)
        self._held[chunk] = None
        self._held_bytes += chunk.num_bytes
        self.num_loading += 1
        future.add_done_callback(partial(self._loaded, chunk))
        return future

    def _loaded(self, chunk: Chunk[T], future: Future[T]) -> None:
        with self._lock:
            self.num_loading -= 1
            if not future.cancelled() and future.exception() is None:
                chunk.value = future.result()
            self._start_waiting()

    def _is_abandoned(self, chunk: Chunk[T]) -> bool:
        return chunk.turn < self._turn_read - _SLACK

    def _forget(self, chunk: Chunk[T]) -> None:
        for key in set(chunk.keys):
            if left := deque(each for each in self._announced.pop(key, ()) if each[0] is not chunk):
                self._announced[key] = left
        chunk.keys.clear()
        self._chunks.pop(chunk.name, None)

    def _drop(self, chunk: Chunk[T]) -> None:
        if chunk in self._held:
            del self._held[chunk]
            self._held_bytes -= chunk.num_bytes


def merge_ranges(offsets: Integers, lengths: Integers, *, most_bytes: int) -> list[tuple[int, int, list[int]]]:
    """Merges nearby byte ranges if the result has at most `most_bytes`; returns sorted (start, stop, range indices)."""
    requests: list[tuple[int, int, list[int]]] = []
    order = np.argsort(offsets, kind="stable")
    for number, start, length in zip(order.tolist(), offsets[order].tolist(), lengths[order].tolist(), strict=True):
        if requests:
            first, stop, members = requests[-1]
            joined = max(stop, start + length)
            if (start - stop) * _GAP_SHARE <= min(stop - first, length) and joined - first <= most_bytes:
                members.append(number)
                requests[-1] = (first, joined, members)
                continue
        requests.append((start, start + length, [number]))
    return requests


def own_folder(path: str, *, hint: str) -> str:
    """Creates a folder if missing; returns `path`. `StorageError` for a link, or if other users may write to it."""
    with storage_errors("create", path):
        os.makedirs(path, mode=0o700, exist_ok=True)
        found = os.lstat(path)
    if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022:
        return path
    message = f"`{path}`: must be a folder writable only by user {os.geteuid()}, got {stat.filemode(found.st_mode)}"
    raise StorageError(f"{message} of user {found.st_uid}", hint=f"{hint}, or run `chmod 700 {path}`")


@contextmanager
def filling(path: str) -> Iterator[tuple[int, str] | None]:
    """Yields (descriptor, temporary path) of a locked file, which the caller fills and renames to `path`.

    Removes a file that was not renamed. Yields None if another process was faster; then check whether `path` exists.
    """
    part = f"{path}.part"
    descriptor = atomic.open_for_lock(part, os.O_RDWR | os.O_CREAT)
    try:
        with waiting_for(f"`{path}`, which another process is making"):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield (descriptor, part) if atomic.is_file_at(descriptor, part) and not os.path.lexists(path) else None
    finally:
        with suppress(OSError):
            if atomic.is_file_at(descriptor, part):
                remove_leftover(part)
        atomic.close_lock(descriptor)


class BlockCache:
    """A cache of blocks of objects, in a folder that all threads and processes of a node share.

    A block is a file with bytes of an object and the CRC-32 of these bytes. Readers map the file, so they can still
    read an evicted block. Only one process fetches a missing block. Blocks count for the budget once they are filled.
    """

    def __init__(self, folder: str, *, budget_bytes: int) -> None:
        self._folder = folder
        self._budget_bytes = budget_bytes

    def obtain(self, name: str, num_bytes: int, fetch: Callable[[], Bytes]) -> Bytes | None:
        """Returns a block, fetched if missing; None if it exceeds the budget or (with a warning) cannot be cached."""
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
                    data, _ = map_file(part_path)
                    os.rename(part_path, path)
                    return data[:num_bytes]
            except OSError as error:
                if error.errno is None:  # raised by `fetch`, not by the cache
                    raise
                message = f"cannot cache blocks of object storage in `{self._folder}`: {error.strerror or error}"
                warnings.warn(message, CacheNotWrittenWarning, stacklevel=2)
                return None

    def _make_room(self, num_bytes: int) -> None:
        """Removes least recently used blocks until `num_bytes` more fit the budget."""
        found = []
        for entry in os.scandir(self._folder):
            with suppress(FileNotFoundError):  # removed by another process
                if entry.name.endswith(".block"):
                    status = entry.stat(follow_symlinks=False)
                    found.append((status.st_mtime, status.st_size, entry.path))
        excess = sum(held for _, held, _ in found) + num_bytes - self._budget_bytes
        for _, held, path in sorted(found):
            if excess <= 0:
                break
            remove_leftover(path)
            excess -= held


def _open_block(path: str, num_bytes: int) -> Bytes | None:
    """Returns the bytes of a block and marks the block as used; None if missing or damaged. Removes a damaged block."""
    try:
        data, _ = map_file(path)
        if len(data) == num_bytes + _CHECKSUM.size:
            content = data[:num_bytes]
            if _CHECKSUM.unpack(data[num_bytes:].tobytes())[0] == zlib.crc32(content.data):
                os.utime(path)
                return content
        os.unlink(path)
    except FileNotFoundError:  # missing, or evicted meanwhile
        pass
    return None


class ObjectStorage:
    """The clients, threads and cache of this process for equal `settings`. Thread-safe; not inherited by forks."""

    def __init__(self, settings: ObjectStorageSettings) -> None:
        self.settings = settings
        self._cache_path = settings.folder  # read from the environment once, here
        self._clients: dict[str, ObjectClient] = {}
        self._lock = threading.Lock()
        self._is_closed = False
        self._executor = ThreadPoolExecutor(max_workers=settings.concurrency, thread_name_prefix="tokenloom-objects")
        self.ahead: ReadAhead[Piece] = ReadAhead(partial(submit, self._executor), budget_bytes=0, concurrency=1)
        self.share(_num_sharers)

    @cached_property
    def folder(self) -> str:
        """The cache folder for objects, created on first use; only this user may write to it."""
        own = os.path.join(self._cache_path, f"objects-{os.geteuid()}")
        return own_folder(own, hint="set `cache_path` or $TOKENLOOM_CACHE to another folder")

    def subfolder(self, name: str) -> str:
        folder = os.path.join(self.folder, name)
        with storage_errors("create", folder):
            os.makedirs(folder, mode=0o700, exist_ok=True)
        return folder

    @cached_property
    def cache(self) -> BlockCache:
        return BlockCache(self.subfolder("blocks"), budget_bytes=self.settings.cache_bytes)

    def share(self, num_processes: int) -> None:
        """Divides the limits of prefetched bytes and of requests by (number of ranks of the node × `num_processes`)."""
        num_ranks = os.environ.get("LOCAL_WORLD_SIZE", "")  # set by launchers such as torchrun
        num_processes *= max(1, int(num_ranks)) if num_ranks.isdecimal() else 1
        self.ahead.budget_bytes = self.settings.read_ahead_bytes // num_processes
        self.ahead.concurrency = max(1, self.settings.concurrency // num_processes)

    def client(self, address: ObjectAddress) -> ObjectClient:
        with self._lock:
            if (client := self._clients.get(address.root)) is None:
                client = self._clients[address.root] = make_client(address, self.settings)
            return client

    def version(self, address: ObjectAddress) -> ObjectVersion:
        """Returns the current version of an object; does not retry if access is denied."""
        client = self.client(address)
        try:
            return interruptible(lambda: self._ask(address, lambda: client.version(address), may_be_denied=True))
        except AccessDeniedError:
            if is_signed_alike(str(address)):  # the signature may cover only another file of the dataset
                raise missing(address) from None
            raise

    def fetch(self, address: ObjectAddress, version: ObjectVersion, start: int, stop: int) -> Bytes:
        """Returns bytes [start, stop), uint8[stop - start], of one version of an object."""
        client = self.client(address)

        def attempt() -> Bytes:
            data: Bytes = np.frombuffer(client.read(address, start, stop, version), dtype=np.uint8)
            count_reads(str(address), bytes_fetched=len(data))
            if len(data) != stop - start:
                message = f"`{address}`: expected {stop - start} bytes starting at byte {start}, found {len(data)}"
                raise UnavailableError(message)
            return data

        return self._ask(address, attempt)

    def together(self, tasks: Sequence[Callable[[], Any]]) -> list[Any]:
        if len(tasks) == 1:
            return [tasks[0]()]
        with daemons_stopped():
            return [future.result() for future in [submit(self._executor, task) for task in tasks]]

    def close(self) -> None:
        """Ends the threads without waiting for requests in flight, and drops announced reads."""
        self._is_closed = True
        self.ahead.close()
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _ask(self, address: ObjectAddress, attempt: Callable[[], T], *, may_be_denied: bool = False) -> T:
        """Calls `attempt` until a call succeeds, or the deadline or limit of retries is reached; each pause doubles.

        A denied request is retried unless `may_be_denied`: once access was granted, an expired token or a busy server
        is more likely than wrong credentials.
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
                    delay = pause * random.uniform(0.5, 1.0)  # so that readers do not retry simultaneously
                    elapsed = time.monotonic() - started
                    is_late = elapsed + delay > self.settings.deadline_seconds
                    if is_late or ENDING.is_set() or num_attempts - 1 == self.settings.retries:
                        message = f"{error.message}; given up after {num_attempts} attempts in {elapsed:.1f} s"
                        hint = error.hint or "check the endpoint and the network"
                        raise type(error)(message, hint=hint) from error
                    _LOGGER.info("attempt %d failed, next attempt in %.2f s: %s", num_attempts, delay, error.message)
                    wait.note = f"attempt {num_attempts + 1}, as {error.message}"
                ENDING.wait(delay)
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
                num_attempts += 1
                count_reads(str(address), retries=1)
            raise StorageError(f"cannot read `{address}`: the object storage client of this process was closed")

    def waiting_for_answer(self, address: ObjectAddress) -> AbstractContextManager[Wait]:
        """If the `with` block takes long, reports that the bucket has not answered, and names the S3 endpoint."""
        endpoint = s3_endpoint() if address.scheme == "s3" else None
        return waiting_for(f"an answer of `{address.root}`", setting=endpoint and "=".join(endpoint))


_STORAGES: dict[ObjectStorageSettings, ObjectStorage] = {}
_STORAGES_LOCK = threading.Lock()  # not `READING_LOCK`, whose holder may wait for threads that open objects
_num_sharers = 1


def object_storage(settings: ObjectStorageSettings) -> ObjectStorage:
    with _STORAGES_LOCK:
        if (storage := _STORAGES.get(settings)) is None:
            storage = _STORAGES[settings] = ObjectStorage(settings)
        return storage


def share_budgets(num_processes: int) -> None:
    """Gives this process its share of the limits of the node, if each rank reads in `num_processes` processes."""
    global _num_sharers
    with _STORAGES_LOCK:
        _num_sharers = num_processes
        for storage in _STORAGES.values():
            storage.share(num_processes)


def close_storages() -> None:
    """Ends the object storage threads of this process and drops its clients; the next read starts new ones."""
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


class RemoteFile(ByteSource):
    """One version of an object, by default the current version. An unpickled copy reads the same version."""

    def __init__(
        self, path: str, settings: ObjectStorageSettings | None = None, version: ObjectVersion | None = None
    ) -> None:
        self.address: ObjectAddress = parse_address(path)
        self.path: str = str(self.address)
        self.settings: ObjectStorageSettings = settings or ObjectStorageSettings()
        self.version: ObjectVersion = version or object_storage(self.settings).version(self.address)
        self.name: str = short_hash(self.address, self.version.num_bytes, self.version.etag, self.settings.block_bytes)
        self._last_stop: int | None = None
        self._last_block: tuple[int, Bytes] | None = None

    def __getstate__(self) -> dict[str, Any]:
        state = {**self.__dict__, "_last_stop": None, "_last_block": None}
        return {"state": state, "queries": queries_for_child()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        remember(state["queries"])
        self.__dict__.update(state["state"])

    @property
    def num_bytes(self) -> int:
        return self.version.num_bytes

    def read(self, offset: int, length: int) -> Bytes:
        """Returns bytes [offset, offset + length) as a read-only uint8[length]."""
        return next(self.read_many([offset], [length]))

    def read_many(self, offsets: Sequence[int], lengths: Sequence[int]) -> Iterator[Bytes]:
        """Yields the bytes of many ranges, in argument order; concurrently fetches ranges that were not announced."""
        for offset, length in zip(offsets, lengths, strict=True):
            if offset < 0 or length < 0 or offset + length > self.num_bytes:
                raise out_of_range(self.path, offset, length, self.num_bytes)
        storage = object_storage(self.settings)
        keys = [(self.name, *each) for each in zip(offsets, lengths, strict=True)]
        unknown = [number for number, key in enumerate(keys) if key[2] and not storage.ahead.expects(key)]
        at_once: dict[int, Bytes] = {}
        if len(unknown) > 1:
            started = time.perf_counter()
            fetched = storage.together([partial(self._fetch, keys[n][1], sum(keys[n][1:])) for n in unknown])
            at_once = dict(zip(unknown, fetched, strict=True))
            self._book(sum(map(len, fetched)), num_waits=len(fetched), started=started)
        number = 0
        while number < len(keys):
            parts = [at_once.pop(number)] if number in at_once else self._read_announced(storage, keys, number)
            parts = parts or [self._read(storage, *keys[number][1:])]
            yield from parts
            number += len(parts)

    def will_need(self, offsets: Integers, lengths: Integers, *, blocks: Ranges | None = None) -> None:
        """Announces later reads of exactly these ranges, in this order, so that they are prefetched.

        With `blocks`, the starts and the stops of a block around each range, whole blocks are fetched into the cache of
        the node. If `blocks` is None, only the ranges are fetched.
        """
        used, load = np.flatnonzero(lengths), self._fetch
        keys = [(self.name, *each) for each in zip(offsets[used].tolist(), lengths[used].tolist(), strict=True)]
        if blocks is not None:
            around = zip(blocks[0][used].tolist(), blocks[1][used].tolist(), strict=True)
            names, load = [(self.name, *each) for each in around], self._load_block
        else:
            requests = merge_ranges(offsets[used], lengths[used], most_bytes=self.settings.block_bytes)
            chunks = {number: (self.name, start, stop) for start, stop, members in requests for number in members}
            names = [chunks[number] for number in range(len(keys))]

        def make(name: Any) -> Chunk[Piece]:
            _, start, stop = name
            return Chunk(stop - start, lambda: (start, load(start, stop)))

        object_storage(self.settings).ahead.announce(list(zip(keys, names, strict=True)), make)

    def _fetch(self, start: int, stop: int) -> Bytes:
        return object_storage(self.settings).fetch(self.address, self.version, start, stop)

    def _load_block(self, start: int, stop: int) -> Bytes:
        fetch, cache = partial(self._fetch, start, stop), object_storage(self.settings).cache
        data = cache.obtain(f"{self.name}-{start}-{stop}", stop - start, fetch)
        return fetch() if data is None else data

    def _read_announced(self, storage: ObjectStorage, keys: Sequence[tuple[str, int, int]], first: int) -> list[Bytes]:
        started = time.perf_counter()
        with daemons_stopped():
            pieces, waited = storage.ahead.use(keys, first)
        if not pieces:
            return []
        taken = keys[first : first + len(pieces)]
        parts = [_cut(piece, *key[1:]) for piece, key in zip(pieces, taken, strict=True)]
        self._last_stop = sum(taken[-1][1:])
        self._book(sum(map(len, parts)), num_hits=len(parts) - waited, num_waits=int(waited), started=started)
        return parts

    def _read(self, storage: ObjectStorage, offset: int, length: int) -> Bytes:
        """Returns a range that was not announced; sequential reads use cached aligned blocks."""
        if not length:
            return np.empty(0, dtype=np.uint8)
        started, stop, step, num_fetched = time.perf_counter(), offset + length, self.settings.block_bytes, 1
        is_next = self._last_stop is not None and 0 <= offset - self._last_stop < step
        self._last_stop = stop
        if is_next and length <= step:
            parts, num_fetched = [], 0
            for start in range(offset // step * step, stop, step):
                if self._last_block is None or self._last_block[0] != start:
                    num_fetched += 1
                    self._last_block = start, self._load_block(start, min(start + step, self.num_bytes))
                begin = max(offset, start)
                parts.append(_cut(self._last_block, begin, min(stop, start + step) - begin))
        else:  # fetches the parts of a large range concurrently
            starts = range(offset, stop, step)
            parts = storage.together([partial(self._fetch, at, min(at + step, stop)) for at in starts])
        self._book(length, num_hits=int(not num_fetched), num_waits=int(num_fetched > 0), started=started)
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _book(self, num_bytes: int, *, started: float, num_hits: int = 0, num_waits: int = 0) -> None:
        seconds = time.perf_counter() - started if num_waits else 0.0
        count_reads(self.path, bytes_used=num_bytes, hits=num_hits, waits=num_waits, wait_seconds=seconds)


def _cut(piece: Piece, offset: int, length: int) -> Bytes:
    start, data = piece
    return data[offset - start : offset - start + length]


def scratch_folder(path: str) -> str:
    """Returns the local folder for the working files of an output in object storage."""
    return object_storage(ObjectStorageSettings()).subfolder(os.path.join("jobs", short_hash(path)))


def _download(remote: RemoteFile, descriptor: int) -> None:
    storage, step = object_storage(remote.settings), remote.settings.block_bytes

    def copy(start: int) -> None:
        data = storage.fetch(remote.address, remote.version, start, min(start + step, remote.num_bytes))
        write_at(descriptor, data.data, start)
        advance(len(data))
        count_reads(str(remote.address), bytes_used=len(data))

    os.ftruncate(descriptor, remote.num_bytes)
    with task(f"download of {remote.address}", unit="bytes", total=remote.num_bytes) as advance:
        storage.together([partial(copy, start) for start in range(0, remote.num_bytes, step)])


def local_copy(remote: RemoteFile) -> str:
    """Returns the path of a local copy of an object; one process of the node downloads the copy for all processes."""
    storage = object_storage(remote.settings)
    folder, address = storage.subfolder("copies"), short_hash(remote.address)
    path = os.path.join(folder, f"{address}-{short_hash(remote.version.num_bytes, remote.version.etag)}")
    while not os.path.exists(path):
        with storage_errors("write", path), filling(path) as part:
            if part is not None:
                descriptor, part_path = part
                _download(remote, descriptor)
                os.fsync(descriptor)
                os.rename(part_path, path)
                for other in glob.glob(f"{address}-*", root_dir=folder):
                    if other != os.path.basename(path) and not other.endswith(".part"):
                        remove_leftover(os.path.join(folder, other))
    return path


class PendingObject(PendingFile):
    """A new object, written to a file in the cache folder; `publish` uploads it atomically."""

    def __init__(self, path: str, settings: ObjectStorageSettings | None = None) -> None:
        self._address = parse_address(path)
        if query_of(str(self._address)) is not None:
            raise ConfigError(f"cannot write `{self._address}?…`: signed addresses are read-only")
        storage = object_storage(settings or ObjectStorageSettings())
        self._client = storage.client(self._address)
        local = os.path.join(storage.subfolder("uploads"), f"{short_hash(path)}-{os.getpid()}-{id(self):x}")
        super().__init__(local, durable=False)
        self.path: str = str(self._address)

    def publish(self) -> None:
        try:
            self.sync()
            with waiting_for(f"the upload of `{self.path}`, {size(os.path.getsize(self.readable_path))}"):
                self._client.upload(self._address, self.readable_path)
        finally:
            self.discard()
