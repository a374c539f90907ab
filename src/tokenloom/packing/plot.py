"""A report on packing as a picture."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np

from tokenloom.rendering.colours import OTHER, PALETTE
from tokenloom.rendering.figures import label, new_figure, percent_ticks, short_ticks
from tokenloom.storage.saved_figure import saved

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from tokenloom.packing.report import PackReport

_SCHEDULERS = ("cost_balanced", "dp_balanced", "hybrid_cost_balanced", "default_dynamic_cp")
"""Those whose colours are the same in every picture."""

_ON_WHITE = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}


def plot_pack_report(
    report: PackReport, path: str | os.PathLike[str] | None = None, *, overwrite: bool = False
) -> Figure:
    """Returns a picture: lengths, the imbalance of each microbatch, and fill and time of each way to plan.

    Args:
        report: what to show.
        path: path of a file to write it to; its suffix says the format: .png, .svg or .pdf.
        overwrite: replace a file that shows something else.

    Raises:
        ConfigError: the suffix is another one.
        OutputExistsError: another file is there, and no `overwrite`.
        MissingExtraError: matplotlib is not installed.
    """
    with new_figure(13, 4.2) as figure:
        of_lengths, of_steps, of_rows = figure.subplots(1, 3, width_ratios=(1, 1.4, 1.1))
        colours = _colours(report)
        _draw_lengths(of_lengths, report)
        _draw_steps(of_steps, report, colours)
        _draw_rows(of_rows, report, colours)
    return saved(figure, path, overwrite=overwrite)


def _colours(report: PackReport) -> dict[str, str]:
    """Returns the colour of each way to plan; the first row, without packing, is what others are compared with."""
    names = [row.scheduler for row in report.rows[1:]]
    known = dict(zip(_SCHEDULERS, PALETTE, strict=False))
    left = iter([colour for colour in PALETTE if colour not in known.values()])
    return {report.rows[0].scheduler: OTHER} | {name: known.get(name) or next(left, OTHER) for name in names}


def _draw_lengths(axes: Any, report: PackReport) -> None:
    shortest, longest = int(report.lengths[-1]), int(report.lengths[0])
    bins = np.geomspace(shortest, longest + 1, 40)
    axes.hist(report.lengths, bins=bins, color=OTHER)
    axes.axvline(report.max_tokens, color="black", linestyle=":", linewidth=1)
    axes.set(xscale="log", xlabel="tokens (dotted: a pack)", ylabel="sub-samples")
    short_ticks(axes.xaxis)
    axes.yaxis.get_major_locator().set_params(integer=True)
    axes.set_title(f"{len(report.lengths):,} sub-samples, {report.num_tokens:,} tokens")


def _draw_steps(axes: Any, report: PackReport, colours: dict[str, str]) -> None:
    for place, row in enumerate(report.rows[1:]):
        if row.refused is None:
            share = (np.arange(row.num_microbatches) + 0.5) / row.num_microbatches
            text = f"{label(row.scheduler)}: {row.num_microbatches} microbatches"
            values = sorted(row.step_imbalance, reverse=True)
            axes.plot(
                share,
                values,
                marker=".",
                markersize=4,
                linewidth=max(4.0 - place, 1.2),  # two that are equal are both seen
                color=colours[row.scheduler],
                label=text,
            )
    axes.axhline(1.0, color="black", linestyle=":", linewidth=1)
    axes.set(yscale="log", xlim=(0, 1), xlabel="microbatches, worst first", ylabel="slowest rank / mean")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_minor_formatter(lambda value, _: f"{value:g}" if value in (2, 3, 5) else "")
    if axes.lines[:-1]:
        axes.legend()
    axes.set_title(f"imbalance on {report.num_ranks} ranks")


def _draw_rows(axes: Any, report: PackReport, colours: dict[str, str]) -> None:
    rows = [row for row in report.rows if row.refused is None][::-1]
    for place, row in enumerate(rows):
        axes.barh(
            place,
            1 / row.relative_time,
            height=0.38,
            align="edge",
            color=colours[row.scheduler],
        )
        axes.barh(
            place,
            row.fill,
            height=-0.38,
            align="edge",
            color=colours[row.scheduler],
            alpha=0.45,
        )
        busy = 1 / row.relative_time
        for share, middle, said in ((busy, place + 0.19, "busy"), (row.fill, place - 0.19, "fill")):
            axes.text(share + 0.02, middle, f"{said} {share:.1%}", va="center", fontsize=8, bbox=_ON_WHITE)
    axes.axvline(1 / report.least_relative_time, color="black", linestyle=":", linewidth=1)
    axes.set_yticks(range(len(rows)), [label(row.scheduler) for row in rows])
    axes.set(xlim=(0, 1.25), xticks=[0, 0.25, 0.5, 0.75, 1.0])
    percent_ticks(axes.xaxis)
    axes.set_title("ranks busy (dotted: at most), and fill")
