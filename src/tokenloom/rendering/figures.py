"""Figures by matplotlib: how they look, what stands on them, and what bytes they are in a file."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from tokenloom.errors import ConfigError
from tokenloom.optional import require
from tokenloom.rendering.colours import OTHER, PALETTE, colours
from tokenloom.rendering.plain import escaped, printable
from tokenloom.rendering.words import name_of, short

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg", ".pdf")

_UNDATED: dict[str, dict[str, None]] = {".png": {}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
"""What keeps the time of writing out of a file."""

_DPI = 150


@contextmanager
def new_figure(width: float, height: float) -> Iterator[Any]:
    """Yields an empty figure; what is drawn on it looks the same whatever the user has set for their own.

    Its ground is white in a file and in a notebook, dark ones included.

    Args:
        width, height: its size, in inches.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    ours = _ours()
    with ours.our_look():
        figure = ours.NotebookFigure(figsize=(width, height), layout="constrained")
        yield figure
        figure.draw_without_rendering()  # what is made when it is first drawn is made in this look, too


def _ours() -> ModuleType:
    require("matplotlib", extra="plot")
    return require("tokenloom.rendering.notebook_figure", extra="plot")


def check_suffix(path: str | os.PathLike[str]) -> str:
    """Returns the suffix of a picture, in small letters.

    Raises:
        ConfigError: it names no format of pictures.
    """
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        message = f"expected a plot whose name ends in {', '.join(SUFFIXES)}, found {os.fspath(path)!r}"
        raise ConfigError(message)
    return suffix


def picture_of(figure: Figure, path: str | os.PathLike[str]) -> bytes:
    """Returns the bytes of a figure in a file; the same ones at any time.

    Args:
        figure: what to write.
        path: path of the file; its suffix says the format: .png, .svg or .pdf.

    Raises:
        ConfigError: the suffix is another one.
    """
    suffix = check_suffix(path)
    picture = io.BytesIO()
    figure.savefig(picture, dpi=_DPI, format=suffix[1:], metadata=_UNDATED[suffix])
    return picture.getvalue()


def label(text: str, *, width: int = 32) -> str:
    r"""Returns a text of a stranger as a label: in one line, not too long, and with every `$` meant as one.

    What no font of this machine has a glyph for is written as an escape.

    Example:
        >>> label("$x$\n" + "b" * 60, width=16)
        '\\$x\\$\\nbbb…bbbbbbb'
    """
    drawn = _ours().characters()
    shown = "".join(char if ord(char) in drawn else escaped(char) for char in printable(text, keep=""))
    return name_of(shown, width=width).replace("$", r"\$")


def with_others(names: Sequence[str], others: int, *, width: int = 28) -> list[tuple[str, str]]:
    """Returns (label, colour) of each name, and of all others if there are any.

    Args:
        names: those that have a row of their own.
        others: how many have not.
        width: characters of a label.

    Example:
        >>> with_others(["web"], 3)
        [('web', '#0072B2'), ('3 others', '#606060')]
    """
    rows = list(zip([label(name, width=width) for name in names], colours(len(names)), strict=True))
    return [*rows, (f"{others:,} others", OTHER)] if others else rows


def short_ticks(axis: Any) -> None:
    """Writes whole numbers at an axis, and large ones in short."""
    axis.set_major_formatter(lambda value, _: short(int(value)) if value == int(value) else f"{value:g}")


def percent_ticks(axis: Any) -> None:
    """Writes shares at an axis as percentages."""
    axis.set_major_formatter(lambda value, _: f"{100 * value:g}%")


MOST_ROWS = len(PALETTE) + 1
"""Colours of a picture: those of the palette, and that of all others."""


def legend_beside(axes: Any, handles: Iterable[Any] | None = None) -> None:
    """Puts a legend to the right of what is drawn, where it hides nothing."""
    further = {} if handles is None else {"handles": list(handles)}
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), **further)


def draw_bars(axes: Any, rows: Sequence[tuple[str, str]], values: Sequence[float], words: Sequence[str]) -> None:
    """Draws bars that lie, the first on top, with words at their ends.

    Args:
        axes: what to draw on.
        rows: (label, colour) of each, from `with_others`.
        values: their lengths.
        words: what stands at their ends.
    """
    places = range(len(rows))
    axes.barh(places, values, color=[colour for _, colour in rows], height=0.7)
    axes.set_yticks(places, [name for name, _ in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")
    longest = max([*values, 0])
    axes.set_xlim(0, 1.6 * longest or 1)  # with room for the words
    for place, value, said in zip(places, values, words, strict=True):
        axes.text(value + 0.015 * (longest or 1), place, said, va="center", fontsize=8)
