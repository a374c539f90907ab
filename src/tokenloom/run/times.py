"""When a run reaches its positions, at a given speed."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from tokenloom.errors import ConfigError
from tokenloom.run.lock import RunLock


def tokens_before(lock: RunLock, position: int) -> int:
    """Returns the tokens of all samples before a position."""
    total = 0
    for segment in lock.segments:
        count = position - segment.start
        if segment.num_samples is not None:
            count = min(count, segment.num_samples)
        total += max(0, count) * segment.sequence_length
    return total


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How fast a run goes on.

    Attributes:
        tokens_per_second: tokens of all ranks.
        start: when position `begin` is read; None: times are told as from there on.
        begin: the position that is read then.
    """

    tokens_per_second: float
    start: datetime | None = None
    begin: int = 0

    def seconds_to(self, lock: RunLock, position: int) -> float:
        """Returns the seconds from `begin` to a position; below 0 for one before it."""
        return (tokens_before(lock, position) - tokens_before(lock, self.begin)) / self.tokens_per_second

    def date_of(self, lock: RunLock, position: int) -> datetime:
        """Returns when a position is read.

        Raises:
            ConfigError: no start is given, or it is beyond the year 9999.
        """
        if self.start is None:
            message = "expected a start, from which dates are counted, found none"
            raise ConfigError(message)
        try:
            return self.start + timedelta(seconds=self.seconds_to(lock, position))
        except OverflowError as error:
            message = f"expected a date up to the year 9999 for position {position}, found a later one"
            raise ConfigError(message, hint="is the speed in tokens per second, of all ranks?") from error

    def words(self, lock: RunLock, position: int) -> str:
        """Returns when a position is read, as a date to the minute; without a start, as days from `begin` on."""
        if self.start is not None:
            return f"{self.date_of(lock, position):%Y-%m-%d %H:%M}"
        seconds = self.seconds_to(lock, position)
        for unit, size in (("days", 86400), ("hours", 3600), ("minutes", 60)):
            if abs(seconds) >= 2 * size:
                return f"after {seconds / size:,.1f} {unit}"
        return f"after {seconds:,.1f} seconds"
