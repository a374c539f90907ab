"""Bytes that are fetched before they are asked for, because the order in which they will be is known.

Readers announce what they will read, and later read it. What was announced is fetched in that order, as far as a
budget and a number of requests allow, and let go with its last announced use: with the future known, nothing better
could be evicted. An announcement that nobody takes up, by a loader that was left early, is let go once later ones are
read and the room is needed.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from tokenloom.storage.ending import ENDING

T = TypeVar("T")

_SLACK = 8
"""Announcements by which readers in several threads may run ahead of each other."""

_GAP_SHARE = 20
"""Two ranges become one request if what lies between them is at most a twentieth of what they are asked for: read
amplification stays below 1.05."""


@dataclass(eq=False, slots=True)
class Chunk(Generic[T]):
    """Something that is fetched as a whole, for one or more uses.

    Attributes:
        num_bytes: what it costs while it is here.
        load: fetches it.
        name: name by which announcements share it.
        keys: keys of its announced uses that are still to come.
        turn: turn of the last of them.
        value: what was fetched, once it is here; None before, and where it could not be.
    """

    num_bytes: int
    load: Callable[[], T]
    name: Hashable = None
    keys: list[Hashable] = field(default_factory=list)
    turn: int = 0
    future: Future[T] | None = None
    value: T | None = None


class ReadAhead(Generic[T]):
    """The chunks that were announced and not read yet; safe from several threads.

    Args:
        submit: runs a function in the background.
        budget_bytes: most bytes of chunks that are here or on their way; one that is being waited for comes anyhow.
        concurrency: chunks on their way at once.
    """

    def __init__(self, submit: Callable[[Callable[[], T]], Future[T]], *, budget_bytes: int, concurrency: int) -> None:
        self.budget_bytes = budget_bytes
        self.concurrency = concurrency
        self._submit = submit
        self._lock = threading.RLock()
        self._announced: dict[Hashable, deque[tuple[Chunk[T], int]]] = {}  # by key, with the turn of each use
        self._chunks: dict[Hashable, Chunk[T]] = {}  # by name, those with announced uses
        self._waiting: deque[Chunk[T]] = deque()
        self._held: dict[Chunk[T], None] = {}  # in the order of their start
        self._held_bytes = 0
        self.num_loading: int = 0
        self._turn = 0
        self._turn_read = 0

    def __len__(self) -> int:
        """Chunks that are here or on their way."""
        return len(self._held)

    def announce(self, uses: Sequence[tuple[Hashable, Hashable]], make: Callable[[Hashable], Chunk[T]]) -> None:
        """Takes note of reads to come, in their order.

        Args:
            uses: key of each read, and name of the chunk that holds it.
            make: makes the chunk of a name, unless one of the name is announced already.
        """
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
        """Returns the chunks of the first of some reads: of one, waiting for it if need be, and of those that are here.

        They end with the last use of a chunk, so that who copies what is returned keeps one that was let go at most.

        Args:
            keys: keys of reads, in their order.
            start: where in them to begin.

        Returns:
            chunks: of the first reads; none if the very first was not announced.
            waited: whether that one had to be waited for.
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
                    is_last = self._is_last(chunk, keys[number])
        return found, waited

    def _is_last(self, chunk: Chunk[T], key: Hashable) -> bool:
        """Notes a use; returns whether it was the last one, with which a chunk is let go."""
        chunk.keys.remove(key)
        if chunk.keys:
            return False
        self._chunks.pop(chunk.name, None)
        self._let_go(chunk)
        self._start_waiting()
        return True

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
                self._start(chunk)  # which may come at once, and call this again

    def _has_room(self, chunk: Chunk[T]) -> bool:
        """Whether a chunk fits the budget, now that abandoned ones have made room for it."""
        for held in list(self._held):
            if self._held_bytes + chunk.num_bytes <= self.budget_bytes:
                break
            if self._is_abandoned(held) and held.future is not None and held.future.done():
                self._forget(held)
                self._let_go(held)
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
        """Takes back the announcements of a chunk."""
        for key in set(chunk.keys):
            if left := deque(each for each in self._announced.pop(key, ()) if each[0] is not chunk):
                self._announced[key] = left
        chunk.keys.clear()
        self._chunks.pop(chunk.name, None)

    def _let_go(self, chunk: Chunk[T]) -> None:
        if chunk in self._held:
            del self._held[chunk]
            self._held_bytes -= chunk.num_bytes


def merge_ranges(
    offsets: NDArray[np.int64], lengths: NDArray[np.int64], *, most_bytes: int
) -> list[tuple[int, int, list[int]]]:
    """Returns the requests for some ranges: (start, stop, numbers of the ranges in it), by rising start.

    Example:
        >>> merge_ranges(np.array([0, 900, 104]), np.array([100, 50, 96]), most_bytes=1 << 20)
        [(0, 200, [0, 2]), (900, 950, [1])]

    Args:
        offsets, lengths: int64[num_ranges] each, in bytes; no length is 0.
        most_bytes: most bytes of a request that holds several ranges.
    """
    requests: list[tuple[int, int, list[int]]] = []
    order = np.argsort(offsets, kind="stable")
    for number, start, length in zip(order.tolist(), offsets[order].tolist(), lengths[order].tolist(), strict=True):
        if requests:
            first, stop, members = requests[-1]
            gap = start - stop
            joined = max(stop, start + length)
            if gap * _GAP_SHARE <= min(stop - first, length) and joined - first <= most_bytes:
                members.append(number)
                requests[-1] = (first, joined, members)
                continue
        requests.append((start, start + length, [number]))
    return requests
