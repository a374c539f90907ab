"""What a run chooses about packing."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from tokenloom.errors import ConfigError
from tokenloom.numbers import checked_integer
from tokenloom.packing.cost import CostModel
from tokenloom.setting_types import check_types

ZIGZAG = "zigzag"
CONTIGUOUS = "contiguous"
APPEND_DUMMY_SEQ = "append_dummy_seq"
EXTEND_LAST = "extend_last"


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
    cp_partition_mode: str = ZIGZAG
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
            message = f"expected pad_packed_seq_alignment up to {limit}, found {alignment}"
            raise ConfigError(message, hint="a rank holds at most `max_seqlen_per_dp_cp_rank` tokens")
        for name, known in (
            ("thd_tail_padding_policy", (APPEND_DUMMY_SEQ, EXTEND_LAST)),
            ("cp_partition_mode", (ZIGZAG, CONTIGUOUS)),
        ):
            if (found := getattr(self, name)) not in (*known, None):
                message = f"expected {known[0]!r} or {known[1]!r} as {name}, found {found!r}"
                raise ConfigError(message)
        model = self.packing_cost_model
        if model is not None and not callable(getattr(model, "cost", None)):
            message = f"expected a cost model as packing_cost_model, found {model!r}"
            raise ConfigError(message, hint="such as `tokenloom.PolynomialCost(linear=24576, quadratic=1)`")

    @classmethod
    def of(cls, config: object, **defaults: Any) -> PackingConfig:
        """Returns the settings of a configuration that has some of them as attributes, such as Megatron's.

        What is missing or None there is as in `defaults`, else as by default. Packs for CUDA graphs, which
        `cuda_graph_impl` of Megatron asks for, are filled up to the most tokens.
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
        """Whether ranks have several stages of the pipeline, or a list of one."""
        return self.virtual_pipeline_model_parallel_size is not None

    @property
    def max_num_seqs(self) -> int | None:
        """The most sub-samples of a pack: its sequences, less one where packs get a dummy sequence; None for any."""
        most = self.thd_max_packed_sequences
        if most is None or self.pad_packed_seq_alignment is None or self.thd_tail_padding_policy == EXTEND_LAST:
            return most
        if most == 1:
            message = "expected thd_max_packed_sequences of at least 2, found 1"
            raise ConfigError(message, hint="it includes that dummy sequence which fills a pack up")
        return most - 1

    def stages_with_tokens(self, *, pp_rank: int, pp_size: int) -> list[bool]:
        """Returns, by virtual stage of a rank, whether it needs the tokens of packs: first, last, those with MTP."""
        stages = self.virtual_pipeline_model_parallel_size or 1
        needs = [False] * stages
        needs[0] |= pp_rank == 0
        needs[-1] |= pp_rank == pp_size - 1
        if (layout := self.pipeline_model_parallel_layout) is not None:
            rows = getattr(layout, "layout", layout)
            for stage in range(stages):
                needs[stage] |= any(getattr(layer, "name", layer) == "mtp" for layer in rows[pp_rank][stage])
        return needs
