"""From the lengths of a global batch and the settings of a run to its plan; the same on every rank that computes it."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tokenloom.errors import ConfigError
from tokenloom.packing.config import PackingSettings
from tokenloom.packing.groups import Place
from tokenloom.packing.plan import Int64s, PackPlan


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan, and the padded length of each sub-sample in it: a multiple of 2 × the ranks that share it."""

    plan: PackPlan
    padded_lengths: Int64s

    def ids(self, rank: int) -> list[Int64s]:
        """Returns the sub-samples of a rank by microbatch."""
        return [self.plan.ids_of(microbatch, rank) for microbatch in range(self.plan.num_microbatches)]

    def longest_part(self) -> int:
        """Returns the most tokens that a rank holds of a pack."""
        tokens = np.add.reduceat(self.padded_lengths[self.plan.ids], self.plan.pack_offsets[:-1])
        return int((tokens[self.plan.packs] // self.plan.cp_sizes).max())

    def cp_sizes(self, place: Place) -> list[int] | None:
        """Returns the ranks that share each pack of this rank; None if all packs of the plan are shared by cp ranks."""
        if (self.plan.cp_sizes == place.cp.size).all():
            return None
        sizes: list[int] = self.plan.cp_sizes[:, place.rank].tolist()
        return sizes


class PlansPacks(Protocol):
    """What planning and the pipeline ask of a scheduler."""

    @property
    def is_dynamic_cp(self) -> bool:
        """Whether it chooses the ranks that share a pack anew for each."""

    @property
    def max_seqlen_per_dp_cp_rank(self) -> int:
        """The most tokens of a pack that one rank holds."""

    def plan(self, lengths: Int64s, /) -> PackPlan:
        """Returns the plan of a global batch."""

    def get_required_sample_keys(self) -> Sequence[str]:
        """Returns what a sub-sample must hold."""


def plan_global_batch(lengths: Int64s, config: PackingSettings, place: Place, scheduler: PlansPacks) -> Planned:
    """Returns the plan of a scheduler, and what each sub-sample is padded to in it.

    Where a scheduler chooses how many ranks share a sub-sample, it sees lengths as they come; if packs with the padding
    that its choice asks for are then too long, it plans once more, with lengths that any choice can cut.

    Args:
        lengths: int64[num_subsamples], what each takes up at least: the padded lengths that the data come with.
        config: settings.
        place: the process groups.
        scheduler: the scheduler.
    """
    per_rank = place.tp.size if getattr(config, "sequence_parallel", False) else 1
    known_cp_size = 1 if scheduler.is_dynamic_cp else place.cp.size
    planned = _planned(scheduler.plan(_align(lengths, _chunks(known_cp_size) * per_rank)), lengths, per_rank)
    if scheduler.is_dynamic_cp and planned.longest_part() > scheduler.max_seqlen_per_dp_cp_rank:
        sizes = {2**k for k in range(1, place.num_ranks.bit_length())} | {place.num_ranks}
        planned = _planned(scheduler.plan(_align(lengths, 2 * math.lcm(*sizes) * per_rank)), lengths, per_rank)
    needed: list[int] = np.unique(planned.plan.cp_sizes).tolist()
    groups = place.cp_of_size
    missing = [size for size in needed if groups is not None and size not in (1, place.cp.size) and size not in groups]
    if missing:
        message = f"expected process groups of {missing} context-parallel ranks for this plan, found none"
        raise ConfigError(message, hint="name all sizes in `ProcessGroups.from_mesh(mesh, cp_sizes=...)`")
    return planned


def _planned(plan: PackPlan, lengths: Int64s, per_rank: int) -> Planned:
    """Returns a plan with the padding that it asks for."""
    pack_sizes = np.empty(plan.num_packs, dtype=np.int64)
    pack_sizes[plan.packs] = plan.cp_sizes
    sizes = np.empty_like(lengths)
    sizes[plan.ids] = np.repeat(pack_sizes, np.diff(plan.pack_offsets))
    return Planned(plan, _align(lengths, np.where(sizes > 1, 2 * sizes, 1) * per_rank))


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


def describe_plan(plan: PackPlan) -> str:
    """Returns a short text that differs where plans differ."""
    digest = hashlib.sha256()
    for part in (plan.ids, plan.pack_offsets, plan.packs, plan.cp_sizes):
        digest.update(np.ascontiguousarray(part).data)
    return f"{plan.num_packs} packs in {plan.num_microbatches} microbatches, {digest.hexdigest()[:16]}"


def describe_lengths(lengths: Int64s) -> str:
    """Returns a short text that differs where lengths differ."""
    digest = hashlib.sha256(np.ascontiguousarray(lengths, dtype=np.int64).data).hexdigest()
    return f"{len(lengths)} sub-samples of {sums_of(lengths)[0]} tokens, {digest[:16]}"
