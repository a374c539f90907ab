"""Figures that notebooks show, as IPython's own formatter tells them."""

from __future__ import annotations

import sys

from IPython.core.formatters import DisplayFormatter
from tests.rendering.pngs import size_of

from tokenloom.rendering.figures import new_figure


def test_a_notebook_shows_the_figure_that_a_cell_ends_with():
    with new_figure(4, 3) as figure:
        figure.subplots().plot([1, 2])
    shown, told = DisplayFormatter().format(figure)
    assert set(shown) == {"text/plain", "image/png"}
    assert told["image/png"] == {"width": 384, "height": 288}
    assert size_of(shown["image/png"]) == (600, 450)
    assert "matplotlib.pyplot" not in sys.modules
