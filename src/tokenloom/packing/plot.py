"""A report on packing as a picture."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import numpy as np

from tokenloom.errors import ConfigError
from tokenloom.optional import require
from tokenloom.packing.report import PADDED, PackingQuality, PackReport
from tokenloom.storage.publishing import write_report

SUFFIXES = (".png", ".svg", ".pdf")

_UNDATED: dict[str, dict[str, None]] = {".png": {}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
"""What keeps the time of writing out of a file."""

_COLOURS = {
    PADDED: "#8c8c8c",
    "dp_balanced": "#d1495b",
    "default_dynamic_cp": "#8d5a97",
    "cost_balanced": "#00798c",
    "hybrid_cost_balanced": "#edae49",
}


def plot_pack_report(report: PackReport, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
    """Writes a picture: lengths, the imbalance of each microbatch, and fill and time of each way to plan.

    Args:
        report: what to show.
        path: path of the file; its suffix says the format: .png, .svg or .pdf.
        overwrite: replace a file that shows something else.

    Raises:
        ConfigError: the suffix is another one.
        OutputExistsError: another file is there, and no `overwrite`.
        MissingExtraError: matplotlib is not installed.
    """
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        message = f"expected a plot whose name ends in {', '.join(SUFFIXES)}, found {os.fspath(path)!r}"
        raise ConfigError(message)
    figure = require("matplotlib.figure", extra="plot").Figure(figsize=(13, 4.2), layout="constrained")
    of_lengths, of_steps, of_rows = figure.subplots(1, 3, width_ratios=(1, 1.4, 1.1))
    _draw_lengths(of_lengths, report)
    _draw_steps(of_steps, report)
    _draw_rows(of_rows, report)
    for axes in (of_lengths, of_steps, of_rows):
        axes.spines[["top", "right"]].set_visible(False)
    picture = io.BytesIO()
    with require("matplotlib", extra="plot").rc_context({"svg.hashsalt": "tokenloom"}):  # the same bytes every time
        figure.savefig(picture, dpi=150, format=suffix[1:], metadata=_UNDATED[suffix])
    write_report(os.fspath(path), picture.getvalue(), overwrite=overwrite)


def _colour(row: PackingQuality) -> str:
    return _COLOURS.get(row.scheduler, "#4c6a2d")


def _draw_lengths(axes: Any, report: PackReport) -> None:
    shortest, longest = int(report.lengths[-1]), int(report.lengths[0])
    bins = np.geomspace(shortest, longest + 1, 40)
    axes.hist(report.lengths, bins=bins, color="#5b5b5b")
    axes.axvline(report.max_tokens, color="black", linestyle=":", linewidth=1)
    axes.set(xscale="log", xlabel="tokens (dotted: a pack)", ylabel="sub-samples")
    axes.set_title(f"{len(report.lengths):,} sub-samples, {report.num_tokens:,} tokens", fontsize=10)


def _draw_steps(axes: Any, report: PackReport) -> None:
    for row in report.rows:
        if row.refused is None and row.scheduler != PADDED:
            share = (np.arange(row.num_microbatches) + 0.5) / row.num_microbatches
            label = f"{row.scheduler}: {row.num_microbatches} microbatches"
            values = sorted(row.step_imbalance, reverse=True)
            axes.plot(
                share,
                values,
                marker=".",
                markersize=4,
                color=_colour(row),
                label=label,
            )
    axes.axhline(1.0, color="black", linestyle=":", linewidth=1)
    axes.set(yscale="log", xlim=(0, 1), xlabel="microbatches, worst first", ylabel="slowest rank / mean")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_minor_formatter(lambda value, _: f"{value:g}" if value in (2, 3, 5) else "")
    axes.legend(frameon=False, fontsize=9)
    axes.set_title(f"imbalance on {report.num_ranks} ranks", fontsize=10)


def _draw_rows(axes: Any, report: PackReport) -> None:
    rows = [row for row in report.rows if row.refused is None][::-1]
    for place, row in enumerate(rows):
        axes.barh(
            place,
            1 / row.relative_time,
            height=0.38,
            align="edge",
            color=_colour(row),
        )
        axes.barh(
            place,
            row.fill,
            height=-0.38,
            align="edge",
            color=_colour(row),
            alpha=0.45,
        )
        axes.text(
            1 / row.relative_time + 0.02, place + 0.19, f"busy {1 / row.relative_time:.1%}", va="center", fontsize=8
        )
        axes.text(row.fill + 0.02, place - 0.19, f"fill {row.fill:.1%}", va="center", fontsize=8)
    axes.axvline(1 / report.least_relative_time, color="black", linestyle=":", linewidth=1)
    axes.set_yticks(range(len(rows)), [row.scheduler for row in rows])
    axes.set(xlim=(0, 1.25), xticks=[0, 0.25, 0.5, 0.75, 1.0])
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.set_title("ranks busy (dotted: at most), and fill", fontsize=10)
