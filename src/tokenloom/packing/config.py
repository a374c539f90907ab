"""`PackingConfig`: the settings of packing."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal

from tokenloom.errors import ConfigError
from tokenloom.numbers import checked_integer
from tokenloom.packing.cost import CostModel
from tokenloom.setting_types import check_types


@dataclass(frozen=True, slots=True, kw_only=True)
class PackingConfig:
    """Settings of packing, for runs without a Megatron configuration.

    Attributes:
        max_seqlen_per_dp_cp_rank: maximum tokens, including padding, that each rank gets from one pack.
        sequence_packing_scheduler: name of a scheduler in `scheduler_map`.
        virtual_pipeline_model_parallel_size: virtual pipeline stages per rank; None for no virtual stages.
        microbatch_group_size_per_vp_stage: the scheduler makes the number of microbatches a multiple of this number, or
            raises an error if it cannot. This setting has no effect without virtual stages.
        sequence_parallel: whether tensor-parallel ranks divide the tokens of a pack among themselves; if so, the padded
            length of each sub-sample is also a multiple of the number of tensor-parallel ranks.
        pipeline_model_parallel_layout: layer names of each stage, as `layout[pp_rank][vp_stage]`; a stage with a layer
            "mtp" needs all tensors of a pack. None if only the first and the last stage need tensors.
        min_dynamic_context_parallel_size: minimum number of ranks that share a pack; only for `default_dynamic_cp`.
        pad_packed_seq_alignment: the end of a pack is padded until each rank has a multiple of this number of tokens;
            "max" pads to `max_seqlen_per_dp_cp_rank`, so that all packs have the same shape; None adds no such padding.
        thd_tail_padding_policy: how to pad the end of a pack: "append_dummy_seq" (or None) appends a dummy sequence,
            "extend_last" extends the last sequence.
        thd_max_packed_sequences: maximum sequences of a pack, including the dummy sequence; None for no limit. If
            `pad_packed_seq_alignment` is set, arrays of boundaries have `thd_max_packed_sequences + 1` elements.
        cp_partition_mode: which tokens a context-parallel rank gets: "zigzag" (two chunks of each sequence) or
            "contiguous" (one range of the pack).
        packing_cost_model: cost of sub-samples, such as `PolynomialCost(linear=24576, quadratic=1)` for a hidden size
            of 2,048; None for attention work only. "dp_balanced" and "default_dynamic_cp" ignore this setting.
    """

    max_seqlen_per_dp_cp_rank: int
    sequence_packing_scheduler: str = "dp_balanced"
    virtual_pipeline_model_parallel_size: int | None = None
    microbatch_group_size_per_vp_stage: int | None = None
    sequence_parallel: bool = False
    pipeline_model_parallel_layout: Any = None
    min_dynamic_context_parallel_size: int = 1
    pad_packed_seq_alignment: int | str | None = None
    thd_tail_padding_policy: Literal["append_dummy_seq", "extend_last"] | None = None
    thd_max_packed_sequences: int | None = None
    cp_partition_mode: Literal["zigzag", "contiguous"] = "zigzag"
    packing_cost_model: CostModel | None = None

    def __post_init__(self) -> None:
        check_types(self)
        for name in (
            "max_seqlen_per_dp_cp_rank",
            "virtual_pipeline_model_parallel_size",
            "microbatch_group_size_per_vp_stage",
            "min_dynamic_context_parallel_size",
            "thd_max_packed_sequences",
            "pad_packed_seq_alignment",
        ):
            if (value := getattr(self, name)) not in (None, "max"):
                object.__setattr__(self, name, checked_integer(name, value, at_least=1))
        alignment, limit = self.pad_packed_seq_alignment, self.max_seqlen_per_dp_cp_rank
        if isinstance(alignment, int) and alignment > limit:
            raise ConfigError(f"`pad_packed_seq_alignment` {alignment} exceeds `max_seqlen_per_dp_cp_rank` {limit}")
        model = self.packing_cost_model
        if model is not None and not callable(getattr(model, "cost", None)):
            message = f"`packing_cost_model`: must be a cost model, got {model!r}"
            raise ConfigError(message, hint="use `tokenloom.PolynomialCost(linear=24576, quadratic=1)`, for example")

    @classmethod
    def of(cls, config: object, **defaults: Any) -> PackingConfig:
        """Reads the settings from the attributes of an object, such as Megatron's configuration.

        `defaults` replace attributes that are missing or None. If the object's `cuda_graph_impl` selects CUDA
        graphs, any `pad_packed_seq_alignment` becomes "max": CUDA graphs need packs of the same shape.
        """
        if isinstance(config, cls):
            return config
        found = {field.name: getattr(config, field.name, None) for field in fields(cls)}
        given = defaults | {name: value for name, value in found.items() if value is not None}
        if "pad_packed_seq_alignment" in given and getattr(config, "cuda_graph_impl", None) not in (None, "none"):
            given["pad_packed_seq_alignment"] = "max"
        return cls(**{"max_seqlen_per_dp_cp_rank": None, **given})

    @property
    def has_virtual_stages(self) -> bool:
        """Whether ranks have several virtual pipeline stages, each with its own iterator."""
        return self.virtual_pipeline_model_parallel_size is not None

    @property
    def max_num_seqs(self) -> int | None:
        """Maximum sub-samples of a pack, not counting the dummy sequence; None for no limit."""
        most = self.thd_max_packed_sequences
        if most is None or self.pad_packed_seq_alignment is None or self.thd_tail_padding_policy == "extend_last":
            return most
        if most == 1:
            raise ConfigError("`thd_max_packed_sequences`: must be 2 or more, including the dummy sequence, got 1")
        return most - 1

    def stages_with_tokens(self, *, pp_rank: int, pp_size: int) -> list[bool]:
        """Returns, for each virtual stage of a rank, whether the stage needs tokens: first, last, "mtp" stages do."""
        stages = self.virtual_pipeline_model_parallel_size or 1
        needs = [False] * stages
        needs[0] |= pp_rank == 0
        needs[-1] |= pp_rank == pp_size - 1
        if (layout := self.pipeline_model_parallel_layout) is not None:
            rows = getattr(layout, "layout", layout)
            for stage in range(stages):
                needs[stage] |= any(getattr(layer, "name", layer) == "mtp" for layer in rows[pp_rank][stage])
        return needs
