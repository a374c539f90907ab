"""What all packing schedulers share: their settings, checks, and the two forms in which they give a plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tokenloom.errors import ConfigError
from tokenloom.numbers import checked_integer
from tokenloom.packing.cost import CostModel, PolynomialCost
from tokenloom.packing.groups import place_in
from tokenloom.packing.pipeline import run_pipeline
from tokenloom.packing.plan import Int64s, PackPlan, plan_from_groups


class BasePackingScheduler:
    """Plans which sub-samples of a global batch each dp × cp rank works on in each microbatch.

    A plan follows from the settings and the lengths alone, in exact integers, so every rank can make it by itself. Each
    sub-sample is in it once; all ranks have the same number of microbatches, and none is empty.

    A scheduler of one's own overrides `get_groups_and_subsamples`, whose lists are what the ranks get, and takes a
    place in `scheduler_map`. `run` may be overridden, too, and then does everything. A class that chooses anew for each
    pack how many ranks share it, not `cp_size`, sets `is_dynamic_cp`.

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
        max_seqlen_per_dp_cp_rank: tokens that a rank can hold in one microbatch.
        cp_size: ranks of a context-parallel group; a pack may have `max_seqlen_per_dp_cp_rank * cp_size` tokens.
        dp_size: context-parallel groups.
        microbatch_group_size_per_vp_stage: what the number of microbatches must be a multiple of, under virtual
            pipeline parallelism.
        max_num_seqs: the most sub-samples of a pack; None for no limit.
        cost_model: what sub-samples cost; attention work, by default.
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
        """Returns what a sub-sample must hold to be exchanged and packed."""
        return ["tokens", "labels", "loss_mask", "position_ids", "original_seq_len", "padded_seq_len"]

    def plan(self, lengths: ArrayLike) -> PackPlan:
        """Returns the plan of a global batch.

        Args:
            lengths: int64[num_subsamples], tokens that each takes up in a pack: padded lengths, if they are padded.

        Raises:
            ConfigError: there is none; the message names the sub-sample or the numbers that rule it out.
        """
        if getattr(self.get_groups_and_subsamples, "__func__", None) is _GROUPS_OF_PLAN:
            return self._plan(self.checked_lengths(lengths))
        counted: list[int] = _positive(lengths).tolist()
        groups = self.get_groups_and_subsamples(list(enumerate(counted)))
        cp_size = None if self.is_dynamic_cp else self.cp_size
        plan = plan_from_groups(groups, num_subsamples=len(counted), num_ranks=self.num_ranks, cp_size=cp_size)
        if plan.num_microbatches % self.microbatch_multiple:
            message = f"expected a multiple of {self.microbatch_multiple} microbatches from `{type(self).__name__}`"
            message += f", found {plan.num_microbatches}"
            raise ConfigError(message, hint="virtual pipeline stages work on so many microbatches in a row")
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
    ) -> tuple[Any, int, float, float]:
        """Returns what `wrap_data_iterator` returns, of a global batch that this scheduler plans. Collective.

        A class that overrides it calls `super().run(…)` for the packs, or makes them itself.

        Args:
            data_iterator, num_microbatches, config: as `wrap_data_iterator` takes them.
            dp_group, tp_group, pp_group: the process groups; None is this process alone.
            dp_cp_group: data × context parallel; None where one of the two is alone.
            dev: the device of the packs.
        """
        place = place_in(dp_group, tp_group, pp_group, dp_cp_group, dev)
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
        message = f"expected the lengths of sub-samples as integers in one dimension, found {found.dtype}{found.shape}"
        raise ConfigError(message)
    if not len(found):
        message = "expected at least one sub-sample in the global batch, found none"
        raise ConfigError(message)
    checked = np.ascontiguousarray(found, dtype=np.int64)
    shortest = int(checked.argmin())
    if checked[shortest] < 1:
        message = f"sub-sample {shortest} has {int(checked[shortest])} tokens, expected at least 1"
        raise ConfigError(message, hint="leave it out of the global batch")
    return checked


_GROUPS_OF_PLAN = BasePackingScheduler.get_groups_and_subsamples
"""What asks `_plan`; any other method of that name is asked itself."""

RUN_PIPELINE = BasePackingScheduler.run
"""What is the pipeline; any other method of that name does all of it itself."""
