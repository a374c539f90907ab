"""Cost models of sub-samples, and a lower bound of the cost of a plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import ConfigError
from tokenloom.numbers import checked_number
from tokenloom.packing.pack_plan import Int64s

Float64s = NDArray[np.float64]


class CostModel(Protocol):
    """A model of the time that sub-samples take; the costs must be the same on every rank and CPU."""

    def cost(self, lengths: Int64s, cp_size: int) -> Float64s:
        """Returns the cost of each sub-sample, float[num_subsamples]: the time that each rank takes, in any unit.

        A longer sub-sample must cost at least as much as a shorter one, both in total and per token.

        Args:
            lengths: int64[num_subsamples], tokens of each sub-sample, at least 1.
            cp_size: number of ranks in the context-parallel group that shares each sub-sample.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class PolynomialCost:
    """The cost per rank if c ranks share n tokens: (linear × n + quadratic × n² + communication × n × (c - 1)) / c.

    The defaults count attention only, as in Megatron. For a transformer of hidden size h with causal attention and a
    feed-forward width of 4h, linear / quadratic is about 12 h tokens.

    Example:
        >>> PolynomialCost().cost(np.array([1, 2, 4]), 2).tolist()
        [0.5, 2.0, 8.0]

    Attributes:
        linear: factor of n, for the cost of everything except attention.
        quadratic: factor of n², for the cost of attention within a sub-sample.
        communication: cost of each token that a rank receives from another rank of the group.
    """

    linear: float = 0.0
    quadratic: float = 1.0
    communication: float = 0.0

    def __post_init__(self) -> None:
        for name in ("linear", "quadratic", "communication"):
            checked_number(f"`{name}` of a cost", getattr(self, name), at_least=0)
        if self.linear == 0 and self.quadratic == 0:
            raise ConfigError("`linear` and `quadratic` of a cost are both 0", hint="make one of them positive")

    def cost(self, lengths: Int64s, cp_size: int) -> Float64s:
        """Returns the cost of each sub-sample, float64[num_subsamples], for one rank of a group of `cp_size` ranks."""
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
    """Returns a lower bound of a plan's cost: the cost of each microbatch's costliest pack, summed over microbatches.

    `lengths` and `costs`, [num_subsamples] each, describe the sub-samples that stay whole, longest first; `shared` has
    one cost for each rank that works on a part of a shared sub-sample instead of a pack.

    No pack has two sub-samples longer than half a pack. With microbatches and these sub-samples sorted by cost, largest
    first, microbatch s costs at least as much as sub-sample s × ranks. The first t microbatches have at most the cost
    of the t × ranks costliest packs; at best, all ranks share the rest evenly. Returns the largest bound of all t.
    """
    total = float(costs.sum()) + float(shared.sum())
    most = np.cumsum(np.sort(np.append(costliest_packs(lengths, costs, capacity), shared))[::-1])
    longest = costs[: max(num_alone(lengths, capacity), 1)]
    alone = np.sort(np.append(longest, shared))[::-1][::num_ranks].astype(np.float64)
    held = most[np.minimum(np.arange(1, len(alone) + 1) * num_ranks, len(most)) - 1]
    rest = np.maximum(total - held, 0.0)
    return max(total / num_ranks, float((np.cumsum(alone) + rest / num_ranks).max()))


def num_alone(lengths: Int64s, capacity: int) -> int:
    """Returns the number of sub-samples longer than half a pack; no two of these fit into one pack."""
    return int(np.count_nonzero(lengths > capacity // 2))


def costliest_packs(lengths: Int64s, costs: Int64s | Float64s, capacity: int) -> Float64s:
    """Returns float64[n]; element i is an upper bound of the cost of packs whose longest sub-sample is i."""
    per_token = costs / lengths.astype(np.float64)
    room = capacity - lengths
    beside = np.searchsorted(-lengths, -room)  # element i: the longest sub-sample that fits beside sub-sample i
    # The cost per token increases with the length, so no other sub-sample that fits costs more per token.
    rate = np.append(per_token, 0.0)[np.where(lengths > capacity // 2, beside, np.arange(len(lengths)))]
    packs: Float64s = costs + room * rate
    return packs
