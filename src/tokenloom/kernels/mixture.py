"""Kernels of mixtures, which compute the source, and the sample number in that source, for each position of a run."""

from __future__ import annotations

from collections.abc import Iterable
from math import gcd
from operator import index

import numpy as np
from numpy.typing import NDArray

from tokenloom import _native
from tokenloom.kernels.permutation import Key

Int32s = NDArray[np.int32]
Int64s = NDArray[np.int64]

LARGEST_SUM = 2**60  # maximum sum of the weights of a mixture


class _Dealt:
    __slots__ = ("_native",)

    _native: _native.Mixture | _native.MixedStage

    def locate(self, places: Int64s) -> tuple[Int32s, Int64s]:
        """Returns the leaf of each place, int32[num_places], and the sample number in the leaf, int64[num_places].

        `places` are positions of a `Mixture`, or offsets of a `MixedStage`.

        Raises:
            IndexError: a position is not in [0, 2**62), or an offset is not in [0, size).
        """
        leaves, takes = np.empty(len(places), dtype=np.int32), np.empty(len(places), dtype=np.int64)
        self._native.locate(places, leaves, takes)
        return leaves, takes

    def counts(self, k: int) -> Int64s:
        """Returns the number of samples per leaf in the first `k` positions or offsets, int64[num_leaves]; O(leaves).

        For a `MixedStage`, `k` must be `size` or a multiple of `block`.

        Raises:
            IndexError: `k` is not in [0, 2**62].
        """
        out = np.empty(self._native.num_leaves, dtype=np.int64)
        self._native.counts(k, out)
        return out


class Mixture(_Dealt):
    """A map between positions and (leaf, sample number). Leaves are sources, and are spread evenly by weight.

    Among the first k positions, the number of samples of a leaf differs from `k * weight / sum(weights)` by less than
    2, or not at all if the quotient is an integer for every leaf. Uses integer arithmetic and stores nothing per
    position. A lookup takes about 2 ns for 2 leaves and 25 ns for 10,000; the inverse takes twice as long. Thread-safe.
    """

    __slots__ = ()

    _native: _native.Mixture

    def __init__(self, weights: Iterable[int]) -> None:
        """Raises ValueError unless all weights are at least 1 and their sum at most 2**60; see `smallest_weights`."""
        self._native = _native.Mixture(_checked(weights))

    def __len__(self) -> int:
        """Returns the number of leaves."""
        return self._native.num_leaves

    def positions(self, leaves: Int32s, takes: Int64s) -> Int64s:
        """Returns the position of sample `takes[i]` of leaf `leaves[i]`, int64[num_samples]; -1 if above 2**62 - 1.

        Raises:
            IndexError: a leaf does not exist, or a sample number is negative.
        """
        out = np.empty(len(leaves), dtype=np.int64)
        self._native.positions(leaves, takes, out)
        return out


class MixedStage(_Dealt):
    """A map between offsets and (leaf, sample number): a mixture of `size` positions, permuted within blocks.

    An unpermuted mixture is periodic: with two equal sources and two ranks, each rank would see only one source. The
    permutation does not move samples between blocks, and takes about 3 ns per offset. Thread-safe.
    """

    __slots__ = ()

    _native: _native.MixedStage

    def __init__(self, weights: Iterable[int], start: int, size: int, block: int, key: Key) -> None:
        """Creates the stage.

        Args:
            weights: see `Mixture`.
            start: position of offset 0 in the run; the key of a block depends on the block's first position.
            size: number of offsets. The last block may be shorter than the others.
            block: offsets per block; 1 for no permutation.
            key: key from which the key of each block is derived.

        Raises:
            ValueError: see `Mixture`; `start` or `size` is negative, their sum exceeds 2**62, or `block` is below 1.
        """
        self._native = _native.MixedStage(_checked(weights), start, size, block, key.low, key.high)

    def __len__(self) -> int:
        """Returns the number of offsets."""
        return self._native.size

    def offsets(self, leaves: Int32s, takes: Int64s) -> Int64s:
        """Returns the offset of sample `takes[i]` of leaf `leaves[i]`, int64[num_samples]; -1 if not in the stage.

        Raises:
            IndexError: a leaf does not exist, or a sample number is negative.
        """
        out = np.empty(len(leaves), dtype=np.int64)
        self._native.offsets(leaves, takes, out)
        return out


def smallest_weights(weights: Iterable[int]) -> list[int]:
    """Divides integer weights by their greatest common divisor; raises ValueError if a weight is below 1.

    If the sum of the quotients exceeds 2**60, scales them to the sum 2**60: each weight gets 1, then its part of the
    rest, rounded down; then the weights with the largest fractions (on ties, the first weights) get 1 more.
    """
    whole = _reduced(_positive(weights))
    total = sum(whole)
    if total <= LARGEST_SUM:
        return whole
    to_share = LARGEST_SUM - len(whole)
    shares = [1 + weight * to_share // total for weight in whole]
    by_remainder = sorted(range(len(whole)), key=lambda place: (-(whole[place] * to_share % total), place))
    for place in by_remainder[: LARGEST_SUM - sum(shares)]:
        shares[place] += 1
    return _reduced(shares)


def _reduced(weights: list[int]) -> list[int]:
    divisor = gcd(*weights)
    return [weight // divisor for weight in weights]


def _positive(weights: Iterable[int]) -> list[int]:
    whole = [index(weight) for weight in weights]
    if not whole:
        raise ValueError("a mixture needs at least one weight")
    for place, weight in enumerate(whole):
        if weight < 1:
            raise ValueError(f"weight {weight} of leaf {place} is below 1")
    return whole


def _checked(weights: Iterable[int]) -> Int64s:
    whole = _positive(weights)
    if (total := sum(whole)) > LARGEST_SUM:
        raise ValueError(f"the sum of weights is {total}; the maximum is 2**60")
    return np.array(whole, dtype=np.int64)
