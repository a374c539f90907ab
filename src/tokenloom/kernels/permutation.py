"""Kernels that derive keys, and permutations that are computed from keys."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokenloom import _native

Int64s = NDArray[np.int64]


class Key(NamedTuple):
    """A 128-bit key of a permutation, as two halves in [0, 2**64)."""

    low: int
    high: int


class Purpose(IntEnum):
    """What a derived key is used for. Keys depend on these values, so the meaning of a value must never change."""

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
    """Derives a key from a key, a `Purpose` and a number in [0, 2**64), such as the index of a pass."""
    return Key(*_native.derive(key.low, key.high, int(purpose), number))


class Permutation:
    """A keyed permutation of [0, n) and its inverse, for n up to 2**60 (else ValueError). Thread-safe.

    Up to n = 1,024, it is a table of a uniform shuffle, created in about 2 µs. For larger n, it is a Feistel network,
    which takes about 6 ns per index.
    """

    __slots__ = ("_native",)

    def __init__(self, n: int, key: Key) -> None:
        self._native = _native.Permutation(n, key.low, key.high)

    def __len__(self) -> int:
        return self._native.size

    def forward(self, places: Int64s) -> Int64s:
        """Returns the image of each index in `places`, int64[num_places]. An index outside [0, n) raises IndexError."""
        out = np.empty(len(places), dtype=np.int64)
        self._native.forward(places, out)
        return out

    def inverse(self, things: Int64s) -> Int64s:
        """Inverts `forward`: returns the index of each image in `things`. An image outside [0, n) raises IndexError."""
        out = np.empty(len(things), dtype=np.int64)
        self._native.inverse(things, out)
        return out
