"""`tokenloom pack-report`: fill, padding and load imbalance of packing plans, for a distribution of lengths."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.cli.options import Written, arguments_of, refuse, refuse_usage
from tokenloom.cli.output import facts_lines, print_json, print_lines
from tokenloom.errors import ConfigError, InputError
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.verify import check_index
from tokenloom.packing.cost import PolynomialCost
from tokenloom.packing.schedulers import scheduler_map
from tokenloom.setting_types import Count, Number
from tokenloom_check.packing import pack_report

_SCHEDULERS = tuple(sorted(scheduler_map))
_PLANS = Written(metavar="NAME", choices=_SCHEDULERS, help=f"schedulers to compare: {', '.join(_SCHEDULERS)}")


@dataclass(frozen=True, kw_only=True)
class Options:
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
        cut: truncate sequences that are longer than a pack, instead of failing.
        json: print one JSON object: num_subsamples, num_tokens, length_percentiles, num_ranks, max_tokens,
            least_microbatches, least_imbalance, least_relative_time, num_cut_sequences, num_cut_tokens, and rows with
            the columns of the table and imbalance_percentiles of microbatches.
    """

    prefix: Annotated[str | None, Written(is_positional=True)] = None
    lengths: Annotated[str | None, Written(metavar="FILE")] = None
    max_seqlen_per_dp_cp_rank: Count
    dp_size: Count
    cp_size: Count = 1
    microbatch_group_size_per_vp_stage: Count | None = None
    global_batch_size: Count | None = None
    seed: Number = 0
    cut: bool = False
    schedulers: Annotated[tuple[str, ...], _PLANS] = ("dp_balanced", "cost_balanced")
    cost_model: Annotated[PolynomialCost, Written(without=("communication",))] = field(default_factory=PolynomialCost)
    json: bool = False

    def __post_init__(self) -> None:
        if (self.prefix is None) == (self.lengths is None):
            refuse_usage("give either PREFIX or --lengths")


def run(options: Options) -> int:
    given = _batch(_lengths(options), options)
    lengths = np.minimum(given, options.max_seqlen_per_dp_cp_rank * options.cp_size) if options.cut else given
    cut = {"num_cut_sequences": int((given > lengths).sum()), "num_cut_tokens": int((given - lengths).sum())}
    report = pack_report(**arguments_of(options, pack_report, lengths=lengths))
    if options.json:
        print_json(report.as_json() | cut)
    else:
        if options.cut:
            print(
                f"truncated {cut['num_cut_sequences']:,} of {len(given):,} sequences to {report.max_tokens:,} tokens: "
                f"{cut['num_cut_tokens']:,} of {int(given.sum()):,} tokens dropped"
            )
        print_lines(facts_lines("packs", report.facts()))
    return 0


def _lengths(options: Options) -> NDArray[np.int64]:
    if options.prefix is not None:
        pair = IndexedDataset(options.prefix)
        if pair.index.has_modes:
            message = f"`{pair.path_prefix}` has images, whose lengths are not in tokens"
            raise ConfigError(message, hint="write the lengths of samples to a file and pass it with --lengths")
        check_index(pair)
        found = np.asarray(pair.sequence_lengths)
    else:
        assert options.lengths is not None  # validated by Options
        found = _read(Path(options.lengths))
    lengths: NDArray[np.int64] = found[found != 0].astype(np.int64)
    return lengths


def _read(path: Path) -> NDArray[Any]:
    try:
        return np.load(path, mmap_mode="r") if path.suffix == ".npy" else np.array(path.read_text().split(), np.int64)
    except (OSError, ValueError, EOFError, OverflowError) as error:
        raise InputError(f"`{path}`: expected one length per line: {error}") from error


def _batch(lengths: NDArray[np.int64], options: Options) -> NDArray[np.int64]:
    size = options.global_batch_size
    if size is not None and size < len(lengths):
        lengths = np.random.default_rng(options.seed).permutation(lengths)[:size]
    elif size is not None and size > len(lengths):
        refuse(f"--global-batch-size must be at most {len(lengths)}, the number of non-empty sequences, got {size}")
    return lengths
