"""The packing schedulers by name, the reference's own, and what a training loop calls once per step."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, cast

import numpy as np

from tokenloom.errors import ConfigError
from tokenloom.packing.balanced import CostBalancedScheduler
from tokenloom.packing.base import RUN_PIPELINE, BasePackingScheduler
from tokenloom.packing.config import PackingConfig
from tokenloom.packing.dynamic import DefaultDynamicCPScheduler
from tokenloom.packing.groups import place_of
from tokenloom.packing.hybrid import HybridCostBalancedScheduler
from tokenloom.packing.pipeline import Wrapped, run_pipeline
from tokenloom.packing.plan import Int64s, PackPlan, uniform_plan
from tokenloom.packing.prefix_trees import PrefixTreeScheduler


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
        ends, capacity, most = np.cumsum(lengths), self.max_tokens, self.max_num_seqs or len(lengths)
        bounds, before = [0], 0
        while bounds[-1] < len(lengths):
            last = int(np.searchsorted(ends, before + capacity, side="right"))
            bounds.append(min(bounds[-1] + most, last))
            before = int(ends[bounds[-1] - 1])
        num_packs, multiple = len(bounds) - 1, self.dp_size * self.microbatch_multiple
        num_missing = -num_packs % multiple
        # The last of the last packs get packs of their own, but never a first one.
        spare = (i for pack in range(num_packs, 0, -1) for i in range(bounds[pack] - 1, bounds[pack - 1], -1))
        moved = list(itertools.islice(spare, num_missing))
        if len(moved) < num_missing:
            message = (
                f"{len(lengths)} sub-samples fill {num_packs} packs, expected a multiple of {multiple}; not enough "
                f"samples to move: {num_missing} packs are missing, but there are {len(moved)} sub-samples to spare"
            )
            raise ConfigError(message, hint="plan with `cost_balanced`, or take more samples into a global batch")
        pack_of = np.repeat(np.arange(num_packs), np.diff(bounds))
        pack_of[moved] = np.arange(num_packs, num_packs + num_missing)
        num_microbatches = (num_packs + num_missing) // self.dp_size
        return uniform_plan(pack_of, num_microbatches=num_microbatches, cp_size=self.cp_size, dp_size=self.dp_size)


scheduler_map: dict[str, type[BasePackingScheduler]] = {
    "dp_balanced": DpBalancedScheduler,
    "default_dynamic_cp": DefaultDynamicCPScheduler,
    "cost_balanced": CostBalancedScheduler,
    "hybrid_cost_balanced": HybridCostBalancedScheduler,
    "prefix_trees": PrefixTreeScheduler,
}
"""The schedulers by name, as a configuration names them. A user's own may be added."""


def make_scheduler(
    config: object,
    *,
    cp_size: int,
    dp_size: int,
    schedulers: Mapping[str, type[BasePackingScheduler]] = scheduler_map,
    name: str | None = None,
) -> BasePackingScheduler:
    """Returns the scheduler that a configuration names, with its settings.

    Args:
        config: a `PackingConfig`, or what has its attributes.
        cp_size: ranks of a context-parallel group.
        dp_size: context-parallel groups.
        schedulers: classes by name.
        name: instead of the one in the configuration.
    """
    settings = PackingConfig.of(config)
    name = settings.sequence_packing_scheduler if name is None else name
    if name not in schedulers:
        message = f"expected a scheduler among {', '.join(sorted(schedulers))}, found {name!r}"
        raise ConfigError(message)
    multiple = settings.microbatch_group_size_per_vp_stage if settings.has_virtual_stages else None
    options: dict[str, Any] = {"max_num_seqs": settings.max_num_seqs, "cost_model": settings.packing_cost_model}
    if issubclass(schedulers[name], DefaultDynamicCPScheduler):
        options["min_cp_size"] = settings.min_dynamic_context_parallel_size
    given = {option: value for option, value in options.items() if value is not None}  # a user's class may know no more
    return schedulers[name](settings.max_seqlen_per_dp_cp_rank, cp_size, dp_size, multiple, **given)


def wrap_data_iterator(data_iterator: Any, config: object, num_microbatches: int, pg_collection: Any = None) -> Wrapped:
    """Schedules and exchanges one global batch; all ranks of the run must call this together.

    The sub-samples of all data-parallel ranks together are planned anew, and each goes to the ranks that work on it.
    Which are in the global batch does not change. A sub-sample is padded to a multiple of 2 × the ranks that share it,
    beyond the padding that its iterator says it has.

    The scheduler that `config` names in `scheduler_map` decides: its `get_groups_and_subsamples` what each rank works
    on, its `run` all of it.

    Args:
        data_iterator: yields what `take_apart` describes: mappings with tokens, labels, loss_mask, position_ids,
            original_seq_len and padded_seq_len, or lists of them. Only rank 0 of a tensor-parallel group on the first
            and the last pipeline stage has one (and on a stage with multi-token prediction), with virtual stages in a
            list of one per stage. It is the same on context-parallel ranks. What a middle stage holds is not read.
            It needs `__next__` only.
        config: a `PackingConfig`, or what has its attributes.
        num_microbatches: how many items are taken from each iterator.
        pg_collection: a `ProcessGroups`, or what has its attributes; None where there is one process only.

    Returns:
        (iterator, number of microbatches, sum of lengths, sum of squared lengths), lengths without padding, exact. The
        iterator yields one pack per microbatch: tokens, labels, position_ids int64[T], loss_mask float32[T], cu_seqlens
        and cu_seqlens_padded int32[n + 1], max_seqlen; on stages without tokens the last three only. It is a list with
        virtual stages, and None on tensor-parallel ranks other than 0.

    Raises:
        ConfigError: an iterator is missing, or where none may be; a sub-sample is too long; it cannot be planned.
        InputError: the iterator ended, or yields something else.
        BuildError: in a run of several ranks, any of this happened on some rank, which the message names, or one died.
        DivergenceError: ranks that must hold the same data hold lengths that differ.
    """
    place = place_of(pg_collection)
    scheduler = make_scheduler(config, cp_size=place.cp.size, dp_size=place.dp.size)
    if type(scheduler).run is RUN_PIPELINE:
        return run_pipeline(scheduler, place, data_iterator, num_microbatches, config)
    groups = (place.dp.group, place.tp.group, place.pp.group, place.dp_cp_group)
    return cast("Wrapped", scheduler.run(data_iterator, num_microbatches, *groups, place.device, config))
