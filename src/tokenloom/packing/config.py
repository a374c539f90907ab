"""What a run chooses about packing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from tokenloom.errors import ConfigError
from tokenloom.numbers import checked_integer
from tokenloom.packing.cost import CostModel
from tokenloom.packing.static_shapes import StaticShape, partition_mode
from tokenloom.setting_types import check_types


class PackingSettings(Protocol):
    """What is asked of a configuration; `PackingConfig` has it, and so has Megatron's `TransformerConfig`.

    `sequence_parallel`, `pipeline_model_parallel_layout`, `packing_cost_model`, and the settings of
    `default_dynamic_cp`, of static shapes and of context parallelism may be missing: then they are as by default in
    `PackingConfig`.
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
        min_dynamic_context_parallel_size: the fewest ranks that share a pack, with `default_dynamic_cp`.
        pad_packed_seq_alignment: what the tokens that a rank holds of a pack are filled up to: a multiple, or "max" for
            `max_seqlen_per_dp_cp_rank`, so that all packs have one shape; None leaves them as long as they are.
        thd_tail_padding_policy: what is filled up with: "append_dummy_seq", one more sequence, or "extend_last",
            padding of the last one. None is the former.
        thd_max_packed_sequences: the most sequences of a pack, that one more included; boundaries are filled up to one
            more than this. None leaves them as many as they are.
        cp_partition_mode: what a context-parallel rank holds: "zigzag", two chunks of each sequence, or "contiguous", a
            piece of the whole pack.
        packing_cost_model: what sub-samples cost, such as `PolynomialCost(linear=24576, quadratic=1)` for a hidden
            size of 2,048; attention work alone, by default. The schedulers of the reference pay no heed to it.
    """

    max_seqlen_per_dp_cp_rank: int
    sequence_packing_scheduler: str = "dp_balanced"
    virtual_pipeline_model_parallel_size: int | None = None
    microbatch_group_size_per_vp_stage: int | None = None
    sequence_parallel: bool = False
    pipeline_model_parallel_layout: Any = None
    min_dynamic_context_parallel_size: int = 1
    pad_packed_seq_alignment: int | str | None = None
    thd_tail_padding_policy: str | None = None
    thd_max_packed_sequences: int | None = None
    cp_partition_mode: str = "zigzag"
    packing_cost_model: CostModel | None = None

    def __post_init__(self) -> None:
        check_types(self)
        for name in (
            "max_seqlen_per_dp_cp_rank",
            "virtual_pipeline_model_parallel_size",
            "microbatch_group_size_per_vp_stage",
            "min_dynamic_context_parallel_size",
            "thd_max_packed_sequences",
        ):
            value = getattr(self, name)
            if value is not None:
                checked_integer(name, value, at_least=1)
        StaticShape.of(self)
        partition_mode(self)
        cost_model_of(self)


def cost_model_of(config: object) -> CostModel | None:
    """Returns what sub-samples cost, where the configuration says so."""
    model: CostModel | None = getattr(config, "packing_cost_model", None)
    if model is not None and not callable(getattr(model, "cost", None)):
        message = f"expected a cost model as packing_cost_model, found {model!r}"
        raise ConfigError(message, hint="such as `tokenloom.PolynomialCost(linear=24576, quadratic=1)`")
    return model


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
