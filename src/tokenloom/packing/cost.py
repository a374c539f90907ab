"""Cost models of sub-samples, and a lower bound of the cost of packs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import ConfigError
from tokenloom.numbers import checked_number
from tokenloom.packing.plan import Int64s

Float64s = NDArray[np.float64]


class CostModel(Protocol):
    """A cost model: a pure function, the same on every rank and every CPU."""

    def cost(self, lengths: Int64s, cp_size: int) -> Float64s:
        """Returns the time of each rank of a context-parallel group for each sub-sample, in any unit.

        A longer sub-sample costs no less, nor less per token.

        Args:
            lengths: int64[n], tokens, at least 1.
            cp_size: ranks of the group.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class PolynomialCost:
    """Time on each of c ranks for n tokens: (linear × n + quadratic × n²) / c + communication × n × (c - 1) / c.

    The default is attention work alone, as in the reference. For a transformer of hidden size h with causal attention
    and a feed-forward width of 4h, linear / quadratic is about 12 h tokens.

    Example:
        >>> PolynomialCost().cost(np.array([1, 2, 4]), 2).tolist()
        [0.5, 2.0, 8.0]

    Attributes:
        linear: cost per token, without attention.
        quadratic: cost per pair of tokens, of attention within a document.
        communication: cost per token received from the other ranks of a group.
    """

    linear: float = 0.0
    quadratic: float = 1.0
    communication: float = 0.0

    def __post_init__(self) -> None:
        for name in ("linear", "quadratic", "communication"):
            checked_number(f"`{name}` of a cost", getattr(self, name), at_least=0)
        if self.linear == 0 and self.quadratic == 0:
            raise ConfigError("`linear` and `quadratic` of a cost are both 0, so nothing costs anything")

    def cost(self, lengths: Int64s, cp_size: int) -> Float64s:
        """Returns the time of each rank of a group of `cp_size` for each sub-sample."""
        tokens = lengths.astype(np.float64)
        per_token: Float64s = (self.linear + self.quadratic * tokens + self.communication * (cp_size - 1)) / cp_size
        return per_token * tokens


_NONE: Float64s = np.empty(0)


def least_slowest_cost(
    lengths: Int64s,
    costs: Int64s | Float64s,
    capacity: int,
    num_ranks: int,
    *,
    shared: Int64s | Float64s = _NONE,
) -> float:
    """Returns a lower bound of the sum of the costliest packs of all microbatches.

    Sub-samples above half a pack have packs of their own, so the s-th costliest step (from 0) costs no less than the
    (s × ranks)-th of them. The t costliest steps hold at most the t × ranks costliest packs that fit, and the rest is
    shared evenly, at best. The largest such sum over all t is the bound.

    Args:
        lengths: int64[num_subsamples], longest first.
        costs: int64 or float64[num_subsamples], rising at least as fast as lengths.
        capacity: tokens of a pack.
        num_ranks: ranks that work side by side.
        shared: int64 or float64[n], costs of ranks that have part of a shared sub-sample instead of a pack.
    """
    total = float(costs.sum()) + float(shared.sum())
    most = np.cumsum(np.sort(np.append(costliest_packs(lengths, costs, capacity), shared))[::-1])
    longest = costs[: max(num_alone(lengths, capacity), 1)]
    alone = np.sort(np.append(longest, shared))[::-1][::num_ranks].astype(np.float64)
    held = most[np.minimum(np.arange(1, len(alone) + 1) * num_ranks, len(most)) - 1]
    rest = np.maximum(total - held, 0.0)
    return max(total / num_ranks, float((np.cumsum(alone) + rest / num_ranks).max()))


def num_alone(lengths: Int64s, capacity: int) -> int:
    """Returns the number of sub-samples above half a pack: no two share one."""
    return int(np.count_nonzero(lengths > capacity // 2))


def costliest_packs(lengths: Int64s, costs: Int64s | Float64s, capacity: int) -> Float64s:
    """Returns, for each sub-sample, an upper bound of the cost of a pack of which it is the longest.

    No token of a pack costs more than one of its longest sub-sample, nor, beside one above half a pack, than one of the
    longest that still fits.
    """
    per_token = costs / lengths.astype(np.float64)
    room = capacity - lengths
    beside = np.searchsorted(-lengths, -room)  # the longest that fits beside each
    rate = np.append(per_token, 0.0)[np.where(lengths > capacity // 2, beside, np.arange(len(lengths)))]
    packs: Float64s = costs + room * rate
    return packs
