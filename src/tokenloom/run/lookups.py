"""Looking up what stands at the positions of batches, some thousand positions at a time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import ConfigError
from tokenloom.kernels import sample_numbers
from tokenloom.run.amounts import MOST_SAMPLES
from tokenloom.run.timeline import Located, Timeline, bounds_of

_NEAR = 2048
"""Positions of a batch that differ by less are looked up with those around them."""

_KEPT = 4
"""Lookups that are kept: as many as threads ask for batches in different places, mostly."""


@dataclass(frozen=True, slots=True)
class Samples:
    """What stands at some positions.

    Attributes:
        start, stop: the positions that were looked up, where they are consecutive.
        length: tokens of a sample.
        sources: int32[count], number of the source of each.
        numbers: int64[count], which sample of its source it is: `walk << WINDOW_BITS | window`.
    """

    start: int
    stop: int
    length: int
    sources: NDArray[np.int32]
    numbers: NDArray[np.int64]

    def at(self, positions: NDArray[np.int64]) -> Samples:
        """Returns the same of some of consecutive positions."""
        places = positions - self.start
        return Samples(self.start, self.stop, self.length, self.sources[places], self.numbers[places])


class Lookups:
    """What stands at positions, remembered for the next batches. Safe from several threads.

    Args:
        timeline: what stands where.
    """

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._lengths = sorted({segment.sequence_length for segment in timeline.segments})
        self._end = MOST_SAMPLES if timeline.num_samples is None else timeline.num_samples
        self._kept: tuple[Samples, ...] = ()
        self._asked = -_NEAR

    def at(self, positions: NDArray[np.int64]) -> Samples:
        """Returns what stands at positions, which are in the run.

        Training asks for positions that lie near each other, batch after batch: from the second of these on, some
        thousand are looked up at once. Others are looked up by themselves.
        """
        if not len(positions):
            return Samples(0, 0, self._lengths[0], np.empty(0, np.int32), positions)
        first, last = bounds_of(positions)
        for chunk in self._kept:
            if chunk.start <= first and last < chunk.stop:
                return chunk.at(positions)
        asked, self._asked = self._asked, last
        if last - first >= _NEAR or abs(first - asked) >= _NEAR:
            return self._look_up(positions, first)
        start = first - first % _NEAR
        end = min(start + 2 * _NEAR, self._end)
        try:
            chunk = self._look_up(np.arange(start, end, dtype=np.int64), start)
        except ConfigError:  # of two lengths, or of a walk too far, perhaps without these
            return self._look_up(positions, first)
        self._kept = (chunk, *self._kept[: _KEPT - 1])
        return chunk.at(positions)

    def _look_up(self, positions: NDArray[np.int64], start: int) -> Samples:
        found = self._timeline.locate(positions)
        length = self._length_of(found)
        numbers = sample_numbers(found.walks, found.windows)
        return Samples(start, start + len(positions), length, found.sources, numbers)

    def _length_of(self, found: Located) -> int:
        if len(self._lengths) == 1:
            return self._lengths[0]
        segments = self._timeline.segments
        numbers: list[int] = np.unique(found.segments).tolist()
        lengths = {number: segments[number].sequence_length for number in numbers}
        if len(set(lengths.values())) > 1:
            first = min(lengths)
            last = next(number for number in numbers if lengths[number] != lengths[first])
            message = (
                f"expected samples of one length in a batch, found {lengths[first]} tokens of stage "
                f"{segments[first].stage!r} and {lengths[last]} of stage {segments[last].stage!r}, "
                f"which begins at position {segments[last].start}"
            )
            raise ConfigError(message, hint="let stages of another sequence length begin where a batch does")
        return next(iter(lengths.values()))
