"""`tokenloom plan`: what a build will do."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from typing import Any

from tokenloom.blending.plan import BuildPlan, Problem, SplitPlan, plan_build
from tokenloom.blending.spec import parse_blend
from tokenloom.cli import console
from tokenloom.datasets.config import BlendedMegatronDatasetConfig
from tokenloom.datasets.splits import Split
from tokenloom.errors import ConfigError


def add_parser(commands: Any) -> None:
    """Declares the command."""
    parser = commands.add_parser(
        "plan",
        help="tokens, samples and epochs of every dataset of a blend, before anything is built",
        description="What a build of GPT data will do, from the indices of the data alone: tokens, samples and epochs "
        "of every dataset and split, and what would run short. Exact; 10 to 100 ns per sample of a weighted blend. "
        "The exit status is 1 if the build would fail.",
    )
    data = parser.add_mutually_exclusive_group(required=True)
    data.add_argument(
        "--data-path",
        nargs="+",
        metavar="ENTRY",
        help="prefixes, globs or directories; or weights and these by turns",
    )
    data.add_argument("--data-args-path", metavar="FILE", help="a text file with such entries")
    data.add_argument(
        "--per-split-data-args-path", metavar="FILE", help="a JSON file with such a list for train, valid and test each"
    )
    parser.add_argument("--split", help='weights of train, valid and test; default "969,30,1"')
    parser.add_argument("--sequence-length", type=int, required=True, metavar="S", help="tokens per sample")
    group = parser.add_argument_group("samples wanted at least (default one epoch)")
    for split in Split:
        group.add_argument(f"--{split.name}-samples", type=_size, metavar="N")
    group.add_argument("--sizes", type=_sizes, metavar="A,B,C", help='all three at once, such as "100000,1000,none"')
    group.add_argument("--full-validation", action="store_true", help="validate on one whole epoch")
    group.add_argument(
        "--multiple-validation-sets", action="store_true", help="one validation dataset per prefix, not a blend"
    )
    group = parser.add_argument_group("what happens to datasets that run short")
    group.add_argument(
        "--mid-level-dataset-surplus",
        type=float,
        default=0.005,
        metavar="SHARE",
        help="samples built beyond what is needed of each dataset; default 0.005",
    )
    group.add_argument("--extend-short-datasets", action="store_true", help="take further epochs of them")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Prints the plan, and its problems to stderr."""
    plan = plan_build(_config(options), _wanted(options))
    if options.json:
        print(json.dumps({**dataclasses.asdict(plan), "surplus": plan.surplus}, default=_name_of))
    else:
        for split in plan.splits:
            if split is not None:
                _print_split(split)
        print(_totals(plan))
    for problem in plan.problems:
        print(f"problem: {_what_is_wrong(problem)}\nhint: {problem.remedy}", file=sys.stderr)
    return 1 if plan.problems else 0


def _what_is_wrong(problem: Problem) -> str:
    if problem.available == 0:
        return f"`{problem.name}` has no sample for {problem.split.name}"
    return f"{problem.split.name} takes {problem.owed} samples from `{problem.name}`, which has {problem.available}"


def _size(text: str) -> int | None:
    return None if text.strip().lower() == "none" else int(text)


def _sizes(text: str) -> list[int | None]:
    return [_size(part) for part in text.split(",")]


def _wanted(options: argparse.Namespace) -> list[int | None]:
    single = [options.train_samples, options.valid_samples, options.test_samples]
    if options.sizes is None:
        return single
    if any(size is not None for size in single):
        message = "--sizes and the samples of single splits exclude each other, found both"
        raise ConfigError(message)
    sizes: list[int | None] = options.sizes
    return sizes


def _config(options: argparse.Namespace) -> BlendedMegatronDatasetConfig:
    data = parse_blend(options.data_path, args_file=options.data_args_path, per_split=options.per_split_data_args_path)
    return BlendedMegatronDatasetConfig(
        random_seed=0,  # decides which samples come first, not how many there are
        sequence_length=options.sequence_length,
        split=options.split or (None if "blend_per_split" in data else "969,30,1"),
        full_validation=options.full_validation,
        multiple_validation_sets=options.multiple_validation_sets,
        mid_level_dataset_surplus=options.mid_level_dataset_surplus,
        extend_short_datasets=options.extend_short_datasets,
        **data,
    )


def _print_split(plan: SplitPlan) -> None:
    short = {problem.dataset for problem in plan.problems}
    rows = [
        (
            dataset.name,
            f"{dataset.num_tokens:,}",
            "" if dataset.weight is None else f"{dataset.weight:g}",
            f"{dataset.share:.4%}",
            f"{dataset.num_samples_owed:,}",
            f"{dataset.num_epochs_owed:,.4g}",
            f"{dataset.num_samples_built:,}",
            f"{dataset.num_epochs_built:,}",
            "short" if number in short else "",
        )
        for number, dataset in enumerate(plan.datasets)
    ]
    owed = sum(dataset.num_samples_owed for dataset in plan.datasets)
    built = sum(dataset.num_samples_built for dataset in plan.datasets)
    rows.append(("total", f"{plan.num_tokens:,}", "", "", f"{owed:,}", "", f"{built:,}", "", ""))
    console.print_table(
        ("dataset", "tokens", "weight", "share", "samples owed", "epochs", "samples built", "of epochs", ""),
        rows,
        title=f"{plan.split.name}: {plan.num_samples:,} samples ({plan.kind})",
    )


def _totals(plan: BuildPlan) -> str:
    splits = [split for split in plan.splits if split is not None]
    samples = sum(split.num_samples for split in splits)
    return (
        f"{sum(len(split.datasets) for split in splits):,} datasets, {sum(split.num_tokens for split in splits):,} "
        f"tokens; {samples:,} samples of {plan.sequence_length:,} tokens, {samples * plan.sequence_length:,} in all"
    )


def _name_of(split: Split) -> str:
    return split.name
