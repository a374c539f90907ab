"""Measures how well an order is shuffled, compared with uniform permutations.

A few slices of an order are enough: some thousand pairs of neighbours reveal blocks of any size in data of any size.
Expected values and standard deviations are exact for slices of a permutation; a test compares them with those of all
permutations.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tokenloom.errors import ConfigError

Int64s = NDArray[np.int64]

FEWEST = 30  # minimum number of neighbour pairs for a verdict
_DEVIATIONS = 4.0  # limit for z-scores; one in 16,000 uniform permutations exceeds it
_SURPRISE = math.log(1e6)  # limit for shares at each scale; one in a million uniform permutations exceeds it
_MEDIAN = 1 - math.sqrt(1 / 2)  # median distance of two random places in a block, as a share of its length
_MAX_BLOCK_DISTANCE = 0.2  # largest median distance of neighbours, as a share of the data, for blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class ShuffleMeasure:
    """A measured value, with its mean and standard deviation for uniform permutations."""

    value: float  # the measured value
    expected: float  # the mean over uniform permutations
    deviation: float  # the standard deviation over uniform permutations

    @property
    def z_score(self) -> float:
        """Returns the difference of the value from the mean in standard deviations; 0 if the deviation is 0."""
        return (self.value - self.expected) / self.deviation if self.deviation else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ShuffleQuality:
    """The quality of a shuffle, measured on slices of its order.

    An item is an index into the data. Neighbours are two items at consecutive positions of the order.
    """

    num_items: int  # number of items in the data
    num_sampled: int  # number of items in the slices
    num_neighbours: int  # number of neighbour pairs in the slices
    # between the position of an item and its place in the data: 1 for the order of the data, -1 for the reverse
    rank_correlation: ShuffleMeasure
    adjacent: float  # share of neighbours that are next to each other in the data
    # mean distance of neighbours in the data, as a share of its length; 1/3 for a uniform shuffle
    distance: ShuffleMeasure
    scale: int  # the distance, in items, within which far too many neighbours are; 0 if there is none
    within: float  # share of neighbours within `scale`
    within_expected: float  # that share in a uniform permutation
    median_distance: float  # median distance of neighbours in the data, in items

    @property
    def is_uniform(self) -> bool:
        """Returns whether no measure distinguishes the order from a uniform permutation."""
        far = (abs(each.z_score) > _DEVIATIONS for each in (self.rank_correlation, self.distance))
        return not self.scale and not any(far)

    @property
    def verdict(self) -> str:
        """Returns a summary in a few words."""
        correlation = self.rank_correlation.value
        if self.num_neighbours < FEWEST:
            return "too few items for a verdict"
        if self.is_uniform:
            return "as good as uniform"
        if self.adjacent > 0.5 and abs(correlation) >= 0.9:
            return "not shuffled" if correlation > 0 else "not shuffled, but reversed"
        if self.adjacent > 0.5:
            length = 1 / max(1 - self.adjacent, 1 / self.num_neighbours)
            return f"runs of about {_about(length)} items in the order of the data"
        if self.median_distance <= _MAX_BLOCK_DISTANCE * self.num_items:
            in_order = ", in the order of the data" if correlation >= 0.9 else ""
            in_order = ", in reverse order" if correlation <= -0.9 else in_order
            return f"shuffled within blocks of about {_about(self.median_distance / _MEDIAN)}{in_order}"
        if self.scale:
            expected = f"{100 * self.within_expected:.2g}%"
            return f"{self.within:.1%} of neighbours are within {self.scale:,} items in the data, instead of {expected}"
        if abs(self.rank_correlation.z_score) > _DEVIATIONS:
            return f"correlated with the order of the data: rank correlation {correlation:.2f}"
        return f"neighbours are {'farther apart' if self.distance.z_score > 0 else 'closer'} than by chance"


def shuffle_quality(
    items: ArrayLike, *, num_items: int | None = None, positions: ArrayLike | None = None
) -> ShuffleQuality:
    """Measures how well an order is shuffled.

    Example:
        >>> import numpy as np
        >>> shuffle_quality(np.arange(1000)).verdict
        'not shuffled'
        >>> shuffle_quality(np.random.default_rng(1).permutation(1000)).verdict
        'as good as uniform'

    Args:
        items: integers[num_sampled] in [0, num_items), the order to measure, as indices into the data. An item may
            occur twice, as in a second epoch.
        num_items: number of items in the data; None if `items` is the whole order.
        positions: integers[num_sampled], the position of each item in the order, strictly ascending; None for 0, 1, 2
            and so on. Items at consecutive positions are neighbours.

    Raises:
        ConfigError: an item is out of range.
    """
    given = np.asarray(items, dtype=np.int64)
    count = len(given) if num_items is None else num_items
    places = np.arange(len(given), dtype=np.int64) if positions is None else np.asarray(positions, dtype=np.int64)
    if len(given) and not 0 <= int(given.min()) <= int(given.max()) < count:
        wrong = given[(given < 0) | (given >= count)][0]
        raise ConfigError(f"item {wrong} out of range: there are {count} items")
    together = np.diff(places) == 1
    distances = np.abs(np.diff(given))[together]
    pairs = len(distances)
    chained = int(np.count_nonzero(together[1:] & together[:-1]))
    scale, within = _scale(distances, count)
    ranks = np.argsort(np.argsort(given, kind="stable"))
    return ShuffleQuality(
        num_items=count,
        num_sampled=len(given),
        num_neighbours=pairs,
        rank_correlation=ShuffleMeasure(
            value=float(np.corrcoef(ranks, np.arange(len(given)))[0, 1]) if len(given) > 1 else 0.0,
            expected=0.0,
            deviation=1 / math.sqrt(len(given) - 1) if len(given) > 1 else 0.0,
        ),
        adjacent=float(np.mean(distances == 1)) if pairs else 0.0,
        distance=_mean_distance(int(distances.sum()), pairs, chained, count),
        scale=scale,
        within=within,
        within_expected=_expected_within(scale, count),
        median_distance=float(np.median(distances)) if pairs else 0.0,
    )


def _mean_distance(total: int, pairs: int, chained: int, n: int) -> ShuffleMeasure:
    """Returns the mean distance of neighbours as a share of `n` items."""
    if not pairs or n < 4:
        return ShuffleMeasure(value=0.0, expected=0.0, deviation=0.0)
    # Means of the distance, of its square, and of the product over two pairs that share an item.
    mean, square, product = Fraction(n + 1, 3), Fraction(n * (n + 1), 6), Fraction((n + 1) * (7 * n + 4), 60)
    # The sum over all pairs of pairs, (n (n² - 1) / 3)², consists of equal pairs, pairs sharing an item, and others.
    everything = Fraction(n * (n * n - 1), 3) ** 2
    same, sharing = 2 * n * (n - 1) * square, 4 * n * (n - 1) * (n - 2) * product
    apart = (everything - same - sharing) / (n * (n - 1) * (n - 2) * (n - 3))
    others = pairs * (pairs - 1) - 2 * chained
    variance = (pairs * square + 2 * chained * product + others * apart) / pairs**2 - mean**2
    deviation = math.sqrt(max(0.0, float(variance / n**2)))
    return ShuffleMeasure(value=float(Fraction(total, pairs * n)), expected=float(mean / n), deviation=deviation)


def _scale(distances: Int64s, num_items: int) -> tuple[int, float]:
    """Returns the distance, a power of two, within which unexpectedly many neighbours are, and their share."""
    best, found, scale = _SURPRISE, (0, 0.0), 1
    while len(distances) and scale < num_items // 2:
        expected, share = _expected_within(scale, num_items), float(np.mean(distances <= scale))
        if share > expected:
            # Kullback-Leibler divergence: n draws show `share` with probability at most exp(-n * divergence)
            others = (1 - share) * math.log((1 - share) / (1 - expected)) if share < 1 else 0.0
            surprise = len(distances) * (share * math.log(share / expected) + others)
            best, found = (surprise, (scale, share)) if surprise > best else (best, found)
        scale *= 2
    return found


def _expected_within(scale: int, num_items: int) -> float:
    """Returns the probability that two random items are within `scale`."""
    return scale * (2 * num_items - scale - 1) / (num_items * (num_items - 1)) if num_items > 1 else 0.0


def _about(number: float) -> str:
    """Returns the number rounded to two significant digits."""
    digits = max(0, math.floor(math.log10(max(number, 1))) - 1)
    return f"{round(number / 10**digits) * 10**digits:,}"
