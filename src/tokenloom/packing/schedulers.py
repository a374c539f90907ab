"""The packing schedulers by name, and the reference's own: sub-samples in packs in the order in which they come."""

from __future__ import annotations

import numpy as np

from tokenloom.errors import ConfigError
from tokenloom.packing.balanced import CostBalancedScheduler
from tokenloom.packing.base import BasePackingScheduler
from tokenloom.packing.hybrid import HybridCostBalancedScheduler
from tokenloom.packing.plan import Int64s, PackPlan, uniform_plan

__all__ = [
    "BasePackingScheduler",
    "CostBalancedScheduler",
    "DpBalancedScheduler",
    "HybridCostBalancedScheduler",
    "scheduler_map",
]


class DpBalancedScheduler(BasePackingScheduler):
    """Packs sub-samples in order until the next would not fit, as the reference does; costs play no part.

    The number of packs is made a multiple of `dp_size` (times `microbatch_group_size_per_vp_stage`) by moving single
    sub-samples off the end of the last packs that have more than one, into packs of their own; never off the first
    pack, so what fits one pack cannot be planned for two groups. Where the reference fails with "Not enough samples to
    move", so does this, with the numbers; where it yields an empty pack before a sub-sample that is too long, that
    sub-sample is named instead.

    Example:
        >>> DpBalancedScheduler(8, cp_size=1, dp_size=2).plan([5, 3, 4, 4, 6]).assignments
        (((0, 1), (2,)), ((4,), (3,)))
    """

    def _plan(self, lengths: Int64s) -> PackPlan:
        bounds = _in_order(lengths, self.max_tokens)
        num_packs = len(bounds) - 1
        multiple = self.dp_size * self.microbatch_multiple
        moved = self._moved(bounds, -num_packs % multiple)
        pack_of = np.repeat(np.arange(num_packs), np.diff(bounds))
        pack_of[moved] = np.arange(num_packs, num_packs + len(moved))
        return uniform_plan(
            pack_of,
            num_microbatches=(num_packs + len(moved)) // self.dp_size,
            cp_size=self.cp_size,
            dp_size=self.dp_size,
        )

    def _moved(self, bounds: list[int], num_missing: int) -> list[int]:
        """Returns the sub-samples that get packs of their own: the last ones of the last packs, never a pack's first.

        Args:
            bounds: where each pack begins, and the last one ends.
            num_missing: how many to move.
        """
        moved: list[int] = []
        for pack in range(len(bounds) - 2, 0, -1):
            if len(moved) == num_missing:
                break
            candidates = range(bounds[pack + 1] - 1, bounds[pack], -1)
            moved.extend(candidates[: num_missing - len(moved)])
        if len(moved) < num_missing:
            message = (
                f"{bounds[-1]} sub-samples fill {len(bounds) - 1} packs, expected a multiple of "
                f"{self.dp_size * self.microbatch_multiple}; not enough samples to move: {num_missing} packs are "
                f"missing, but those behind the first can spare {len(moved)} sub-samples"
            )
            raise ConfigError(message, hint="plan with `cost_balanced`, or take more samples into a global batch")
        return moved


def _in_order(lengths: Int64s, capacity: int) -> list[int]:
    """Returns where each pack begins, and the last one ends."""
    ends = np.cumsum(lengths)
    bounds = [0]
    before = 0
    while bounds[-1] < len(lengths):
        bounds.append(int(np.searchsorted(ends, before + capacity, side="right")))
        before = int(ends[bounds[-1] - 1])
    return bounds


scheduler_map: dict[str, type[BasePackingScheduler]] = {
    "dp_balanced": DpBalancedScheduler,
    "cost_balanced": CostBalancedScheduler,
    "hybrid_cost_balanced": HybridCostBalancedScheduler,
}
"""The schedulers by name, as a configuration names them."""
