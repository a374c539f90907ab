"""`tokenloom pack-report`: what packing does for a distribution of lengths."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.cli import console
from tokenloom.cli.json_output import add_json, print_json
from tokenloom.cli.values import count, number, whole_number
from tokenloom.errors import ConfigError, InputError
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.verify import check_index
from tokenloom.packing.cost import PolynomialCost
from tokenloom.packing.report import PackReport, pack_report
from tokenloom.packing.schedulers import scheduler_map

DISTRIBUTIONS = ("lognormal", "bimodal")


def add_parser(commands: Any) -> None:
    """Declares the command."""
    parser = commands.add_parser(
        "pack-report",
        description="What packing does for one global batch: without it, in order as the reference packs, and balanced "
        "by cost. Lengths come from an index, a file, or a distribution; empty sequences are left out.",
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("prefix", nargs="?", help="path of a pair without .bin or .idx")
    source.add_argument("--lengths", metavar="FILE", help="a text file with a length per line, or a .npy file")
    source.add_argument("--distribution", choices=DISTRIBUTIONS, help="draw lengths from a distribution")
    parser.add_argument(
        "--max-tokens", type=count, required=True, metavar="C", help="most tokens that a rank holds in a microbatch"
    )
    parser.add_argument("--dp", type=count, required=True, metavar="N", help="number of data-parallel groups")
    parser.add_argument("--cp", type=count, default=1, metavar="N", help="ranks of each group (default 1)")
    parser.add_argument("--vp-group", type=count, metavar="N", help="make the number of microbatches a multiple of N")
    parser.add_argument(
        "--global-batch-size",
        type=count,
        metavar="N",
        help="number of sequences, drawn without replacement (default all)",
    )
    parser.add_argument("--seed", type=whole_number, default=0, help="seed of what is drawn (default 0)")
    parser.add_argument("--cut", action="store_true", help="cut sequences that are too long, instead of refusing them")
    parser.add_argument(
        "--scheduler",
        action="append",
        choices=sorted(scheduler_map),
        help="a way to plan packs; may be repeated (default dp_balanced and cost_balanced)",
    )
    parser.add_argument("--linear", type=number, default=0.0, help="cost per token (default 0)")
    parser.add_argument("--quadratic", type=number, default=1.0, help="cost per pair of tokens (default 1)")
    add_json(
        parser,
        "num_subsamples, num_tokens, length_percentiles, num_ranks, max_tokens, least_microbatches, least_imbalance, "
        "least_relative_time, num_forced, num_cut_sequences, num_cut_tokens, and in rows what the table has, with "
        "imbalance_percentiles of microbatches",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Prints the report."""
    given = _batch(_lengths(options), options)
    lengths = np.minimum(given, options.max_tokens * options.cp) if options.cut else given
    cut = {"num_cut_sequences": int((given > lengths).sum()), "num_cut_tokens": int((given - lengths).sum())}
    report = pack_report(
        lengths,
        max_seqlen_per_dp_cp_rank=options.max_tokens,
        cp_size=options.cp,
        dp_size=options.dp,
        microbatch_group_size_per_vp_stage=options.vp_group,
        schedulers=options.scheduler or ("dp_balanced", "cost_balanced"),
        cost_model=PolynomialCost(linear=options.linear, quadratic=options.quadratic),
    )
    if options.json:
        print_json(report.as_json() | cut)
    else:
        if options.cut:
            print(
                f"cut {cut['num_cut_sequences']:,} of {len(given):,} sequences, those of more than "
                f"{report.max_tokens:,} tokens: {cut['num_cut_tokens']:,} of {int(given.sum()):,} tokens are left out"
            )
        _print(report)
    return 0


def _lengths(options: argparse.Namespace) -> NDArray[np.int64]:
    """Returns the lengths of all sequences that have tokens."""
    if options.distribution is not None:
        return _drawn(options)
    if options.lengths is None:
        pair = IndexedDataset(options.prefix)
        if pair.index.arrays.has_modes:
            message = f"expected text in `{pair.path_prefix}`, found text and images, whose lengths are no tokens"
            raise ConfigError(message, hint="write the lengths of samples into a file, for --lengths")
        check_index(pair)
        found = np.asarray(pair.sequence_lengths)
    else:
        found = _read(Path(options.lengths))
    lengths: NDArray[np.int64] = found[found != 0].astype(np.int64)
    return lengths


def _read(path: Path) -> NDArray[Any]:
    try:
        found: NDArray[Any] = (
            np.load(path, mmap_mode="r") if path.suffix == ".npy" else np.array(path.read_text().split(), np.int64)
        )
    except OSError as error:
        message = f"cannot read `{path}`: {error.strerror or error}"
        raise InputError(message) from error
    except (ValueError, EOFError, OverflowError, MemoryError, TypeError, RecursionError) as error:
        message = f"expected one length a line in `{path}`: {error}"
        raise InputError(message) from error
    return found


def _drawn(options: argparse.Namespace) -> NDArray[np.int64]:
    """Returns lengths of common shapes: lognormal around a tenth of a pack, or a tenth long and the rest short."""
    rng = np.random.default_rng(options.seed)
    count = options.global_batch_size or 128 * options.dp
    longest = options.max_tokens * options.cp
    if options.distribution == "lognormal":
        drawn = rng.lognormal(np.log(longest / 10), 1.0, size=count)
    else:
        short = rng.uniform(longest / 100, longest / 10, size=count)
        drawn = np.where(rng.random(count) < 0.1, rng.uniform(0.7 * longest, longest, size=count), short)
    lengths: NDArray[np.int64] = np.clip(drawn.astype(np.int64), 1, longest)
    return lengths


def _batch(lengths: NDArray[np.int64], options: argparse.Namespace) -> NDArray[np.int64]:
    """Returns the lengths of one global batch."""
    size = options.global_batch_size
    if size is not None and size < len(lengths):
        lengths = np.random.default_rng(options.seed).permutation(lengths)[:size]
    elif size is not None and size > len(lengths):
        message = f"expected a global batch of at most {len(lengths)} sequences, as many as have tokens, found {size}"
        raise ConfigError(message)
    return lengths


def _print(report: PackReport) -> None:
    console.print_table(
        ("scheduler", "microbatches", "fill", "padding tokens", "worst imbalance", "not forced", "relative time"),
        [
            (row.scheduler, "", "", "", "", "", f"refused: {row.refused}")
            if row.refused is not None
            else (
                row.scheduler,
                f"{row.num_microbatches:,}",
                f"{row.fill:.2%}",
                f"{row.num_padding_tokens:,}",
                f"{row.worst_imbalance:.3f}",
                f"{row.free_imbalance:.3f}",
                f"{row.relative_time:.3f}",
            )
            for row in report.rows
        ]
        + [
            (
                "no plan is below",
                f"{report.least_microbatches:,}",
                "",
                "",
                f"{report.least_imbalance:.3f}",
                f"forced: {report.num_forced}",
                f"{report.least_relative_time:.3f}",
            )
        ],
        title=f"{len(report.lengths):,} sub-samples of {report.num_tokens:,} tokens on {report.num_ranks:,} ranks, "
        f"packs of at most {report.max_tokens:,}",
    )
