"""Random numbers per sample: a pure function of seed, sample and purpose, equal in every process and resumed run."""

from __future__ import annotations

from enum import IntEnum

import numpy as np


class Purpose(IntEnum):
    """Uses of random numbers. The numbers depend on the value of a use, so the meaning of a value must never change."""

    FILL_IN_THE_MIDDLE = 1
    DEALING = 2
    MIXING = 3


class SampleRandom:
    """A stream of random numbers for one (seed, sample, purpose).

    Uses raw 64-bit words of the counter-based generator Philox, which are equal in every version of NumPy. Seed and
    purpose are the key; the sample is the high word of the counter.

    Example:
        >>> first, second = (SampleRandom(1234, 7, Purpose.FILL_IN_THE_MIDDLE) for _ in range(2))
        >>> [first.below(100) for _ in range(4)] == [second.below(100) for _ in range(4)]
        True

    Args:
        seed: seed in [0, 2**64).
        sample: position of the sample in the dataset, in [0, 2**64).
        purpose: purpose of the numbers.
    """

    def __init__(self, seed: int, sample: int, purpose: Purpose) -> None:
        key = np.array([seed, purpose], dtype=np.uint64)
        counter = np.array([0, 0, 0, sample], dtype=np.uint64)
        self._words = np.random.Philox(key=key, counter=counter)

    def below(self, stop: int) -> int:
        """Returns an integer in [0, stop), uniform up to an error of stop / 2**64."""
        return (self._word() * stop) >> 64

    def chance(self, rate: float) -> bool:
        """Returns True with probability `rate` in [0, 1]."""
        return (self._word() >> 11) * 2.0**-53 < rate

    def _word(self) -> int:
        word: int = self._words.random_raw()
        return word
