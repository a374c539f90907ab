"""`tokenloom pack-report`: fill, padding and load imbalance of packing plans, for a distribution of lengths."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from tokenloom.cli.options import JsonOption, Written, arguments_of, refuse, refuse_usage
from tokenloom.cli.output import Answer, facts_lines
from tokenloom.errors import InputError
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
    Lengths come from a pair or a file; empty sequences are ignored.

    Attributes:
        prefix: path of a pair without .bin or .idx.
        lengths: a text file with one length per line, or a .npy file.
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

    prefix: Annotated[str | None, Written(is_positional=True)] = None
    lengths: Annotated[str | None, Written(metavar="FILE")] = None
    max_seqlen_per_dp_cp_rank: Count
    dp_size: Count
    cp_size: Count = 1
    microbatch_group_size_per_vp_stage: Count | None = None
    global_batch_size: Count | None = None
    seed: Number = 0
    schedulers: Annotated[tuple[str, ...], _PLANS] = ("dp_balanced", "cost_balanced")
    cost_model: Annotated[PolynomialCost, Written(without=("communication",))] = field(default_factory=PolynomialCost)

    def __post_init__(self) -> None:
        if (self.prefix is None) == (self.lengths is None):
            refuse_usage("give either PREFIX or --lengths")


def run(options: Options) -> Answer:
    lengths = _lengths(options)
    lengths, size = lengths[lengths != 0], options.global_batch_size
    if size is not None and size > len(lengths):
        refuse(f"--global-batch-size must be at most {len(lengths)}, the number of non-empty sequences, got {size}")
    if size is not None and size < len(lengths):
        lengths = np.random.default_rng(options.seed).permutation(lengths)[:size]
    report = pack_report(**arguments_of(options, pack_report, lengths=lengths))
    return Answer(report.as_json(), facts_lines("packs", report.facts()))


def _lengths(options: Options) -> NDArray[np.int64]:
    if options.prefix is not None:
        pair = IndexedDataset(options.prefix)
        if pair.index.has_modes:
            refuse(f"`{pair.path_prefix}` has images, whose lengths are not in tokens")
        return np.asarray(pair.sequence_lengths, dtype=np.int64)
    path = Path(options.lengths or "")
    try:
        return np.array(np.load(path) if path.suffix == ".npy" else path.read_text().split(), dtype=np.int64)
    except (OSError, ValueError, OverflowError) as error:
        raise InputError(f"`{path}`: expected one length per line: {error}") from error
