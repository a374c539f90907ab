"""The base of packing schedulers: settings, checks, and plans in our form and the reference's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tokenloom.errors import ConfigError
from tokenloom.numbers import checked_integer
from tokenloom.packing.cost import CostModel, PolynomialCost
from tokenloom.packing.groups import Place, place_in
from tokenloom.packing.pipeline import Wrapped, run_pipeline
from tokenloom.packing.plan import Int64s, PackPlan, plan_from_groups


class BasePackingScheduler:
    """Plans which sub-samples of a global batch each dp × cp rank works on in each microbatch.

    A plan follows from settings and lengths alone, in exact integers, so every rank makes the same one. It has each
    sub-sample once; all ranks have the same number of microbatches, none empty.

    Your own scheduler overrides `get_groups_and_subsamples`, and is added to `scheduler_map`; it may override `run`,
    too, which then does everything. A class that chooses the ranks of each pack anew sets `is_dynamic_cp`.

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
        max_seqlen_per_dp_cp_rank: most tokens of a rank in one microbatch.
        cp_size: ranks of a context-parallel group; a pack may have `max_seqlen_per_dp_cp_rank * cp_size` tokens.
        dp_size: context-parallel groups.
        microbatch_group_size_per_vp_stage: divides the number of microbatches, for virtual pipeline parallelism.
        max_num_seqs: most sub-samples of a pack; None for no limit.
        cost_model: cost of sub-samples; attention work, by default.
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

        # A pack has fewer than 2**31 tokens, since boundaries are 32-bit integers; so sums of lengths fit 64 bits.
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
        """Ranks of the data-parallel × context-parallel group; rank = dp_rank * cp_size + cp_rank."""
        return self.dp_size * self.cp_size

    @property
    def max_tokens(self) -> int:
        """Tokens of the longest sub-sample that can be planned."""
        return self.max_seqlen_per_dp_cp_rank * self.cp_size

    def get_required_sample_keys(self) -> list[str]:
        """Returns the keys that a sub-sample must have."""
        return ["tokens", "labels", "loss_mask", "position_ids", "original_seq_len", "padded_seq_len"]

    def plan(self, lengths: ArrayLike) -> PackPlan:
        """Returns the plan of a global batch.

        Args:
            lengths: int64[num_subsamples], tokens of each in a pack, padding included.

        Raises:
            ConfigError: there is no plan; the message names the sub-sample or numbers that prevent it.
        """
        if getattr(self.get_groups_and_subsamples, "__func__", None) is _GROUPS_OF_PLAN:
            return self._plan(self.checked_lengths(lengths))
        counted: list[int] = _positive(lengths).tolist()
        groups = self.get_groups_and_subsamples(list(enumerate(counted)))
        cp_size = None if self.is_dynamic_cp else self.cp_size
        plan = plan_from_groups(groups, num_subsamples=len(counted), num_ranks=self.num_ranks, cp_size=cp_size)
        if plan.num_microbatches % self.microbatch_multiple:
            message = f"`{type(self).__name__}` plans {plan.num_microbatches} microbatches"
            hint = f"virtual pipeline stages need a multiple of {self.microbatch_multiple}"
            raise ConfigError(message, hint=hint)
        return plan

    def get_groups_and_subsamples(self, sample_id_seqlens: Sequence[tuple[int, int]]) -> list[list[list[int]]]:
        """Returns the plan in the reference's form: by microbatch and rank, the ids of the sub-samples.

        Args:
            sample_id_seqlens: (id, length) pairs.
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
    ) -> tuple[Any, int, float, float]:  # the reference's
        """Returns the result of `wrap_data_iterator` for a global batch. Collective.

        A class that overrides it calls `super().run(…)` for the packs, or makes them itself.

        Args:
            data_iterator, num_microbatches, config: see `wrap_data_iterator`.
            dp_group, tp_group, pp_group: the process groups; None for this process alone.
            dp_cp_group: data × context parallel; None if one of the two has one rank.
            dev: the device of the packs.
        """
        place = place_in(dp_group, tp_group, pp_group, dp_cp_group, dev)
        return self.run_in(place, data_iterator, num_microbatches, config)

    def run_in(self, place: Place, data_iterator: Any, num_microbatches: int, config: object) -> Wrapped:
        """Does the work of `run` in the groups of a place."""
        return run_pipeline(self, place, data_iterator, num_microbatches, config)

    def _plan(self, lengths: Int64s) -> PackPlan:
        """Returns the plan of checked lengths."""
        message = f"`{type(self).__name__}` plans nothing: it must override `get_groups_and_subsamples`"
        raise NotImplementedError(message)

    def checked_lengths(self, lengths: ArrayLike) -> Int64s:
        """Returns lengths as int64[num_subsamples], if each alone can be planned."""
        checked = _positive(lengths)
        longest = int(checked.argmax())
        if checked[longest] > self.max_tokens:
            message = f"sub-sample {longest} has {int(checked[longest])} tokens, but a pack holds {self.max_tokens}"
            hint = "shorten it, raise `max_seqlen_per_dp_cp_rank`, or plan with `hybrid_cost_balanced`"
            raise ConfigError(message, hint=hint)
        return checked


def _positive(lengths: ArrayLike) -> Int64s:
    found = np.asarray(lengths)
    if found.ndim != 1 or (len(found) and found.dtype.kind not in "iu"):
        raise ConfigError(f"lengths of sub-samples must be integers in one dimension, got {found.dtype}{found.shape}")
    if not len(found):
        raise ConfigError("the global batch has no sub-samples")
    checked = np.ascontiguousarray(found, dtype=np.int64)
    shortest = int(checked.argmin())
    if checked[shortest] < 1:
        message = f"sub-sample {shortest} has {int(checked[shortest])} tokens"
        raise ConfigError(message, hint="leave it out of the global batch")
    return checked


# Compared by identity: any other method of these names is a user's.
_GROUPS_OF_PLAN = BasePackingScheduler.get_groups_and_subsamples
RUN = BasePackingScheduler.run
