"""`tokenloom plan`: what a build will do."""

from __future__ import annotations

import dataclasses
import sys
from dataclasses import dataclass
from typing import Annotated, Any

from tokenloom.blending.plan import BuildPlan, Problem, SplitPlan, plan_build
from tokenloom.cli import console
from tokenloom.cli.hints import hint_in_options
from tokenloom.cli.json_output import print_json
from tokenloom.cli.options import Written
from tokenloom.cli.parser import CommandParser
from tokenloom.cli.run_options import RunOptions
from tokenloom.datasets.config import BlendedMegatronDatasetConfig
from tokenloom.datasets.splits import Split
from tokenloom.errors import ConfigError
from tokenloom.loading.resonance import REMEDY, Resonance, resonance_of_weights
from tokenloom.setting_types import Count

_MIXTURE = Written(group="whether ranks will see the mixture of the blend")


@dataclass(frozen=True, kw_only=True)
class Options(RunOptions):
    """What a build of GPT data will do, from the indices of the data alone: tokens, samples and epochs of every dataset
    and split, and what would run short. Exact; 10 to 100 ns per sample of a weighted blend. The exit status is 1 if the
    build would fail, or a split be empty.

    Attributes:
        micro_batch_size: samples of a rank and micro-batch.
        data_parallel_size: data-parallel ranks.
        json: print one JSON object: sequence_length, splits with their datasets and problems, surplus, resonance.
    """

    micro_batch_size: Annotated[Count | None, _MIXTURE] = None
    data_parallel_size: Annotated[Count | None, _MIXTURE] = None
    json: bool = False


def add_parser(commands: Any) -> None:
    """Declares the command."""
    parser: CommandParser = commands.add_command("plan", Options, lambda options: run(options, parser))


def run(options: Options, parser: CommandParser) -> int:
    """Prints the plan, and its problems to stderr."""
    # The seed decides which samples come first, not how many there are.
    config = BlendedMegatronDatasetConfig(random_seed=0, **options.run_settings())
    plan = plan_build(config, options.wanted_sizes(), policy=options.window_policy)
    found = [_resonance(split, options) for split in plan.splits]
    if options.json:
        described = {**dataclasses.asdict(plan), "surplus": plan.surplus}
        described["resonance"] = [None if each is None else dataclasses.asdict(each) for each in found]
        print_json(described)
    else:
        for split in plan.splits:
            if split is not None:
                _print_split(split)
        print(_totals(plan))
    for name, resonance in zip(Split, found, strict=True):
        if resonance is not None:
            print(f"warning: {name.name}: {resonance}\nhint: {REMEDY}", file=sys.stderr)
    for problem in plan.problems:
        hint = hint_in_options(problem.remedy, parser)
        print(f"problem: {_what_is_wrong(problem)}\nhint: {hint}", file=sys.stderr)
    return 1 if plan.problems else 0


def _resonance(split: SplitPlan | None, options: Options) -> Resonance | None:
    """Returns how ranks will see other mixtures than that of a split; None if they do not, or are not known."""
    micro_batch_size, data_parallel_size = options.micro_batch_size, options.data_parallel_size
    if (micro_batch_size is None) != (data_parallel_size is None):
        message = "--micro-batch-size and --data-parallel-size belong together, found one"
        raise ConfigError(message)
    if split is None or split.kind not in ("weighted", "proportional"):
        return None
    if micro_batch_size is None or data_parallel_size is None:
        return None
    return resonance_of_weights(
        [dataset.share if dataset.weight is None else dataset.weight for dataset in split.datasets],
        micro_batch_size=micro_batch_size,
        data_parallel_size=data_parallel_size,
        names=[dataset.name for dataset in split.datasets],
        num_samples=split.num_samples,
    )


def _what_is_wrong(problem: Problem) -> str:
    if problem.available == 0:
        return f"`{problem.name}` has no sample for {problem.split.name}"
    return f"{problem.split.name} takes {problem.owed} samples from `{problem.name}`, which has {problem.available}"


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
    if any(dataset.packing for dataset in plan.datasets):
        _print_packing(plan)


def _print_packing(plan: SplitPlan) -> None:
    rows = [
        (
            dataset.name,
            f"{report.num_packs:,}",
            f"{report.fill:.4%}",
            f"{report.documents_per_pack:,.2f}",
            f"{report.num_padding_tokens:,}",
            f"{report.num_split_documents:,} of {report.num_documents:,}",
        )
        for dataset in plan.datasets
        if (report := dataset.packing) is not None
    ]
    console.print_table(
        ("dataset", "packs", "fill", "documents per pack", "padding tokens", "documents cut"),
        rows,
        title=f"{plan.split.name}: an epoch, packed by best fit",
    )


def _totals(plan: BuildPlan) -> str:
    splits = [split for split in plan.splits if split is not None]
    samples = sum(split.num_samples for split in splits)
    return (
        f"{sum(len(split.datasets) for split in splits):,} datasets, {sum(split.num_tokens for split in splits):,} "
        f"tokens; {samples:,} samples of {plan.sequence_length:,} tokens, {samples * plan.sequence_length:,} in all"
    )
