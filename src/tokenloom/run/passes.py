"""How often a run has read its sources before a position."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from tokenloom.errors import ConfigError
from tokenloom.numbers import checked_integer
from tokenloom.run.lock import RunLock
from tokenloom.run.plan import plan_of
from tokenloom.run.progress import mixed_size


def passes_before(lock: RunLock, position: int) -> tuple[Fraction, ...]:
    """Returns the passes over each source, by its number, that are read before a position: whole ones and a part.

    Costs as much as a plan: it grows with segments and sources alone.

    Raises:
        ConfigError: the run ends before the position.
    """
    position = checked_integer("position", position, at_least=0)
    last = lock.segments[-1]
    if last.num_samples is not None and position > last.start + last.num_samples:
        message = f"the run ends at position {last.start + last.num_samples}, before {position}"
        raise ConfigError(message)
    passes = dict.fromkeys((source.name for source in lock.sources), Fraction(0))
    if position:
        for segment in plan_of(closed_at(lock, position)).segments:
            for reading in segment.readings:
                assert reading.begun_after is not None
                assert reading.left_after is not None
                left = Fraction(reading.left_after, reading.num_windows) if reading.num_windows else Fraction(0)
                passes[reading.source] = reading.begun_after - left
    return tuple(passes.values())


def closed_at(lock: RunLock, position: int) -> RunLock:
    """Returns the lock of a run that ends at a position, and whose positions before it are the same."""
    segments = []
    for segment in lock.segments:
        if segment.start >= position:
            break
        size = position - segment.start
        if segment.num_samples is None or segment.num_samples > size:
            segment = replace(segment, num_samples=size, mixed_as=mixed_size(segment))
        segments.append(segment)
    return replace(lock, segments=tuple(segments))
