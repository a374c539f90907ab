"""Draws charts as pictures with matplotlib, for files and notebooks."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np

from tokenloom.errors import ConfigError
from tokenloom.optional import require
from tokenloom.rendering.words import name_of, printable, short
from tokenloom_look.report.section import Chart

PALETTE = (
    *("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#F0E442"),
    *("#9900FF", "#BBEE99", "#774422", "#9977FF", "#00FFDD"),
)
"""Colours of series: the colours of Okabe and Ito without black (seven), then five more.

Each of the five is the colour that is easiest to distinguish from all colours before it, judged in the least favourable
kind of colour blindness. All five are visible on white and on black.
"""

OTHER = "#606060"
"""Colour of a series whose `colour` is an index beyond `PALETTE`."""

SUFFIXES = (".png", ".svg", ".pdf")

_UNDATED: dict[str, dict[str, None]] = {".png": {}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
"""Metadata that omits the creation time, by suffix."""

_DPI = 150
_LOOK: dict[str, Any] = {
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "grid.color": "#dddddd",
    "legend.frameon": False,
    "svg.hashsalt": "tokenloom",  # reproducible bytes
}


def check_picture_path(path: str) -> str:
    """Returns the suffix of a picture's path in lower case; raises ConfigError if the suffix is not in `SUFFIXES`."""
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise ConfigError(f"the picture path must end in {', '.join(SUFFIXES)}, got `{path}`")
    return suffix


def picture(chart: Chart, suffix: str = ".png") -> bytes:
    """Draws a chart on white; returns the bytes of a file in the format of `suffix`. Equal charts give equal bytes."""
    require("matplotlib", extra="plot")
    from matplotlib import style
    from matplotlib.figure import Figure

    found = io.BytesIO()
    with style.context(["default", _LOOK]):  # ignores the user's matplotlib settings
        figure = Figure(figsize=(9, 4), layout="constrained")
        _draw(figure.add_subplot(), chart)
        figure.savefig(found, dpi=_DPI, format=suffix[1:], metadata=_UNDATED[suffix])
    return found.getvalue()


def _draw(axes: Any, chart: Chart) -> None:
    chart = chart.thinned()
    xs = np.asarray(chart.x, dtype=np.float64)
    colours = [
        (PALETTE[number % len(PALETTE)] if each.colour is None else [*PALETTE, OTHER][min(each.colour, len(PALETTE))])
        for number, each in enumerate(chart.series)
    ]
    below = np.zeros(len(xs))
    for each, colour in zip(chart.series, colours, strict=True):
        values, name = np.asarray(each.values, dtype=np.float64), _label(each.name)
        if chart.kind == "lines":
            axes.plot(xs, values, color=colour, label=name)
        elif chart.kind == "bars":
            axes.stairs(values, xs, fill=True, alpha=0.8, color=colour, label=name)
        else:
            above = below + np.nan_to_num(values)
            axes.fill_between(xs, below, above, color=colour, label=name, linewidth=0)
            below = above
    axes.set(xscale=chart.x_scale, yscale=chart.y_scale, ylabel=chart.y_label)
    axes.set_xlabel(f"{chart.x_label} ({chart.x_unit})" if chart.x_unit else chart.x_label)
    axes.set_title(_label(chart.title, width=90))
    if chart.x_scale == "linear":
        axes.xaxis.set_major_formatter(_number)
    if chart.y_format == "share":
        axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:g}%")
    elif chart.y_scale == "linear":
        axes.yaxis.set_major_formatter(_number)
    for mark in chart.marks:
        axes.axvline(mark.x, color="black", linestyle=":", linewidth=0.8)
        axes.annotate(
            _label(mark.label, width=16), (mark.x, 1), xycoords=("data", "axes fraction"), fontsize=7, rotation=90,
            va="top", ha="right",
        )  # fmt: skip
    if len(chart.series) > 1:
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))  # outside of the plot


def _number(value: float, _: int) -> str:
    return short(int(value)) if value == int(value) else f"{value:g}"


def _label(text: str, *, width: int = 32) -> str:
    r"""Returns a text as a label: on one line, shortened, with `$` escaped.

    Example:
        >>> _label("$x$\n" + "b" * 60, width=16)
        '\\$x\\$\\nbbb…bbbbbbb'
    """
    return name_of(printable(text, keep=""), width=width).replace("$", r"\$")
