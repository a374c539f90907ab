"""Kernels of the computed order: source and sample of each position of a mixture."""

from __future__ import annotations

from collections.abc import Iterable
from math import gcd
from operator import index

import numpy as np
from numpy.typing import NDArray

from tokenloom import _native
from tokenloom.kernels.arrays import Int64s
from tokenloom.kernels.permutation import Key

Int32s = NDArray[np.int32]

LARGEST_SUM = 2**60  # of the weights of a mixture


class _Dealt:
    __slots__ = ("_native",)

    _native: _native.Mixture | _native.MixedStage

    def locate(self, places: Int64s) -> tuple[Int32s, Int64s]:
        """Returns the leaf of each place, and the number of that leaf's sample: int32 and int64[num_places].

        Raises:
            IndexError: a position outside [0, 2**62), or an offset outside [0, size).
        """
        leaves, takes = np.empty(len(places), dtype=np.int32), np.empty(len(places), dtype=np.int64)
        self._native.locate(places, leaves, takes)
        return leaves, takes

    def counts(self, k: int) -> Int64s:
        """Returns the samples of each leaf in the first `k` places, O(leaves): int64[num_leaves].

        Of a stage, `k` must be the end of a block, or of the stage.

        Raises:
            IndexError: k is outside [0, 2**62].
        """
        out = np.empty(self._native.num_leaves, dtype=np.int64)
        self._native.counts(k, out)
        return out


class Mixture(_Dealt):
    """Sources (leaves) in the ratio of their weights, spread evenly: position -> (leaf, take), and back.

    The first k positions have `k * share` samples of a leaf within less than 2, and exactly if all these are whole.
    Integers only, nothing stored per position; about 2 ns at 2 leaves and 25 at 10,000, the inverse twice that. Safe
    from several threads.
    """

    __slots__ = ()

    _native: _native.Mixture

    def __init__(self, weights: Iterable[int]) -> None:
        """Takes a weight per leaf, 1 or more, in all 2**60 at most, else ValueError; see `smallest_weights`."""
        self._native = _native.Mixture(_checked(weights))

    def __len__(self) -> int:
        """Returns the number of leaves."""
        return self._native.num_leaves

    def positions(self, leaves: Int32s, takes: Int64s) -> Int64s:
        """Returns the position of each sample, -1 for 2**62 and beyond: int64[num_samples].

        Raises:
            IndexError: there is no such leaf, or a take is negative.
        """
        out = np.empty(len(leaves), dtype=np.int64)
        self._native.positions(leaves, takes, out)
        return out


class MixedStage(_Dealt):
    """A mixture of `size` positions, permuted within blocks: offset -> (leaf, take), and back.

    An even order is in step with the ranks of a run: of two equal sources on two ranks each rank would see one forever.
    A permutation within blocks keeps the samples of a block, and costs about 3 ns per offset. Safe from several
    threads.
    """

    __slots__ = ()

    _native: _native.MixedStage

    def __init__(self, weights: Iterable[int], start: int, size: int, block: int, key: Key) -> None:
        """Takes the settings of the order.

        Args:
            weights: see `Mixture`.
            start: the position of offset 0; blocks have keys by their positions.
            size: number of offsets. The last block may be shorter, and is permuted by its own length.
            block: offsets of a block; 1 leaves the order even.
            key: root of the keys of blocks.

        Raises:
            ValueError: see `Mixture`; start or size is negative or they exceed 2**62; block is below 1.
        """
        self._native = _native.MixedStage(_checked(weights), start, size, block, key.low, key.high)

    def __len__(self) -> int:
        """Returns the number of offsets."""
        return self._native.size

    def offsets(self, leaves: Int32s, takes: Int64s) -> Int64s:
        """Returns the offset of each sample, -1 after the stage: int64[num_samples].

        Raises:
            IndexError: there is no such leaf, or a take is negative.
        """
        out = np.empty(len(leaves), dtype=np.int64)
        self._native.offsets(leaves, takes, out)
        return out


def smallest_weights(weights: Iterable[int]) -> list[int]:
    """Returns the smallest whole numbers in the ratio of these weights, of any size, each 1 or more (else ValueError).

    If those exceed 2**60 in all, 2**60 is shared out: 1 for each, the rest in proportion, rounded down, and what is
    left by the largest remainders (the first of equals).
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
        raise ValueError(f"weights add up to {total}, more than 2**60")
    return np.array(whole, dtype=np.int64)
