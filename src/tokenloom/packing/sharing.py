"""How many ranks share each sub-sample: ways to choose, the fewest ranks first, and how well each can come out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from tokenloom.packing.bounds import least_slowest_cost
from tokenloom.packing.plan import Int64s

ALMOST_EVEN = 1.035
"""How far above an even share a way that is good enough may stay; plans end about 1 % above what a way allows."""

LIMITS = (float("inf"), 16.0, 8.0, 4.0, 2.0, 1.0, 0.5, 0.25, 0.125)
"""Ways to limit what a rank of a group may cost: so many times the longest that a rank on its own can hold."""

MOST_CUTS = 2
"""How often the last step of groups may be cut in two; each cut may take one more microbatch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """Ranks for each of the longest sub-samples; all others stay whole, in packs of one rank.

    Attributes:
        numbers: int64[n], the sub-samples that are shared, those first that cost their ranks most.
        sizes: int64[n], ranks of each.
        costs: int64[n], what each costs each of these ranks.
        least: a cost below which the slowest ranks of all microbatches together cannot come.
    """

    numbers: Int64s
    sizes: Int64s
    costs: Int64s
    least: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedBatch:
    """The sub-samples of a global batch, longest first, that groups of ranks may share.

    Attributes:
        lengths: int64[num_subsamples], what each takes up in a pack.
        needs: int64[num_subsamples], the fewest ranks of each.
        costs: from a number of ranks and a count to int64[count], what each of the first costs each of so many ranks.
        group_sizes: the numbers of ranks that a group can have, smallest first.
        capacity: tokens of a pack of one rank.
        full: what the longest costs a rank on its own, cut to what that can hold.
        num_ranks: number of ranks.
    """

    lengths: Int64s
    needs: Int64s
    costs: Callable[[int, int], Int64s]
    group_sizes: tuple[int, ...]
    capacity: int
    full: int
    num_ranks: int

    def promising_first(self) -> Iterator[Sharing]:
        """Yields ways to share: those that may be good enough as they are found, then the others, best first."""
        others: list[Sharing] = []
        even_share = float("inf")
        for way in self._ways():
            even_share = min(even_share, self.even_share(way))
            if way.least <= ALMOST_EVEN * even_share:
                yield way
            else:
                others.append(way)
        yield from sorted(others, key=lambda other: other.least)

    def even_share(self, way: Sharing) -> float:
        whole = self.costs(1, len(self.lengths))[len(way.sizes) :]
        return (float(whole.sum()) + float((way.costs * way.sizes).sum())) / self.num_ranks

    def _ways(self) -> Iterator[Sharing]:
        """Yields ways to share, each once: from high limits to low, as they are and with the longest widened."""
        num_long = int(np.count_nonzero(self.needs > 1))
        alone = self.costs(1, len(self.lengths))
        seen: set[bytes] = set()
        is_scarce = len(self.lengths) < self.num_ranks
        for limit in LIMITS:
            count = num_long if is_scarce else max(num_long, int(np.searchsorted(-alone, -limit * self.full)))
            sizes = self._sizes_within(limit, count)
            num_cuts = 0 if is_scarce else MOST_CUTS + 1
            variants = [sizes, *(self._first_widened(sizes, cuts) for cuts in range(num_cuts))]
            for variant in variants:
                if variant.tobytes() not in seen:
                    seen.add(variant.tobytes())
                    yield self._sharing(variant)

    def _sizes_within(self, limit: float, count: int) -> Int64s:
        """Returns for each of the first sub-samples the fewest ranks that it costs no more than a limit, or least."""
        if not count:
            return np.empty(0, dtype=np.int64)
        sizes = np.array(self.group_sizes, dtype=np.int64)
        table = np.stack([self.costs(size, count) for size in self.group_sizes])
        possible = sizes[:, None] >= self.needs[:count]
        within = possible & (table <= limit * self.full)
        least = np.argmin(np.where(possible, table, np.iinfo(np.int64).max), axis=0)
        chosen: Int64s = sizes[np.where(within.any(axis=0), np.argmax(within, axis=0), least)]
        return chosen

    def _first_widened(self, sizes: Int64s, cuts: int) -> Int64s:
        """Returns sizes with which the longest occupy a step of their own, so that all others fill theirs.

        They are as wide as they can be then. With each cut they become twice as wide as that, and again the longest of
        them, as many as do not fill a step, occupy one of their own.
        """
        num_whole = int(np.count_nonzero(self.lengths[len(sizes) :] > self.capacity // 2))
        widened = np.append(sizes, np.ones(num_whole, dtype=np.int64))
        count = 0
        for cut in range(cuts + 1):
            ends = np.cumsum(widened[: count or None])
            rest = int(ends[-1]) % self.num_ranks if len(ends) else 0
            if not rest:
                break
            count = int(np.searchsorted(ends, rest)) + 1
            wider = 2 ** (max(self.num_ranks // int(ends[count - 1]), 1).bit_length() - (1 if cut == cuts else 0))
            widened[:count] = np.minimum(widened[:count] * wider, self.group_sizes[-1])
        return widened[: max(len(sizes), int(np.count_nonzero(widened > 1)))]

    def _sharing(self, sizes: Int64s) -> Sharing:
        costs = np.empty_like(sizes)
        for size in np.unique(sizes).tolist():
            costs[sizes == size] = self.costs(size, len(sizes))[sizes == size]
        order = np.lexsort((-sizes, -costs))
        whole = self.costs(1, len(self.lengths))[len(sizes) :]
        shared = np.repeat(costs, sizes)
        least = least_slowest_cost(self.lengths[len(sizes) :], whole, self.capacity, self.num_ranks, shared=shared)
        return Sharing(numbers=order, sizes=sizes[order], costs=costs[order], least=least)
