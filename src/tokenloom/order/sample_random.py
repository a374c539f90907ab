"""Random numbers of a sample: a function of seed, sample and purpose, the same in any process and after a resume."""

from __future__ import annotations

from enum import IntEnum

import numpy as np


class Purpose(IntEnum):
    """The purpose of numbers; part of the key, so a value keeps its meaning."""

    FILL_IN_THE_MIDDLE = 1
    DEALING = 2
    MIXING = 3


class SampleRandom:
    """A stream of random numbers for each (seed, sample, purpose).

    The counter-based generator Philox, with seed and purpose as its key and the sample in the high word of its counter;
    its raw 64-bit words are the same in every version of NumPy.

    Example:
        >>> first, second = (SampleRandom(1234, 7, Purpose.FILL_IN_THE_MIDDLE) for _ in range(2))
        >>> [first.below(100) for _ in range(4)] == [second.below(100) for _ in range(4)]
        True

    Args:
        seed: seed in [0, 2**64).
        sample: its position in the dataset, in [0, 2**64).
        purpose: purpose of the numbers.
    """

    def __init__(self, seed: int, sample: int, purpose: Purpose) -> None:
        key = np.array([seed, purpose], dtype=np.uint64)
        counter = np.array([0, 0, 0, sample], dtype=np.uint64)
        self._words = np.random.Philox(key=key, counter=counter)

    def below(self, stop: int) -> int:
        """Returns an integer in [0, stop); uniform to within stop / 2**64."""
        return (self._word() * stop) >> 64

    def chance(self, rate: float) -> bool:
        """Returns True with probability `rate`: never for 0, always for 1."""
        return (self._word() >> 11) * 2.0**-53 < rate

    def _word(self) -> int:
        word: int = self._words.random_raw()
        return word
