"""From the lengths of a global batch and the settings of a run to its plan; the same on every rank that computes it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from tokenloom.errors import ConfigError
from tokenloom.packing.base import BasePackingScheduler
from tokenloom.packing.config import PackingSettings
from tokenloom.packing.groups import Place
from tokenloom.packing.hybrid import HybridCostBalancedScheduler
from tokenloom.packing.plan import Int64s, PackPlan
from tokenloom.packing.schedulers import scheduler_map


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan, and the padded length of each sub-sample in it: a multiple of 2 × the ranks that share it."""

    plan: PackPlan
    padded_lengths: Int64s

    def ids(self, rank: int) -> list[Int64s]:
        """Returns the sub-samples of a rank by microbatch."""
        return [self.plan.ids_of(microbatch, rank) for microbatch in range(self.plan.num_microbatches)]

    def cp_sizes(self, place: Place) -> list[int] | None:
        """Returns the ranks that share each pack of this rank; None if all packs of the plan are shared by cp ranks."""
        if (self.plan.cp_sizes == place.cp.size).all():
            return None
        sizes: list[int] = self.plan.cp_sizes[:, place.rank].tolist()
        return sizes


def plan_global_batch(lengths: Int64s, config: PackingSettings, place: Place) -> Planned:
    """Returns the plan of the scheduler that the configuration names.

    Args:
        lengths: int64[num_subsamples], what each takes up at least: the padded lengths that the data come with.
        config: settings.
        place: the process groups.

    Raises:
        ConfigError: there is no such scheduler, it cannot plan these lengths, or its plan needs a group that is
            missing.
    """
    scheduler = _scheduler(config, place)
    per_rank = place.tp.size if getattr(config, "sequence_parallel", False) else 1
    # Groups that are chosen for each sub-sample leave room for their own padding.
    known_cp_size = 1 if isinstance(scheduler, HybridCostBalancedScheduler) else place.cp.size
    plan = scheduler.plan(_align(lengths, _chunks(known_cp_size) * per_rank))
    missing = set(np.unique(plan.cp_sizes).tolist()) - {1, place.cp.size, *place.cp_of_size}
    if missing:
        message = f"expected process groups of {sorted(missing)} context-parallel ranks for this plan, found none"
        raise ConfigError(message, hint="name all sizes in `ProcessGroups.from_mesh(mesh, cp_sizes=...)`")
    pack_sizes = np.empty(plan.num_packs, dtype=np.int64)
    pack_sizes[plan.packs] = plan.cp_sizes
    sizes = np.empty_like(lengths)
    sizes[plan.ids] = np.repeat(pack_sizes, np.diff(plan.pack_offsets))
    return Planned(plan, _align(lengths, np.where(sizes > 1, 2 * sizes, 1) * per_rank))


def _scheduler(config: PackingSettings, place: Place) -> BasePackingScheduler:
    name = config.sequence_packing_scheduler
    if name not in scheduler_map:
        message = f"expected a scheduler among {', '.join(sorted(scheduler_map))}, found {name!r}"
        raise ConfigError(message)
    has_stages = config.virtual_pipeline_model_parallel_size is not None
    multiple = config.microbatch_group_size_per_vp_stage if has_stages else None
    return scheduler_map[name](config.max_seqlen_per_dp_cp_rank, place.cp.size, place.dp.size, multiple)


def _chunks(cp_size: int) -> int:
    """Returns into how many equal parts context parallelism cuts a sub-sample."""
    return 2 * cp_size if cp_size > 1 else 1


def _align(lengths: Int64s, multiples: Int64s | int) -> Int64s:
    aligned: Int64s = -(-lengths // multiples) * multiples
    return aligned


def sums_of(lengths: Int64s) -> tuple[int, int]:
    """Returns the sum of lengths and the sum of their squares, exact at any size."""
    counted: list[int] = lengths.tolist()
    return sum(counted), sum(length * length for length in counted)


def describe_lengths(lengths: Int64s) -> str:
    """Returns a short text that differs where lengths differ."""
    digest = hashlib.sha256(np.ascontiguousarray(lengths, dtype=np.int64).data).hexdigest()
    return f"{len(lengths)} sub-samples of {sums_of(lengths)[0]} tokens, {digest[:16]}"
