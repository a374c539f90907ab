"""`tokenloom pack-report`: fill, padding and imbalance of packs for a distribution of lengths."""

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
_PLANS = Written(metavar="NAME", choices=_SCHEDULERS, help=f"ways to plan packs: {', '.join(_SCHEDULERS)}")


@dataclass(frozen=True, kw_only=True)
class Options:
    """Compare plans of one global batch: without packing, in order as the reference packs, and balanced by cost.
    Lengths come from an index or a file; empty sequences are left out.

    Attributes:
        prefix: path of a pair without .bin or .idx.
        lengths: a text file with a length per line, or a .npy file.
        max_seqlen_per_dp_cp_rank: most tokens that a rank holds in a microbatch.
        dp_size: number of data-parallel groups.
        cp_size: ranks of each group.
        microbatch_group_size_per_vp_stage: make the number of microbatches a multiple of N.
        global_batch_size: number of sequences, drawn without replacement (default all).
        seed: seed of what is drawn (default 0).
        cut: cut sequences that are too long, instead of refusing them.
        json: print one JSON object: num_subsamples, num_tokens, length_percentiles, num_ranks, max_tokens,
            least_microbatches, least_imbalance, least_relative_time, num_cut_sequences, num_cut_tokens, and
            in rows what the table has, with imbalance_percentiles of microbatches.
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
            refuse_usage("name a PREFIX or --lengths, one of both")


def run(options: Options) -> int:
    """Prints the report."""
    given = _batch(_lengths(options), options)
    lengths = np.minimum(given, options.max_seqlen_per_dp_cp_rank * options.cp_size) if options.cut else given
    cut = {"num_cut_sequences": int((given > lengths).sum()), "num_cut_tokens": int((given - lengths).sum())}
    report = pack_report(**arguments_of(options, pack_report, lengths=lengths))
    if options.json:
        print_json(report.as_json() | cut)
    else:
        if options.cut:
            print(
                f"cut {cut['num_cut_sequences']:,} of {len(given):,} sequences, those of more than "
                f"{report.max_tokens:,} tokens: {cut['num_cut_tokens']:,} of {int(given.sum()):,} tokens are left out"
            )
        print_lines(facts_lines("packs", report.facts()))
    return 0


def _lengths(options: Options) -> NDArray[np.int64]:
    """Returns the lengths of all sequences that have tokens."""
    if options.prefix is not None:
        pair = IndexedDataset(options.prefix)
        if pair.index.has_modes:
            message = f"`{pair.path_prefix}` has text and images, whose lengths are no tokens"
            raise ConfigError(message, hint="write the lengths of samples into a file, for --lengths")
        check_index(pair)
        found = np.asarray(pair.sequence_lengths)
    else:
        assert options.lengths is not None  # looked at before
        found = _read(Path(options.lengths))
    lengths: NDArray[np.int64] = found[found != 0].astype(np.int64)
    return lengths


def _read(path: Path) -> NDArray[Any]:
    try:
        return np.load(path, mmap_mode="r") if path.suffix == ".npy" else np.array(path.read_text().split(), np.int64)
    except (OSError, ValueError, EOFError, OverflowError) as error:
        raise InputError(f"`{path}` must have one length per line: {error}") from error


def _batch(lengths: NDArray[np.int64], options: Options) -> NDArray[np.int64]:
    """Returns the lengths of one global batch."""
    size = options.global_batch_size
    if size is not None and size < len(lengths):
        lengths = np.random.default_rng(options.seed).permutation(lengths)[:size]
    elif size is not None and size > len(lengths):
        refuse(f"--global-batch-size must be at most {len(lengths)}, the sequences with tokens, got {size}")
    return lengths
