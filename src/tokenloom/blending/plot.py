"""What a build will do, as a picture."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tokenloom.datasets.protocols import KnowsSequenceLengths
from tokenloom.errors import ConfigError
from tokenloom.indexed.length_histogram import LengthHistogram
from tokenloom.indexed.plot import plot_lengths
from tokenloom.rendering.figures import MOST_ROWS, draw_bars, new_figure, short_ticks, with_others
from tokenloom.rendering.largest import largest
from tokenloom.rendering.words import short
from tokenloom.storage.saved_figure import saved

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from tokenloom.blending.plan import BuildPlan, SplitPlan

_ROW_INCHES = 0.28


def plot_plan(plan: BuildPlan, *, path: str | os.PathLike[str] | None = None, overwrite: bool = False) -> Figure:
    """Returns a picture of the samples that each split takes of its datasets, and how many epochs of them these are.

    Args:
        plan: what to show.
        path: path of a file to write it to; its suffix says the format: .png, .svg or .pdf.
        overwrite: replace a file that shows something else.

    Raises:
        ConfigError: no split has data, or the suffix is another one.
        OutputExistsError: another file is there, and no `overwrite`.
        MissingExtraError: matplotlib is not installed.
    """
    splits = [split for split in plan.splits if split is not None]
    if not splits:
        message = "expected a split with data to draw, found none"
        raise ConfigError(message)
    heights = [1.1 + _ROW_INCHES * min(len(split.datasets), MOST_ROWS) for split in splits]
    with new_figure(10, sum(heights)) as figure:
        drawn = figure.subplots(len(splits), 2, squeeze=False, height_ratios=heights, sharey="row")
        for axes, split in zip(drawn, splits, strict=True):
            _draw_split(axes, split)
    return saved(figure, path, overwrite=overwrite)


def _draw_split(axes: Any, split: SplitPlan) -> None:
    shown, rest = largest([dataset.num_samples_owed for dataset in split.datasets], MOST_ROWS)
    chosen, left = ([split.datasets[number] for number in numbers] for numbers in (shown, rest))
    rows = with_others([dataset.name for dataset in chosen], len(left))
    owed: list[int] = [dataset.num_samples_owed for dataset in chosen]
    shares: list[float] = [dataset.share for dataset in chosen]
    epochs: list[float] = [dataset.num_epochs_owed for dataset in chosen]
    words = [f"{count:,.2f}" for count in epochs]
    if left:
        owed.append(sum(dataset.num_samples_owed for dataset in left))
        shares.append(sum(dataset.share for dataset in left))
        epochs.append(max(dataset.num_epochs_owed for dataset in left))
        words.append(f"at most {epochs[-1]:,.2f}")
    short_of = {problem.dataset for problem in split.problems}
    for place, number in enumerate(shown):
        if number in short_of:
            words[place] += ": more than it will have"
    draw_bars(axes[0], rows, owed, [f"{short(count)} ({share:.1%})" for count, share in zip(owed, shares, strict=True)])
    draw_bars(axes[1], rows, epochs, words)
    axes[1].tick_params(labelleft=False)
    short_ticks(axes[0].xaxis)
    name = split.split.name
    axes[0].set_title(f"{name}: samples owed, {short(sum(owed))} in all")
    axes[1].set_title(f"{name}: epochs of each dataset")


def plot_lengths_of(
    datasets: Sequence[Any], *, path: str | os.PathLike[str] | None = None, overwrite: bool = False
) -> Figure:
    """Returns a picture of how long the sequences are that datasets expose, each counted once, whatever its weight.

    Args:
        datasets: members of a blend.
        path: path of a file to write it to; its suffix says the format: .png, .svg or .pdf.
        overwrite: replace a file that shows something else.

    Raises:
        ConfigError: a dataset does not know how long its sequences are, there are none, or the suffix is another one.
        OutputExistsError: another file is there, and no `overwrite`.
        MissingExtraError: matplotlib is not installed.
    """
    histograms: dict[str, LengthHistogram] = {}
    for number, dataset in enumerate(datasets):
        if not isinstance(dataset, KnowsSequenceLengths):
            message = f"expected datasets that know how long their sequences are, found {type(dataset).__name__}"
            raise ConfigError(message, hint="give the class a method `length_histogram`")
        name = str(datasets[number].dataset_path)
        histograms[name if name not in histograms else f"{name} ({number})"] = dataset.length_histogram()
    return plot_lengths(histograms, what="sequence", path=path, overwrite=overwrite)
