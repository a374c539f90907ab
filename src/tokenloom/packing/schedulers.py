"""The packing schedulers by name, and the reference's own: sub-samples in packs in the order in which they come."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tokenloom.errors import ConfigError
from tokenloom.packing.balanced import CostBalancedScheduler
from tokenloom.packing.base import BasePackingScheduler
from tokenloom.packing.config import PackingSettings, cost_model_of
from tokenloom.packing.dynamic import DefaultDynamicCPScheduler
from tokenloom.packing.hybrid import HybridCostBalancedScheduler
from tokenloom.packing.plan import Int64s, PackPlan, uniform_plan
from tokenloom.packing.static_shapes import max_num_sequences

__all__ = [
    "BasePackingScheduler",
    "CostBalancedScheduler",
    "DefaultDynamicCPScheduler",
    "DpBalancedScheduler",
    "HybridCostBalancedScheduler",
    "make_scheduler",
    "scheduler_map",
]


class DpBalancedScheduler(BasePackingScheduler):
    """Packs sub-samples in order until the next would not fit, as the reference does; costs play no part.

    The number of packs is made a multiple of `dp_size` (times `microbatch_group_size_per_vp_stage`) by moving single
    sub-samples off the end of the last packs that have more than one, into packs of their own. Releases of the
    reference up to 0.19 never move any off the first pack, and fail where its development branch and this do not. Where
    that fails with "Not enough samples to move", so does this, with the numbers; where it yields an empty pack before a
    sub-sample that is too long, that sub-sample is named instead.

    Example:
        >>> DpBalancedScheduler(8, cp_size=1, dp_size=2).plan([5, 3, 4, 4, 6]).assignments
        (((0, 1), (2,)), ((4,), (3,)))
    """

    @property
    def max_seq_len_all_ranks(self) -> int:
        """Tokens of a pack, under the reference's name."""
        return self.max_tokens

    def _plan(self, lengths: Int64s) -> PackPlan:
        bounds = _in_order(lengths, self.max_tokens, self.max_num_seqs or len(lengths))
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
        for pack in range(len(bounds) - 2, -1, -1):
            if len(moved) == num_missing:
                break
            candidates = range(bounds[pack + 1] - 1, bounds[pack], -1)
            moved.extend(candidates[: num_missing - len(moved)])
        if len(moved) < num_missing:
            message = (
                f"{bounds[-1]} sub-samples fill {len(bounds) - 1} packs, expected a multiple of "
                f"{self.dp_size * self.microbatch_multiple}; not enough samples to move: {num_missing} packs are "
                f"missing, but there are {len(moved)} sub-samples to spare"
            )
            raise ConfigError(message, hint="plan with `cost_balanced`, or take more samples into a global batch")
        return moved


def _in_order(lengths: Int64s, capacity: int, most: int) -> list[int]:
    """Returns where each pack begins, and the last one ends."""
    ends = np.cumsum(lengths)
    bounds = [0]
    before = 0
    while bounds[-1] < len(lengths):
        bounds.append(min(bounds[-1] + most, int(np.searchsorted(ends, before + capacity, side="right"))))
        before = int(ends[bounds[-1] - 1])
    return bounds


scheduler_map: dict[str, type[BasePackingScheduler]] = {
    "dp_balanced": DpBalancedScheduler,
    "default_dynamic_cp": DefaultDynamicCPScheduler,
    "cost_balanced": CostBalancedScheduler,
    "hybrid_cost_balanced": HybridCostBalancedScheduler,
}
"""The schedulers by name, as a configuration names them. A user's own may be added."""


def make_scheduler(
    config: PackingSettings,
    *,
    cp_size: int,
    dp_size: int,
    schedulers: Mapping[str, type[BasePackingScheduler]] = scheduler_map,
    name: str | None = None,
) -> BasePackingScheduler:
    """Returns the scheduler that a configuration names, with its settings.

    Args:
        config: settings.
        cp_size: ranks of a context-parallel group.
        dp_size: context-parallel groups.
        schedulers: classes by name.
        name: instead of the one in the configuration.

    Raises:
        ConfigError: there is none of that name, or a setting is not what it must be.
    """
    name = config.sequence_packing_scheduler if name is None else name
    if name not in schedulers:
        message = f"expected a scheduler among {', '.join(sorted(schedulers))}, found {name!r}"
        raise ConfigError(message)
    has_stages = config.virtual_pipeline_model_parallel_size is not None
    multiple = config.microbatch_group_size_per_vp_stage if has_stages else None
    options: dict[str, Any] = {}  # what is not asked for is not passed: a user's class may not know it
    if (most := max_num_sequences(config)) is not None:
        options["max_num_seqs"] = most
    if (model := cost_model_of(config)) is not None:
        options["cost_model"] = model
    if issubclass(schedulers[name], DefaultDynamicCPScheduler):
        options["min_cp_size"] = getattr(config, "min_dynamic_context_parallel_size", 1)
    return schedulers[name](config.max_seqlen_per_dp_cp_rank, cp_size, dp_size, multiple, **options)
