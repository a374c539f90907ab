"""Quality of a shuffle: measures of an order, compared with those of uniform permutations.

Stretches of an order are enough: some thousand neighbours tell blocks of any size in data of any size. Expectations and
standard deviations are exact, for stretches of a permutation; a test holds them against permutations.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tokenloom.errors import ConfigError

Int64s = NDArray[np.int64]

FEWEST = 30
"""Neighbours below which nothing is said."""

_DEVIATIONS = 4.0
"""Standard deviations that a uniform permutation leaves once in 16,000 times."""

_SURPRISE = math.log(1e6)
"""Of a share that many scales were searched for: once in a million permutations each."""

_MEDIAN = 1 - math.sqrt(1 / 2)
"""Median distance of two places chosen in a block, as a share of it."""

_IN_BLOCKS = 0.2
"""Median distance of neighbours, as a share of the data, up to which most of them are of one block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShuffleMeasure:
    """A number about an order.

    Attributes:
        value: as it was found.
        expected: its mean over uniform permutations.
        deviation: its standard deviation over them.
    """

    value: float
    expected: float
    deviation: float

    @property
    def z_score(self) -> float:
        """Standard deviations between the value and its expectation; 0 without a deviation."""
        return (self.value - self.expected) / self.deviation if self.deviation else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ShuffleQuality:
    """How well an order is shuffled, from some of its stretches.

    Items are numbered as they lie in the data. Two that follow each other in the order are neighbours here.

    Attributes:
        num_items: items of the data.
        num_sampled: items of the stretches.
        num_neighbours: pairs of neighbours among them.
        rank_correlation: of place in the order and place in the data: 1 as they lie there, -1 backwards.
        adjacent: share of neighbours that lie side by side in the data.
        distance: mean distance of neighbours in the data, as a share of the data: a third.
        scale: the distance, in items, within which neighbours lie most surprisingly often; 0 for none.
        within: share of neighbours that do. What is expected of the scale is `within_expected`.
        within_expected: the share that a uniform permutation would have.
        median_distance: of neighbours in the data, in items.
    """

    num_items: int
    num_sampled: int
    num_neighbours: int
    rank_correlation: ShuffleMeasure
    adjacent: float
    distance: ShuffleMeasure
    scale: int
    within: float
    within_expected: float
    median_distance: float

    @property
    def is_uniform(self) -> bool:
        """Whether no measure distinguishes the order from a uniform permutation."""
        far = (abs(each.z_score) > _DEVIATIONS for each in (self.rank_correlation, self.distance))
        return not self.scale and not any(far)

    @property
    def verdict(self) -> str:
        """A summary in a few words."""
        if self.num_neighbours < FEWEST:
            return "too few to tell"
        if self.is_uniform:
            return "as good as uniform"
        in_order = "" if abs(self.rank_correlation.value) < 0.9 else ", which follow each other as in the data"
        if self.rank_correlation.value < -0.9:
            in_order = ", which follow each other backwards"
        if self.adjacent > 0.5:
            if in_order:
                return "not shuffled" if self.rank_correlation.value > 0 else "not shuffled, but backwards"
            length = 1 / max(1 - self.adjacent, 1 / self.num_neighbours)
            return f"stretches of about {_about(length)} as in the data"
        if self.median_distance <= _IN_BLOCKS * self.num_items:
            return f"shuffled within blocks of about {_about(self.median_distance / _MEDIAN)}{in_order}"
        if self.scale:
            expected = f"{100 * self.within_expected:.2g}%"
            return f"{self.within:.1%} of neighbours lie within {self.scale:,} in the data, instead of {expected}"
        if abs(self.rank_correlation.z_score) > _DEVIATIONS:
            return f"leans on the order of the data: rank correlation {self.rank_correlation.value:.2f}"
        return f"neighbours are {'farther' if self.distance.z_score > 0 else 'nearer'} than by chance"


