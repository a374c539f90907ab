"""Statistics of reads from object storage, by address."""

from __future__ import annotations

import operator
import threading
from collections.abc import Iterable
from dataclasses import astuple, dataclass, fields, replace


@dataclass(slots=True, kw_only=True)
class SourceStatistics:
    """Counts of reads from one object.

    Attributes:
        bytes_used: bytes returned to readers.
        bytes_fetched: bytes received from the store, ideally equal to `bytes_used`.
        requests: number of requests, including failed ones.
        hits: number of reads answered from the cache or from prefetched ranges.
        waits: number of reads that had to wait for the store.
        wait_seconds: total time of these waits.
        retries: number of repeated requests.
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
        """Bytes fetched per byte used; 0 before the first read."""
        return self.bytes_fetched / self.bytes_used if self.bytes_used else 0.0

    def __add__(self, other: SourceStatistics) -> SourceStatistics:
        """Returns the sum of two statistics, field by field."""
        return SourceStatistics.from_numbers(map(operator.add, self.numbers(), other.numbers()))

    def numbers(self) -> tuple[float, ...]:
        """Returns the values in field order."""
        return astuple(self)

    @classmethod
    def from_numbers(cls, numbers: Iterable[float]) -> SourceStatistics:
        """Makes statistics from values in field order."""
        named = zip((field.name for field in fields(cls)), numbers, strict=True)
        return cls(**{name: value if name == "wait_seconds" else int(value) for name, value in named})  # type: ignore[arg-type]


_lock = threading.Lock()
_counts: dict[str, SourceStatistics] = {}


def count_reads(source: str, **amounts: float) -> None:
    """Adds `amounts` (fields of `SourceStatistics`) to the counts of the address `source` in this process."""
    with _lock:
        entry = _counts.setdefault(source, SourceStatistics())
        for name, amount in amounts.items():
            setattr(entry, name, getattr(entry, name) + amount)


def storage_statistics() -> dict[str, SourceStatistics]:
    """Returns {address: counts} of this process; `loader_statistics` adds the counts of loader workers."""
    with _lock:
        return {source: replace(entry) for source, entry in _counts.items()}


def forget_statistics() -> None:
    """Resets all counts in a forked child."""
    global _lock
    _lock = threading.Lock()  # another thread of the parent may have held it
    _counts.clear()
