"""What reading object storage cost, source by source."""

from __future__ import annotations

import threading
from dataclasses import astuple, dataclass, fields


@dataclass(slots=True, kw_only=True)
class SourceStatistics:
    """What was read of one source, and what that took.

    Attributes:
        bytes_used: handed to readers.
        bytes_fetched: received from the store; 1.0 of `bytes_used` is ideal.
        requests: sent, with those that failed.
        hits: reads that found their bytes here.
        waits: reads that had to wait for the store.
        wait_seconds: time waited, in all.
        retries: requests that were repeated.
    """

    bytes_used: int = 0
    bytes_fetched: int = 0
    requests: int = 0
    hits: int = 0
    waits: int = 0
    wait_seconds: float = 0.0
    retries: int = 0

    @property
    def amplification(self) -> float:
        """Bytes fetched per byte used; 0 before anything is used."""
        return self.bytes_fetched / self.bytes_used if self.bytes_used else 0.0

    def __add__(self, other: SourceStatistics) -> SourceStatistics:
        """Returns what two processes read of a source together."""
        return SourceStatistics.from_numbers(
            mine + theirs for mine, theirs in zip(self.numbers(), other.numbers(), strict=True)
        )

    def numbers(self) -> tuple[float, ...]:
        """Returns the values, in the order of the fields."""
        return astuple(self)

    @classmethod
    def from_numbers(cls, numbers: object) -> SourceStatistics:
        """Returns the statistics for values in the order of the fields."""
        names = [field.name for field in fields(cls)]
        values = dict(zip(names, numbers, strict=True))  # type: ignore[call-overload]
        whole = {name: value if name == "wait_seconds" else int(value) for name, value in values.items()}
        return cls(**whole)


class StatisticsBook:
    """The statistics of all sources of a process; safe from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sources: dict[str, SourceStatistics] = {}

    def add(self, source: str, **amounts: float) -> None:
        """Adds to the numbers of a source."""
        with self._lock:
            entry = self._sources.setdefault(source, SourceStatistics())
            for name, amount in amounts.items():
                setattr(entry, name, getattr(entry, name) + amount)

    def snapshot(self) -> dict[str, SourceStatistics]:
        """Returns a copy of all numbers."""
        with self._lock:
            return {source: entry + SourceStatistics() for source, entry in self._sources.items()}


_BOOK = StatisticsBook()


def book() -> StatisticsBook:
    """Returns the book of this process."""
    return _BOOK


def storage_statistics() -> dict[str, SourceStatistics]:
    """Returns what this process has read of object storage so far: {address: numbers}.

    Workers of a data loader count for themselves; `loader_statistics` adds them up.
    """
    return _BOOK.snapshot()


def forget_statistics() -> None:
    """Begins a new book; called in a forked child, whose counts are its own."""
    global _BOOK
    _BOOK = StatisticsBook()