def shuffle_quality(
    items: ArrayLike, *, num_items: int | None = None, positions: ArrayLike | None = None
) -> ShuffleQuality:
    """Returns how well an order is shuffled.

    Example:
        >>> import numpy as np
        >>> shuffle_quality(np.arange(1000)).verdict
        'not shuffled'
        >>> shuffle_quality(np.random.default_rng(1).permutation(1000)).verdict
        'as good as uniform'

    Args:
        items: integers[num_sampled], what stands at positions of the order, as numbers in [0, num_items) by place in
            the data. A number that comes twice, as in a second pass, does no harm.
        num_items: how many there are; None if all of them are given.
        positions: integers[num_sampled], rising: the positions; None for those from 0 on. Items at positions one apart
            are neighbours.

    Raises:
        ConfigError: an item is out of range, or positions do not rise.
    """
    given = np.asarray(items, dtype=np.int64)
    count = len(given) if num_items is None else num_items
    places = np.arange(len(given), dtype=np.int64) if positions is None else np.asarray(positions, dtype=np.int64)
    _check(given, count, places)
    together = np.diff(places) == 1
    distances = np.abs(np.diff(given))[together]
    pairs = len(distances)
    chained = int(np.count_nonzero(together[1:] & together[:-1]))
    scale, within = _scale(distances, count)
    return ShuffleQuality(
        num_items=count,
        num_sampled=len(given),
        num_neighbours=pairs,
        rank_correlation=ShuffleMeasure(
            value=_correlation(given), expected=0.0, deviation=1 / math.sqrt(len(given) - 1) if len(given) > 1 else 0.0
        ),
        adjacent=float(np.mean(distances == 1)) if pairs else 0.0,
        distance=_mean_distance(int(distances.sum()), pairs, chained, count),
        scale=scale,
        within=within,
        within_expected=_expected_within(scale, count),
        median_distance=float(np.median(distances)) if pairs else 0.0,
    )


def _check(items: Int64s, num_items: int, positions: Int64s) -> None:
    if len(items) and not 0 <= int(items.min()) <= int(items.max()) < num_items:
        wrong = items[(items < 0) | (items >= num_items)][0]
        raise ConfigError(f"item {wrong} out of range: there are {num_items} items")
    if len(positions) != len(items) or (np.diff(positions) <= 0).any():
        raise ConfigError(f"`positions` must rise, one for each of {len(items)} items, got {positions.tolist()[:5]}")


def _correlation(items: Int64s) -> float:
    """Returns the rank correlation of places in a list and the items there."""
    if len(items) < 2:
        return 0.0
    ranks = np.argsort(np.argsort(items, kind="stable"))
    return float(np.corrcoef(ranks, np.arange(len(items)))[0, 1])


def _mean_distance(total: int, pairs: int, chained: int, n: int) -> ShuffleMeasure:
    """Returns the mean distance of neighbours as a share of n items, with its expectation and deviation."""
    if not pairs or n < 4:
        return ShuffleMeasure(value=0.0, expected=0.0, deviation=0.0)
    # Means of the square, and of the product over two pairs that share an item.
    mean, square, product = Fraction(n + 1, 3), Fraction(n * (n + 1), 6), Fraction((n + 1) * (7 * n + 4), 60)
    # All pairs with all pairs: (n (n² - 1) / 3)² is what the same pair, pairs that share one item, and others make up.
    everything = Fraction(n * (n * n - 1), 3) ** 2
    same, sharing = 2 * n * (n - 1) * square, 4 * n * (n - 1) * (n - 2) * product
    apart = (everything - same - sharing) / (n * (n - 1) * (n - 2) * (n - 3))
    others = pairs * (pairs - 1) - 2 * chained
    variance = (pairs * square + 2 * chained * product + others * apart) / pairs**2 - mean**2
    return ShuffleMeasure(
        value=float(Fraction(total, pairs * n)),
        expected=float(mean / n),
        deviation=math.sqrt(max(0.0, float(variance / n**2))),
    )


def _scale(distances: Int64s, num_items: int) -> tuple[int, float]:
    """Returns the power of two within which neighbours lie most surprisingly often, and the share that does."""
    best, found = _SURPRISE, (0, 0.0)
    scale = 1
    while len(distances) and scale < num_items // 2:
        expected = _expected_within(scale, num_items)
        share = float(np.count_nonzero(distances <= scale)) / len(distances)
        if share > expected:
            surprise = len(distances) * _divergence(share, expected)
            if surprise > best:
                best, found = surprise, (scale, share)
        scale *= 2
    return found


def _expected_within(scale: int, num_items: int) -> float:
    """Returns how likely two items lie within a distance."""
    return scale * (2 * num_items - scale - 1) / (num_items * (num_items - 1)) if num_items > 1 else 0.0


def _divergence(share: float, expected: float) -> float:
    """Returns how surprising a share of many tries is: at most exp(-tries * this) likely."""
    if share >= 1:
        return -math.log(expected)
    return share * math.log(share / expected) + (1 - share) * math.log((1 - share) / (1 - expected))


def _about(number: float) -> str:
    """Returns a number in two digits that count."""
    digits = max(0, math.floor(math.log10(max(number, 1))) - 1)
    return f"{round(number / 10**digits) * 10**digits:,}"
