"""What all packing schedulers share: their settings, checks, and the two forms in which they give a plan."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from tokenloom.errors import ConfigError
from tokenloom.numbers import checked_integer
from tokenloom.overrides import Shortcut
from tokenloom.packing.cost import CostModel, PolynomialCost
from tokenloom.packing.plan import Int64s, PackPlan

SAMPLE_KEYS = ("tokens", "labels", "loss_mask", "position_ids", "original_seq_len", "padded_seq_len")
"""What a sub-sample must hold to be exchanged and packed."""

_PLAN = Shortcut("_plan", skips=("get_groups_and_subsamples", "run"), asked_by_hooks=True)

MAX_TOKENS = 2**61
"""Most tokens of a global batch, and of all ranks together; sums of two still fit int64."""


class BasePackingScheduler(ABC):
    """Plans which sub-samples of a global batch each dp × cp rank works on in each microbatch.

    A plan follows from the settings and the lengths alone, in exact integers, so every rank can make it by itself. Each
    sub-sample is in it once; all ranks have the same number of microbatches, and none is empty.

    Args:
        max_seqlen_per_dp_cp_rank: tokens that a rank can hold in one microbatch.
        cp_size: ranks of a context-parallel group; a pack may have `max_seqlen_per_dp_cp_rank * cp_size` tokens.
        dp_size: context-parallel groups.
        microbatch_group_size_per_vp_stage: what the number of microbatches must be a multiple of, under virtual
            pipeline parallelism.
        cost_model: what sub-samples cost; attention work, by default.

    Raises:
        ConfigError: a setting is not a positive integer, or together they exceed 2**61 tokens.
    """

    def __init__(
        self,
        max_seqlen_per_dp_cp_rank: int,
        cp_size: int,
        dp_size: int,
        microbatch_group_size_per_vp_stage: int | None = None,
        *,
        cost_model: CostModel | None = None,
    ) -> None:
        if (hook := _PLAN.skipped(self)) is not None:
            message = f"`{hook}` overrides what packs are not planned by"
            raise ConfigError(message, hint="override `_plan`, from which both forms of a plan follow")
        self.max_seqlen_per_dp_cp_rank = checked_integer(
            "max_seqlen_per_dp_cp_rank", max_seqlen_per_dp_cp_rank, at_least=1
        )
        self.cp_size = checked_integer("cp_size", cp_size, at_least=1)
        self.dp_size = checked_integer("dp_size", dp_size, at_least=1)
        self.microbatch_group_size_per_vp_stage = microbatch_group_size_per_vp_stage
        self.cost_model: CostModel = PolynomialCost() if cost_model is None else cost_model
        self.microbatch_multiple = 1
        if microbatch_group_size_per_vp_stage is not None:
            self.microbatch_multiple = checked_integer(
                "microbatch_group_size_per_vp_stage", microbatch_group_size_per_vp_stage, at_least=1
            )
        if self.max_seqlen_per_dp_cp_rank * self.num_ranks * self.microbatch_multiple > MAX_TOKENS:
            message = f"{self.num_ranks} ranks of {self.max_seqlen_per_dp_cp_rank} tokens exceed 2**61 tokens"
            raise ConfigError(message)

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
        return list(SAMPLE_KEYS)

    def plan(self, lengths: ArrayLike) -> PackPlan:
        """Returns the plan of a global batch.

        Args:
            lengths: int64[num_subsamples], tokens that each takes up in a pack: padded lengths, if they are padded.

        Raises:
            ConfigError: there is none; the message names the sub-sample or the numbers that rule it out.
        """
        return self._plan(self.checked_lengths(lengths))

    def get_groups_and_subsamples(self, sample_id_seqlens: Sequence[tuple[int, int]]) -> list[list[list[int]]]:
        """Returns the plan in the reference's form: by microbatch and rank, the ids of the sub-samples.

        Args:
            sample_id_seqlens: (id, length) pairs.
        """
        ids = [sample_id for sample_id, _ in sample_id_seqlens]
        plan = self.plan([length for _, length in sample_id_seqlens])
        return [[[ids[number] for number in numbers] for numbers in ranks] for ranks in plan.assignments]

    @abstractmethod
    def _plan(self, lengths: Int64s) -> PackPlan:
        """Returns the plan of checked lengths."""

    def checked_lengths(self, lengths: ArrayLike) -> Int64s:
        """Returns lengths as int64[num_subsamples], if each alone can be planned.

        Raises:
            ConfigError: one cannot, or they are no lengths.
        """
        found = np.asarray(lengths)
        if found.ndim != 1 or (len(found) and found.dtype.kind not in "iu"):
            message = (
                f"expected the lengths of sub-samples as integers in one dimension, found {found.dtype}{found.shape}"
            )
            raise ConfigError(message)
        if not len(found):
            message = "expected at least one sub-sample in the global batch, found none"
            raise ConfigError(message)
        shortest, longest = int(found.argmin()), int(found.argmax())
        if found[shortest] < 1:
            message = f"sub-sample {shortest} has {int(found[shortest])} tokens, expected at least 1"
            raise ConfigError(message, hint="leave it out of the global batch")
        if found[longest] > self.max_tokens:
            message = f"sub-sample {longest} has {int(found[longest])} tokens, {self._limit()}"
            hint = "shorten it, raise `max_seqlen_per_dp_cp_rank`, or plan with `hybrid_cost_balanced`"
            raise ConfigError(message, hint=hint)
        checked = np.ascontiguousarray(found, dtype=np.int64)
        # Halves are added up apart, so that the sum cannot overflow.
        if (int((checked >> 31).sum()) << 31) + int((checked & (2**31 - 1)).sum()) > MAX_TOKENS:
            message = f"{len(checked)} sub-samples have more than 2**61 tokens"
            raise ConfigError(message)
        return checked

    def _limit(self) -> str:
        """Returns the words that say how long a sub-sample may be."""
        ranks = f"{self.cp_size} ranks of {self.max_seqlen_per_dp_cp_rank}"
        return f"but a pack holds {self.max_tokens} ({ranks})"
