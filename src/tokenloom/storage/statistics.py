"""What reading object storage cost, source by source."""

from __future__ import annotations

import operator
import threading
from collections.abc import Iterable
from dataclasses import astuple, dataclass, fields, replace


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
    """Adds to the numbers of a source, in this process."""
    with _lock:
        entry = _counts.setdefault(source, SourceStatistics())
        for name, amount in amounts.items():
            setattr(entry, name, getattr(entry, name) + amount)


def storage_statistics() -> dict[str, SourceStatistics]:
    """Returns what this process has read of object storage so far: {address: numbers}.

    Workers of a data loader count for themselves; `loader_statistics` adds them up.
    """
    with _lock:
        return {source: replace(entry) for source, entry in _counts.items()}


def forget_statistics() -> None:
    """Begins anew; called in a forked child, whose counts are its own."""
    global _lock
    _lock = threading.Lock()  # another thread of the parent may have held it
    _counts.clear()
