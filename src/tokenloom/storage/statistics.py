"""Counts of reads from object storage, by source."""

from __future__ import annotations

import operator
import threading
from collections.abc import Iterable
from dataclasses import astuple, dataclass, fields, replace


@dataclass(slots=True, kw_only=True)
class SourceStatistics:
    """Counts of one source.

    Attributes:
        bytes_used: handed to readers.
        bytes_fetched: received from the store; 1.0 of `bytes_used` is ideal.
        requests: sent, failed ones included.
        hits: reads from the cache or read ahead.
        waits: reads that waited for the store.
        wait_seconds: time waited, in all.
        retries: repeated requests.
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
        """Returns the sums of two processes."""
        return SourceStatistics.from_numbers(map(operator.add, self.numbers(), other.numbers()))

    def numbers(self) -> tuple[float, ...]:
        """Returns the values, in the order of the fields."""
        return astuple(self)

    @classmethod
    def from_numbers(cls, numbers: Iterable[float]) -> SourceStatistics:
        """Returns the statistics for values in the order of the fields."""
        named = zip((field.name for field in fields(cls)), numbers, strict=True)
        return cls(**{name: value if name == "wait_seconds" else int(value) for name, value in named})  # type: ignore[arg-type]


_lock = threading.Lock()
_counts: dict[str, SourceStatistics] = {}


def count_reads(source: str, **amounts: float) -> None:
    """Adds to the counts of a source, in this process."""
    with _lock:
        entry = _counts.setdefault(source, SourceStatistics())
        for name, amount in amounts.items():
            setattr(entry, name, getattr(entry, name) + amount)


def storage_statistics() -> dict[str, SourceStatistics]:
    """Returns the counts of this process by address; `loader_statistics` adds those of a loader's workers."""
    with _lock:
        return {source: replace(entry) for source, entry in _counts.items()}


def forget_statistics() -> None:
    """Resets all counts; a forked child calls it."""
    global _lock
    _lock = threading.Lock()  # another thread of the parent may have held it
    _counts.clear()
