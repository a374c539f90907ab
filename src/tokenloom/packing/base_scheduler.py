"""The base class of packing schedulers: settings, validation, and plans as `PackPlan` or in Megatron's form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tokenloom.errors import ConfigError
from tokenloom.numbers import checked_integer
from tokenloom.packing.cost import CostModel, PolynomialCost
from tokenloom.packing.groups import Place, place_in
from tokenloom.packing.pack_plan import Int64s, PackPlan, plan_from_groups
from tokenloom.packing.pipeline import Wrapped, run_pipeline


class BasePackingScheduler:
    """The base class of schedulers, which assign sub-samples to dp × cp ranks and microbatches.

    A plan depends on nothing but settings and lengths, so every rank computes the same plan. Each sub-sample is in
    exactly one pack; all ranks have the same number of microbatches, and no pack is empty.

    To write a scheduler, override `get_groups_and_subsamples` and add the class to `scheduler_map`. To replace the
    whole pipeline, override `run` instead. Set `is_dynamic_cp = True` if context-parallel groups may differ in size.

    Example:
        >>> from tokenloom.packing import PackingConfig, scheduler_map, wrap_data_iterator
        >>> class OneByOne(BasePackingScheduler):
        ...     def get_groups_and_subsamples(self, sample_id_seqlens):
        ...         return [[[sample_id]] for sample_id, length in sample_id_seqlens]
        >>> scheduler_map["one_by_one"] = OneByOne
        >>> config = PackingConfig(max_seqlen_per_dp_cp_rank=8, sequence_packing_scheduler="one_by_one")
        >>> row = dict.fromkeys(["tokens", "labels", "position_ids", "loss_mask"], [1, 2, 3])
        >>> packs, num_microbatches, *sums = wrap_data_iterator(iter([row, row]), config, 2)
        >>> num_microbatches, [pack["cu_seqlens"].tolist() for pack in packs]
        (2, [[0, 3], [0, 3]])
        >>> del scheduler_map["one_by_one"]

    Args:
        max_seqlen_per_dp_cp_rank: maximum tokens that each rank has in one microbatch.
        cp_size: ranks per context-parallel group; a pack has at most `max_seqlen_per_dp_cp_rank * cp_size` tokens.
        dp_size: number of context-parallel groups.
        microbatch_group_size_per_vp_stage: the number of microbatches must be a multiple of this number, if not None.
        max_num_seqs: maximum sub-samples per pack; None for no limit.
        cost_model: computes the cost of a sub-sample from its length; None for attention work only.
    """

    is_dynamic_cp = False

    def __init__(
        self,
        max_seqlen_per_dp_cp_rank: int,
        cp_size: int,
        dp_size: int,
        microbatch_group_size_per_vp_stage: int | None = None,
        max_num_seqs: int | None = None,
        *,
        cost_model: CostModel | None = None,
    ) -> None:
        def positive(name: str, value: int | None) -> int:
            return checked_integer(name, value, at_least=1, below=2**31)

        # Boundaries are 32-bit integers, so a pack has fewer than 2**31 tokens, and sums of lengths fit 64 bits.
        self.max_seqlen_per_dp_cp_rank: int = positive("max_seqlen_per_dp_cp_rank", max_seqlen_per_dp_cp_rank)
        self.cp_size: int = positive("cp_size", cp_size)
        self.dp_size: int = positive("dp_size", dp_size)
        group = microbatch_group_size_per_vp_stage
        self.microbatch_group_size_per_vp_stage = group
        self.microbatch_multiple: int = 1 if group is None else positive("microbatch_group_size_per_vp_stage", group)
        self.max_num_seqs: int | None = None if max_num_seqs is None else positive("max_num_seqs", max_num_seqs)
        self.cost_model: CostModel = PolynomialCost() if cost_model is None else cost_model

    @property
    def num_ranks(self) -> int:
        """Number of dp × cp ranks; rank = dp_rank * cp_size + cp_rank."""
        return self.dp_size * self.cp_size

    @property
    def max_tokens(self) -> int:
        """Length in tokens of the longest sub-sample that fits a pack."""
        return self.max_seqlen_per_dp_cp_rank * self.cp_size

    def get_required_sample_keys(self) -> list[str]:
        """Returns the keys that every sub-sample must have."""
        return ["tokens", "labels", "loss_mask", "position_ids", "original_seq_len", "padded_seq_len"]

    def plan(self, lengths: ArrayLike) -> PackPlan:
        """Returns the plan of a global batch.

        Args:
            lengths: int64[num_subsamples], tokens per sub-sample, including padding.

        Raises:
            ConfigError: there is no valid plan; the message has the reason.
        """
        if getattr(self.get_groups_and_subsamples, "__func__", None) is _GROUPS_OF_PLAN:
            return self._plan(self.checked_lengths(lengths))
        counted: list[int] = _positive(lengths).tolist()
        groups = self.get_groups_and_subsamples(list(enumerate(counted)))
        cp_size = None if self.is_dynamic_cp else self.cp_size
        plan = plan_from_groups(groups, num_subsamples=len(counted), num_ranks=self.num_ranks, cp_size=cp_size)
        if plan.num_microbatches % self.microbatch_multiple:
            message = f"`{type(self).__name__}` plans {plan.num_microbatches} microbatches, which is not a multiple of "
            raise ConfigError(f"{message}microbatch_group_size_per_vp_stage = {self.microbatch_multiple}")
        return plan

    def get_groups_and_subsamples(self, sample_id_seqlens: Sequence[tuple[int, int]]) -> list[list[list[int]]]:
        """Returns the plan in Megatron's form: the ids of sub-samples as `[microbatch][rank][i]`.

        Args:
            sample_id_seqlens: (id, length in tokens) of each sub-sample.
        """
        ids = [sample_id for sample_id, _ in sample_id_seqlens]
        plan = self._plan(self.checked_lengths([length for _, length in sample_id_seqlens]))
        return [[[ids[number] for number in numbers] for numbers in ranks] for ranks in plan.assignments]

    def run(
        self,
        data_iterator: Any,
        num_microbatches: int,
        dp_group: Any,
        tp_group: Any,
        pp_group: Any,
        dp_cp_group: Any,
        dev: Any,
        config: object,
    ) -> tuple[Any, int, float, float]:  # as in Megatron
        """Returns the result of `wrap_data_iterator` for one global batch; all ranks must call this together.

        An override may call `super().run(…)` to get the packs.

        Args:
            data_iterator, num_microbatches, config: see `wrap_data_iterator`.
            dp_group, tp_group, pp_group: process groups; None for a group of this process only.
            dp_cp_group: group of all data- and context-parallel ranks; None to use `dp_group`.
            dev: device of the packs.
        """
        place = place_in(dp_group, tp_group, pp_group, dp_cp_group, dev)
        return self.run_in(place, data_iterator, num_microbatches, config)

    def run_in(self, place: Place, data_iterator: Any, num_microbatches: int, config: object) -> Wrapped:
        """Does the work of `run` with the process groups in `place`."""
        return run_pipeline(self, place, data_iterator, num_microbatches, config)

    def _plan(self, lengths: Int64s) -> PackPlan:
        raise NotImplementedError(f"`{type(self).__name__}` must override `get_groups_and_subsamples`")

    def checked_lengths(self, lengths: ArrayLike) -> Int64s:
        """Returns `lengths` as int64[num_subsamples]; raises if a length is not an integer in [1, `max_tokens`]."""
        checked = _positive(lengths)
        longest = int(checked.argmax())
        if checked[longest] > self.max_tokens:
            message = f"sub-sample {longest} has {int(checked[longest])} tokens; a pack has at most {self.max_tokens}"
            raise ConfigError(message, hint="increase `max_seqlen_per_dp_cp_rank`, or plan with `hybrid_cost_balanced`")
        return checked


def _positive(lengths: ArrayLike) -> Int64s:
    found = np.asarray(lengths)
    if found.ndim != 1 or (len(found) and found.dtype.kind not in "iu"):
        raise ConfigError(f"lengths of sub-samples must be a vector of integers, got {found.dtype}{found.shape}")
    if not len(found):
        raise ConfigError("the global batch has no sub-samples")
    checked = np.ascontiguousarray(found, dtype=np.int64)
    shortest = int(checked.argmin())
    if checked[shortest] < 1:
        raise ConfigError(f"sub-sample {shortest} has {int(checked[shortest])} tokens", hint="leave the sub-sample out")
    return checked


# Compared by identity to detect overrides in user classes.
_GROUPS_OF_PLAN = BasePackingScheduler.get_groups_and_subsamples
RUN = BasePackingScheduler.run
