"""Kernels of the computed order: keys, and permutations of n things that are computed from them, not stored."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import numpy as np

from tokenloom import _native
from tokenloom.kernels.arrays import Int64s


class Key(NamedTuple):
    """128 bits that decide a permutation."""

    low: int
    """In [0, 2**64)."""
    high: int
    """In [0, 2**64)."""


class Purpose(IntEnum):
    """What a key is derived for. The numbers are part of the order: they stay for ever."""

    HOLDOUT = 1
    PAIRS = 2
    BLOCKS = 3
    DOCUMENTS = 4
    WINDOWS = 5
    PHASE = 6
    MIXING = 7
    PACK_GROUPS = 8
    PACKS = 9
    SAMPLES = 10


def derive(key: Key, purpose: int, number: int) -> Key:
    """Returns the key of one purpose and number; both halves depend on all that goes in.

    Args:
        key: what it is derived from.
        purpose: a `Purpose`.
        number: in [0, 2**64), such as that of a pass.
    """
    return Key(*_native.derive(key.low, key.high, int(purpose), number))


class Permutation:
    """A permutation of [0, n) that a key decides, and its inverse. Safe from several threads.

    Of at most 1,024 things it is a table, made in about 2 µs, each permutation as likely as any other; of more a
    network without a table, about 6 ns per index in arrays of some dozens.
    """

    __slots__ = ("_native",)

    def __init__(self, n: int, key: Key) -> None:
        """Takes the number of things.

        Raises:
            ValueError: n is negative or above 2**60.
        """
        self._native = _native.Permutation(n, key.low, key.high)

    def __len__(self) -> int:
        return self._native.size

    def forward(self, places: Int64s) -> Int64s:
        """Returns what lies at each of these places: int64[num_places].

        Raises:
            IndexError: a place outside [0, n).
        """
        out = np.empty(len(places), dtype=np.int64)
        self._native.forward(places, out)
        return out

    def inverse(self, things: Int64s) -> Int64s:
        """Returns the place of each of these things: int64[num_things].

        Raises:
            IndexError: a thing outside [0, n).
        """
        out = np.empty(len(things), dtype=np.int64)
        self._native.inverse(things, out)
        return out
