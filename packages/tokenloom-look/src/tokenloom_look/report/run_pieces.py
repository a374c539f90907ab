"""Helpers shared by sections about runs: the range of positions to draw, axes, series and table rows."""

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
from tokenloom_look.report.section import Mark, ReportOptions, Series

NUM_COLOURS = 12
MOST_SERIES = NUM_COLOURS - 1  # all other sources are drawn as one series
MOST_ROWS = 100  # maximum rows of a table; all other rows are summed up in one

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True, kw_only=True)
class Horizon:
    """The end of the positions that are drawn and counted; `note` explains it if the run itself has no end, else ""."""

    position: int
    note: str


def horizon_of(run: Run) -> Horizon:
    """Returns the end of the run; if the last stage is endless, the position after one pass over its sources."""
    if run.num_samples is not None:
        return Horizon(position=run.num_samples, note="")
    last = len(run.lock.segments) - 1
    segment = run.lock.segments[last]
    windows = int(run.timeline.segment(last).entered.num_windows.sum())
    position = max(segment.start, run.lock.consumed) + windows
    note = f"The last stage has no end: it is drawn for one pass over its sources, up to position {position:,}."
    return Horizon(position=position, note=note)


def with_steps(history: RunHistory, options: ReportOptions) -> RunHistory:
    """Returns the history with steps; unchanged if `options` has no batch size."""
    if options.global_batch_size is None:
        return history
    topology = Topology(batch_sizes=BatchSizeSchedule.constant(options.global_batch_size))
    return replace(history, steps=topology.steps(history.positions))


def largest(history: RunHistory, most: int) -> list[int]:
    """Returns the indices of at most `most` sources, most samples first; sources without samples are omitted."""
    last = history.samples[-1]
    ranked: list[int] = np.argsort(-last, kind="stable").tolist()
    return ranked[: min(most, int(np.count_nonzero(last)))]


def axis_of(history: RunHistory) -> tuple[str, NDArray[np.int64]]:
    """Returns label and values of the x axis: steps if known, otherwise positions."""
    return ("position", history.positions) if history.steps is None else ("step", history.steps)


def marks_of(history: RunHistory) -> list[Mark]:
    """Returns a mark at the start of each stage except the first stage."""
    _, xs = axis_of(history)
    found = []
    for stage in history.stages[1:]:
        point = int(np.searchsorted(history.positions, stage.position))
        found.append(Mark(float(xs[point]), stage.stage))
    return found


def layers(history: RunHistory, values: NDArray[np.float64]) -> list[Series]:
    """Returns `values`, [num_points, num_sources], as series: one for each large source, and one for all others."""
    count = int(np.count_nonzero(history.samples[-1]))
    chosen = largest(history, num_shown(count, MOST_SERIES))
    found = [source_series(history, source, values[:, source]) for source in chosen]
    if num_others := count - len(chosen):
        found.append(Series(others(num_others), values.sum(axis=1) - values[:, chosen].sum(axis=1)))
    return found


def source_series(history: RunHistory, source: int, values: NDArray[np.float64]) -> Series:
    """Returns the series of a source; its colour is the same in all charts."""
    colour = source if len(history.sources) <= NUM_COLOURS else None
    return Series(history.sources[source], values, colour=colour)


def num_shown(count: int, most: int) -> int:
    """Returns how many of `count` rows to show: all if `most` would hide at most one row, else `most`."""
    return count if count <= most + 1 else most


def others(count: int) -> str:
    return f"{count:,} others"


def first_ones(names: Sequence[str], most: int = 3) -> str:
    """Returns the first `most` names and the number of other names, as one text."""
    count = num_shown(len(names), most)
    return ", ".join([*names[:count], *([others(len(names) - count)] if len(names) > count else [])])


def stepped(xs: NDArray[Any], values: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Returns the corners of stairs as (x, y), given edges `xs`, [n + 1], and heights `values`, [n, ...]."""
    return np.repeat(xs, 2)[1:-1], np.repeat(values, 2, axis=0)


def largest_rows(
    rows: Sequence[Row],
    size: Callable[[Row], float],
    cells: Callable[[Row], list[Cell]],
    summed: Callable[[Sequence[Row]], list[Cell]],
    *,
    most: int = MOST_ROWS,
) -> list[list[Cell]]:
    """Returns the rows of a table, largest `size` first; all rows after the first `most` are summed up in one row."""
    ranked = sorted(rows, key=size, reverse=True)
    count = num_shown(len(ranked), most)
    found = [cells(row) for row in ranked[:count]]
    if rest := ranked[count:]:
        found.append([others(len(rest)), *summed(rest)])
    return found
