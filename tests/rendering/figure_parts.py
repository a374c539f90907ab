"""Reads what stands on a figure."""

from __future__ import annotations

from typing import Any


def title_of(axes: Any) -> str:
    """Returns the title, which stands on the left."""
    return axes.get_title(loc="left")


def legend_of(axes: Any) -> list[str]:
    """Returns the texts of the legend."""
    return [text.get_text() for text in axes.get_legend().get_texts()]


def rows_of(axes: Any) -> list[str]:
    """Returns the names at the left of bars that lie, from top to bottom."""
    names = [text.get_text() for text in axes.get_yticklabels()]
    bottom, top = axes.get_ylim()
    return names if bottom > top else names[::-1]


def words_of(axes: Any) -> list[str]:
    """Returns what was written into a picture, in the order in which it was."""
    return [text.get_text() for text in axes.texts]
