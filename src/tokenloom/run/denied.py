"""Documents that are not read any more, from which position on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import ConfigError
from tokenloom.run.held_out import are_held_out
from tokenloom.run.lock import RunLock


class DeniedDocuments:
    """What the denials of a run deny of each source, by how many of them are in force.

    Args:
        lock: the run.
    """

    def __init__(self, lock: RunLock) -> None:
        self._starts: dict[int, list[int]] = {}
        self._documents: dict[int, list[tuple[int, ...]]] = {}
        for denial in sorted(lock.denials, key=lambda denial: denial.start):
            for source, documents in denial.documents:
                self._starts.setdefault(source, []).append(denial.start)
                known = self._documents.setdefault(source, [()])
                known.append(tuple(sorted({*known[-1], *documents})))

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._starts)

    def starts(self, source: int) -> list[int]:
        """Returns the positions from which on documents of a source are denied, rising; each as often as a denial."""
        return self._starts.get(source, [])

    def levels(self, positions: NDArray[np.int64], sources: Sequence[int]) -> list[int]:
        """Returns how many denials of its source are in force at each position."""
        return [
            int(np.searchsorted(self._starts.get(source, []), position, side="right"))
            for position, source in zip(positions.tolist(), sources, strict=True)
        ]

    def of(self, source: int, level: int) -> tuple[int, ...]:
        """Returns the documents of a source that so many denials deny, rising."""
        return self._documents[source][level] if level else ()


def check_not_emptied(lock: RunLock) -> None:
    """Checks that denials leave something of each source that is still read.

    Raises:
        ConfigError: all documents of a source are denied that are not held out, and a later position reads it.
    """
    for source, (starts, documents) in _all_denied(lock).items():
        locked = lock.sources[source]
        count = sum(pair.num_documents for pair in locked.pairs)
        if 2 * len(documents) < count:  # at most half is held out
            continue
        held = are_held_out(lock, source, np.arange(count, dtype=np.int64))
        held[list(documents)] = True
        reading = [segment for segment in lock.segments if source in dict(segment.weights)]
        last = reading[-1] if reading else None
        if held.all() and last is not None and (last.num_samples is None or last.start + last.num_samples > starts[-1]):
            message = (
                f"expected documents of source {locked.name!r} that are not denied, found none from position "
                f"{starts[-1]} on, where stage {last.stage!r} reads it"
            )
            hint = (
                "take the source out instead: begin a stage there that gives it no weight, with `tokenloom run amend`"
            )
            raise ConfigError(message, hint=hint)


def _all_denied(lock: RunLock) -> dict[int, tuple[list[int], set[int]]]:
    """Returns the positions of denials, rising, and all documents that they deny, by source."""
    found: dict[int, tuple[list[int], set[int]]] = {}
    for denial in lock.denials:
        for source, documents in denial.documents:
            starts, denied = found.setdefault(source, ([], set()))
            starts.append(denial.start)
            denied.update(documents)
    return found
