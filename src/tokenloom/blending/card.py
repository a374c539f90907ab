"""What a notebook shows of a blend, and of what a build will do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenloom.rendering.card import Fact, card, top_table
from tokenloom.rendering.html import Cell, Markup
from tokenloom.rendering.words import short

if TYPE_CHECKING:
    from tokenloom.blending.blended import BlendedDataset
    from tokenloom.blending.plan import BuildPlan, DatasetPlan, SplitPlan


def blend_card(blend: BlendedDataset) -> Markup:
    """Returns the card of a blend."""
    total = sum(blend.weights)
    rows = [
        (str(dataset.dataset_path), f"{weight / total:.3%}")
        for dataset, weight in zip(blend.datasets, blend.weights, strict=True)
    ]
    members = top_table(
        ["dataset", "share"],
        rows,
        sizes=blend.weights,
        others=lambda rest: [f"{sum(blend.weights[number] for number in rest) / total:.3%}"],
    )
    facts: list[Fact] = [
        ("split", blend.split.name),
        ("samples", lambda: len(blend)),
        ("datasets", len(blend.datasets)),
        ("class", type(blend.datasets[0]).__name__),
        ("sequence length", lambda: blend.datasets[0].config.sequence_length),
    ]
    return card(type(blend).__name__, facts, tables=[members])


def plan_card(plan: BuildPlan) -> Markup:
    """Returns the card of what a build will do."""
    splits = [split for split in plan.splits if split is not None]
    facts: list[Fact] = [
        ("sequence length", plan.sequence_length),
        *((f"{split.split.name} samples", split.num_samples) for split in splits),
        ("surplus that is needed", None if plan.surplus is None else f"{plan.surplus!r}"),
    ]
    alarms = [
        f"{problem.split.name}, {problem.name}: {problem.owed:,} samples owed, {problem.available:,} there; "
        f"{problem.remedy}"
        for problem in plan.problems
    ]
    return card("BuildPlan", facts, tables=[_split_table(split) for split in splits], alarms=alarms)


def _split_table(split: SplitPlan) -> Markup:
    def others(rest: list[int]) -> list[Cell]:
        plans = [split.datasets[number] for number in rest]
        tokens, owed = sum(each.num_tokens for each in plans), sum(each.num_samples_owed for each in plans)
        return [short(tokens), f"{sum(each.share for each in plans):.3%}", owed, None]

    return top_table(
        ["dataset", "tokens", "share", "samples owed", "epochs"],
        [_row(dataset) for dataset in split.datasets],
        sizes=[dataset.num_samples_owed for dataset in split.datasets],
        others=others,
        caption=split.split.name,
    )


def _row(dataset: DatasetPlan) -> list[Cell]:
    share, epochs = f"{dataset.share:.3%}", f"{dataset.num_epochs_owed:,.2f}"
    return [dataset.name, short(dataset.num_tokens), share, dataset.num_samples_owed, epochs]
