"""The figure that our pictures are drawn on; the only module that needs matplotlib to be imported."""

from __future__ import annotations

import io
from contextlib import AbstractContextManager
from functools import cache
from typing import Any

import matplotlib.style
from matplotlib import font_manager
from matplotlib.figure import Figure

_DPI = 150
_DOTS_PER_INCH = 96
"""What a browser takes for an inch."""

_LOOK: dict[str, Any] = {
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.labelsize": 9,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 10,
    "figure.titlesize": 11,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "svg.hashsalt": "tokenloom",  # the same bytes every time
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
}

_FAMILIES = (
    "DejaVu Sans",  # which matplotlib brings
    *("Noto Sans CJK SC", "Noto Sans CJK JP", "PingFang SC", "Hiragino Sans", "Microsoft YaHei", "Malgun Gothic"),
    *("Noto Sans Arabic", "Noto Sans Hebrew", "Noto Sans Devanagari", "Noto Sans Thai", "Arial Unicode MS"),
)
"""Fonts that names are written in, where the machine has them; each for what those before it lack."""


class NotebookFigure(Figure):
    """A figure that a notebook shows when it is the last expression of a cell.

    Of a plain one it shows a picture only while pyplot's own backend is active. No pyplot knows of this one, so nothing
    has to be closed. Not for several threads at a time: the look is a setting of matplotlib's, which are the process's.
    """

    def savefig(self, *args: Any, **options: Any) -> None:
        """Writes the picture, in our look."""
        with our_look():
            super().savefig(*args, **options)

    def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
        """Returns the picture, finer than it is shown, and how large to show it."""
        picture = io.BytesIO()
        self.savefig(picture, dpi=_DPI, format="png")
        width, height = (round(inches * _DOTS_PER_INCH) for inches in self.get_size_inches())
        return picture.getvalue(), {"width": width, "height": height}


def our_look() -> AbstractContextManager[None]:
    """Returns the context in which pictures look as ours do, whatever the user has set for their own."""
    context: AbstractContextManager[None] = matplotlib.style.context(
        ["default", {**_LOOK, "font.family": _families_here()}]
    )
    return context


@cache
def _families_here() -> list[str]:
    there = set(font_manager.get_font_names())
    return [family for family in _FAMILIES if family in there]


@cache
def characters() -> frozenset[int]:
    """Returns the characters that the fonts of our pictures have, as code points."""
    fonts = (font_manager.get_font(font_manager.findfont(family)) for family in _families_here())
    return frozenset().union(*(font.get_charmap() for font in fonts))
