"""`tokenloom pack-report`: fill, padding and load imbalance of packing plans of the sequences of a pair."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

import numpy as np

from tokenloom.cli.options import JsonOption, Written, arguments_of, refuse
from tokenloom.cli.output import Answer, facts_lines
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.packing.cost import PolynomialCost
from tokenloom.packing.schedulers import scheduler_map
from tokenloom.setting_types import Count, Number
from tokenloom_check.packing import pack_report

_SCHEDULERS = tuple(sorted(scheduler_map))
_PLANS = Written(metavar="NAME", choices=_SCHEDULERS, help=f"schedulers to compare: {', '.join(_SCHEDULERS)}")


@dataclass(frozen=True, kw_only=True)
class Options(JsonOption):
    """Compare plans of one global batch: without packing, packed in input order as in Megatron, and balanced by cost.
    Empty sequences are ignored.

    Attributes:
        prefix: path of a pair without .bin or .idx.
        max_seqlen_per_dp_cp_rank: maximum tokens per rank in a microbatch.
        dp_size: number of data-parallel groups.
        cp_size: ranks in each group.
        microbatch_group_size_per_vp_stage: make the number of microbatches a multiple of N.
        global_batch_size: number of sequences to draw without replacement (default all).
        seed: seed for drawing sequences (default 0).
        json: print one JSON object: num_subsamples, num_tokens, length_percentiles, num_ranks, max_tokens,
            least_microbatches, least_imbalance, least_relative_time, and rows with the columns of the table and
            imbalance_percentiles of microbatches.
    """

    prefix: Annotated[str, Written(is_positional=True)]
    max_seqlen_per_dp_cp_rank: Count
    dp_size: Count
    cp_size: Count = 1
    microbatch_group_size_per_vp_stage: Count | None = None
    global_batch_size: Count | None = None
    seed: Number = 0
    schedulers: Annotated[tuple[str, ...], _PLANS] = ("dp_balanced", "cost_balanced")
    cost_model: Annotated[PolynomialCost, Written(without=("communication",))] = field(default_factory=PolynomialCost)


def run(options: Options) -> Answer:
    pair, size = IndexedDataset(options.prefix), options.global_batch_size
    if pair.index.has_modes:
        refuse(f"`{pair.path_prefix}` has images, whose lengths are not in tokens")
    lengths = pair.sequence_lengths[pair.sequence_lengths != 0]
    if size is not None and size > len(lengths):
        refuse(f"--global-batch-size must be at most {len(lengths)}, the number of non-empty sequences, got {size}")
    if size is not None and size < len(lengths):
        lengths = np.random.default_rng(options.seed).permutation(lengths)[:size]
    report = pack_report(**arguments_of(options, pack_report, lengths=lengths))
    return Answer(report.as_json(), facts_lines("packs", report.facts()))
