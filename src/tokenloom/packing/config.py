"""What a run chooses about packing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from tokenloom.numbers import checked_integer
from tokenloom.setting_types import check_types


class PackingSettings(Protocol):
    """What is asked of a configuration; `PackingConfig` has it, and so has Megatron's `TransformerConfig`.

    `sequence_parallel` and `pipeline_model_parallel_layout` may be missing: then False and None.
    """

    @property
    def max_seqlen_per_dp_cp_rank(self) -> int:
        """The most tokens of a pack that one rank holds."""

    @property
    def sequence_packing_scheduler(self) -> str:
        """A name in `scheduler_map`."""

    @property
    def virtual_pipeline_model_parallel_size(self) -> int | None:
        """Virtual stages per rank; None without."""

    @property
    def microbatch_group_size_per_vp_stage(self) -> int | None:
        """Microbatches in a row on one virtual stage: their number becomes a multiple of this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackingConfig:
    """Settings of packing, for runs that have no configuration of Megatron.

    Attributes:
        max_seqlen_per_dp_cp_rank: the most tokens of a pack that one rank holds, padding included.
        sequence_packing_scheduler: a name in `scheduler_map`.
        virtual_pipeline_model_parallel_size: virtual stages per rank; None without.
        microbatch_group_size_per_vp_stage: what the number of microbatches is a multiple of, with virtual stages.
        sequence_parallel: whether tensor-parallel ranks share the tokens of a pack; padded lengths then are
            multiples of their number too.
        pipeline_model_parallel_layout: the names of the layers of each stage, `layout[pp_rank][vp_stage]`; a stage with
            "mtp" among them needs whole packs. None: only the first and the last stage do.

    Raises:
        ConfigError: a number is not positive.
    """

    max_seqlen_per_dp_cp_rank: int
    sequence_packing_scheduler: str = "dp_balanced"
    virtual_pipeline_model_parallel_size: int | None = None
    microbatch_group_size_per_vp_stage: int | None = None
    sequence_parallel: bool = False
    pipeline_model_parallel_layout: Any = None

    def __post_init__(self) -> None:
        check_types(self)
        for name in (
            "max_seqlen_per_dp_cp_rank",
            "virtual_pipeline_model_parallel_size",
            "microbatch_group_size_per_vp_stage",
        ):
            value = getattr(self, name)
            if value is not None:
                checked_integer(name, value, at_least=1)


def stages_with_tokens(config: PackingSettings, *, pp_rank: int, pp_size: int) -> list[bool]:
    """Returns, by virtual stage of a rank, whether it needs the tokens of packs: first, last, and those with MTP."""
    stages = config.virtual_pipeline_model_parallel_size or 1
    needs = [False] * stages
    needs[0] |= pp_rank == 0
    needs[-1] |= pp_rank == pp_size - 1
    layout = getattr(config, "pipeline_model_parallel_layout", None)
    if layout is not None:
        rows = getattr(layout, "layout", layout)
        for stage in range(stages):
            needs[stage] |= any(getattr(layer, "name", layer) == "mtp" for layer in rows[pp_rank][stage])
    return needs
