"""What a run reads, as pictures: shares of its sources over positions, and how often each of them is read."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import ConfigError
from tokenloom.rendering.figures import (
    MOST_ROWS,
    draw_bars,
    label,
    legend_beside,
    new_figure,
    percent_ticks,
    short_ticks,
    with_others,
)
from tokenloom.rendering.largest import largest
from tokenloom.rendering.words import short
from tokenloom.run.take_maps import Int64s
from tokenloom.storage.saved_figure import saved

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from tokenloom.run.history import RunHistory
    from tokenloom.run.plan import PlannedReading, RunPlan

Float64s = NDArray[np.float64]

_MOST_MARKED = 12
"""Stages whose names are written; the beginnings of all are marked."""


def plot_history(history: RunHistory, *, path: str | os.PathLike[str] | None = None, overwrite: bool = False) -> Figure:
    """Returns a picture of how a run goes on: shares and passes of its sources over positions.

    Args:
        history: of two points at least.
        path: path of a file to write it to; its suffix says the format: .png, .svg or .pdf.
        overwrite: replace a file that shows something else.

    Raises:
        ConfigError: the history has fewer points, or the suffix is another one.
        OutputExistsError: another file is there, and no `overwrite`.
        MissingExtraError: matplotlib is not installed.
    """
    if len(history.positions) < 2:
        message = f"expected a history of two points at least to draw, found {len(history.positions)}"
        raise ConfigError(message)
    read = np.flatnonzero(history.samples[-1])
    shown, rest = (read[numbers] for numbers in map(_numbers, largest(history.samples[-1][read], MOST_ROWS)))
    rows = with_others([history.sources[number] for number in shown], len(rest))
    shares = history.shares
    columns = [shares[:, number] for number in shown]
    if len(rest):
        columns.append(shares[:, rest].sum(axis=1))
    with new_figure(10, 5.6) as figure:
        of_shares, of_passes = figure.subplots(2, 1, sharex=True, height_ratios=(1.5, 1))
        _draw_shares(of_shares, history.positions, columns, rows)
        for number, (name, colour) in zip(shown, rows, strict=False):
            of_passes.plot(history.positions, history.passes[:, number], color=colour, label=name)
        _mark_stages(of_shares, [(stage.stage, stage.position) for stage in history.stages], int(history.positions[-1]))
        for stage in history.stages[1:]:
            of_passes.axvline(stage.position, color="black", linestyle=":", linewidth=0.8)
        of_passes.set(xlabel="position", ylabel="passes")
        of_passes.set_ylim(bottom=0)
        short_ticks(of_passes.xaxis)
    return saved(figure, path, overwrite=overwrite)


def plot_plan(plan: RunPlan, *, path: str | os.PathLike[str] | None = None, overwrite: bool = False) -> Figure:
    """Returns a picture of what a run reads: shares of its sources by segment, and how often each is read.

    An endless segment has the shares that are wanted, and is drawn as long as a quarter of what comes before it.

    Args:
        plan: what to show.
        path: path of a file to write it to; its suffix says the format: .png, .svg or .pdf.
        overwrite: replace a file that shows something else.

    Raises:
        ConfigError: the suffix is another one.
        OutputExistsError: another file is there, and no `overwrite`.
        MissingExtraError: matplotlib is not installed.
    """
    numbers = {source.name: number for number, source in enumerate(plan.sources)}
    shares = np.zeros((len(plan.segments), len(plan.sources)))
    passes, samples = np.zeros(len(plan.sources)), np.zeros(len(plan.sources))
    last = plan.segments[-1]
    end = last.start + (last.start // 4 or 1 if last.num_samples is None else last.num_samples)
    edges = np.array([*(segment.start for segment in plan.segments), end], dtype=np.int64)
    for place, segment in enumerate(plan.segments):
        for reading in segment.readings:
            number = numbers[reading.source]
            shares[place, number] = reading.weight / reading.weights if reading.share is None else reading.share
            passes[number] = _passes(reading)
    samples = (shares * np.diff(edges)[:, None]).sum(axis=0)
    used = np.flatnonzero(samples)
    shown, rest = (used[found] for found in map(_numbers, largest(samples[used], MOST_ROWS)))
    rows = with_others([plan.sources[number].name for number in shown], len(rest))
    columns = [shares[:, number] for number in shown]
    counts, words = [float(passes[number]) for number in shown], []
    words = [f"{passes[number]:,.2f} ({short(plan.sources[number].seen_tokens)} tokens)" for number in shown]
    if len(rest):
        columns.append(shares[:, rest].sum(axis=1))
        counts.append(float(passes[rest].max()))
        tokens = sum(plan.sources[number].seen_tokens for number in rest)
        words.append(f"at most {counts[-1]:,.2f} ({short(tokens)} tokens)")
    with new_figure(12, max(3.4, 1.0 + 0.28 * len(rows))) as figure:
        of_shares, of_passes = figure.subplots(1, 2, width_ratios=(1.3, 1))
        _draw_shares(of_shares, edges, columns, rows, has_legend=False)
        _mark_stages(of_shares, [(segment.stage, segment.start) for segment in plan.segments], end)
        draw_bars(of_passes, rows, counts, words)
        size = "samples without end" if plan.num_samples is None else f"{short(plan.num_samples)} samples"
        of_shares.set_xlabel("position" if plan.num_samples is not None else "position (the last stage has no end)")
        of_shares.set_title(f"shares, {size}", pad=18)
        of_passes.set_title("passes", pad=18)
    return saved(figure, path, overwrite=overwrite)


def _numbers(found: list[int]) -> Int64s:
    return np.array(found, dtype=np.int64)


def _passes(reading: PlannedReading) -> float:
    """Returns how often a source has been read after a segment; before it, if that has no end."""
    begun, left = reading.begun_after, reading.left_after
    if begun is None or left is None:
        begun, left = reading.begun_before, reading.left_before
    return begun - left / reading.num_windows


def _draw_shares(
    axes: Any,
    edges: Int64s,
    columns: Sequence[Float64s],
    rows: Sequence[tuple[str, str]],
    *,
    has_legend: bool = True,
) -> None:
    """Draws shares as areas on top of each other, the first at the bottom."""
    below = np.zeros(len(edges) - 1)
    for column, (name, colour) in zip(columns, rows, strict=True):
        axes.stairs(below + column, edges, baseline=below, fill=True, color=colour, label=name, linewidth=0)
        below = below + column
    axes.set(xlim=(edges[0], edges[-1]), ylim=(0, 1), ylabel="share of samples")
    percent_ticks(axes.yaxis)
    short_ticks(axes.xaxis)
    if has_legend:
        legend_beside(axes)


def _mark_stages(axes: Any, starts: Sequence[tuple[str, int]], end: int) -> None:
    """Marks where stages begin, and names them where there is room."""
    stops = [start for _, start in starts[1:]] + [end]
    for number, ((name, start), stop) in enumerate(zip(starts, stops, strict=True)):
        if number:
            axes.axvline(start, color="black", linestyle=":", linewidth=0.8)
        room = (stop - start) / end  # of the width of the picture
        if len(starts) <= _MOST_MARKED and room > 0.04:
            middle = (start + stop) / 2
            text = label(name, width=max(3, int(60 * room)))
            axes.annotate(text, (middle, 1.02), xycoords=("data", "axes fraction"), ha="center", fontsize=8)
