"""What sections about runs share: up to where they look, axes of positions or steps, sources with a name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from tokenloom.loading.batch_sizes import BatchSizeSchedule, Topology
from tokenloom.run.plan import RunHistory
from tokenloom.run.run import Run
from tokenloom_look.html import Cell
from tokenloom_look.report.options import ReportOptions
from tokenloom_look.report.section import Mark, Series

NUM_COLOURS = 12
MOST_SERIES = NUM_COLOURS - 1
"""Sources with a line of their own: with that of the others as many as there are colours."""

MOST_ROWS = 100
"""Rows of a table; the rest is one."""

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True, kw_only=True)
class Horizon:
    """Up to where a run is looked at.

    Attributes:
        position: the position.
        note: why there, in a sentence; empty for the end of the run.
    """

    position: int
    note: str


def horizon_of(run: Run) -> Horizon:
    """Returns up to where a run is looked at: its end, or of one without an end a pass of its last stage."""
    if run.num_samples is not None:
        return Horizon(position=run.num_samples, note="")
    last = len(run.lock.segments) - 1
    segment = run.lock.segments[last]
    windows = int(run.timeline.segment(last).entered.num_windows.sum())
    position = max(segment.start, run.lock.consumed) + windows
    note = f"The last stage has no end: it is drawn for as many samples as its sources have, up to {position:,}."
    return Horizon(position=position, note=note)


def with_steps(history: RunHistory, options: ReportOptions) -> RunHistory:
    """Returns a history with the steps of its points, where samples of a step are told."""
    if options.global_batch_size is None:
        return history
    topology = Topology(batch_sizes=BatchSizeSchedule.constant(options.global_batch_size))
    return replace(history, steps=topology.steps(history.positions))


def largest(history: RunHistory, most: int) -> list[int]:
    """Returns the numbers of the sources with the most samples, most first; at most so many, and only those read."""
    last = history.samples[-1]
    ranked: list[int] = np.argsort(-last, kind="stable").tolist()
    return ranked[: min(most, int(np.count_nonzero(last)))]


def axis_of(history: RunHistory) -> tuple[str, NDArray[np.int64]]:
    """Returns the label and the values of the x axis of a history: steps where they are known, else positions."""
    return ("position", history.positions) if history.steps is None else ("step", history.steps)


def marks_of(history: RunHistory) -> list[Mark]:
    """Returns where stages begin on the axis of a history, the first left out."""
    _, xs = axis_of(history)
    found = []
    for stage in history.stages[1:]:
        point = int(np.searchsorted(history.positions, stage.position))
        found.append(Mark(float(xs[point]), stage.stage))
    return found


def layers(history: RunHistory, values: NDArray[np.float64]) -> list[Series]:
    """Returns values of sources that add up, [num_points, num_sources], as series: the largest, and others as one."""
    count = int(np.count_nonzero(history.samples[-1]))
    chosen = largest(history, named(count, MOST_SERIES))
    found = [source_series(history, source, values[:, source]) for source in chosen]
    if num_others := count - len(chosen):
        found.append(Series(others(num_others), values.sum(axis=1) - values[:, chosen].sum(axis=1)))
    return found


def source_series(history: RunHistory, source: int, values: NDArray[np.float64]) -> Series:
    """Returns the series of a source, in the colour that it has on every page while there are colours for all."""
    colour = source if len(history.sources) <= NUM_COLOURS else None
    return Series(history.sources[source], values, colour=colour)


def named(count: int, most: int) -> int:
    """Returns how many of `count` have a name of their own: at most `most`, and one more where it is the last."""
    return count if count <= most + 1 else most


def others(count: int) -> str:
    """Returns the name of so many that have none of their own."""
    return f"{count:,} others"


def first_ones(names: Sequence[str], most: int = 3) -> str:
    """Returns the first names in a sentence, and how many others there are."""
    count = named(len(names), most)
    return ", ".join([*names[:count], *([others(len(names) - count)] if len(names) > count else [])])


def stepped(xs: NDArray[Any], values: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Returns the corners of steps.

    Args:
        xs: numbers[num_steps + 1], where steps begin and the last one ends.
        values: numbers[num_steps, ...], their heights.
    """
    return np.repeat(xs, 2)[1:-1], np.repeat(values, 2, axis=0)


def largest_rows(
    rows: Sequence[Row],
    size: Callable[[Row], float],
    cells: Callable[[Row], list[Cell]],
    summed: Callable[[Sequence[Row]], list[Cell]],
    *,
    most: int = MOST_ROWS,
) -> list[list[Cell]]:
    """Returns the rows of a table, the largest first, those beyond `most` as one.

    Args:
        rows: what is told of.
        size: what they are ranked by.
        cells: the cells of one.
        summed: the cells of many but the first, which names them.
        most: rows of their own.
    """
    ranked = sorted(rows, key=size, reverse=True)
    count = named(len(ranked), most)
    found = [cells(row) for row in ranked[:count]]
    if rest := ranked[count:]:
        found.append([others(len(rest)), *summed(rest)])
    return found
