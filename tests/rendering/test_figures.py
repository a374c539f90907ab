"""Figures: their look, what stands on them, their bytes in a file, and in a notebook."""

from __future__ import annotations

import struct
import sys
from itertools import pairwise

import matplotlib
import pytest
from hypothesis import given
from hypothesis import strategies as st
from IPython.core.formatters import DisplayFormatter

from tokenloom import ConfigError, MissingExtraError
from tokenloom.rendering.colours import OTHER
from tokenloom.rendering.figures import (
    label,
    legend_beside,
    new_figure,
    percent_ticks,
    picture_of,
    short_ticks,
    with_others,
)

HOSTILE = r"$\frac{1}{0}$ $$ \$ _^{ \x ${}$"


def drawn(title: str = "title"):
    with new_figure(3, 2) as figure:
        axes = figure.subplots()
        axes.plot([1, 10**6, 3 * 10**9], [0.1, 0.25, 1.0], label=title)
        axes.set_title(title)
        short_ticks(axes.xaxis)
        percent_ticks(axes.yaxis)
        legend_beside(axes)
    return figure


def test_files_are_the_same_every_time_and_of_the_format_of_their_name():
    for suffix, start in ((".png", b"\x89PNG"), (".PDF", b"%PDF")):
        assert picture_of(drawn(), f"a{suffix}").startswith(start)
    picture = picture_of(drawn(), "a.svg")
    assert picture.startswith(b"<?xml")
    assert picture_of(drawn(), "b.svg") == picture


def test_another_suffix_is_refused():
    with pytest.raises(ConfigError, match=r"expected a plot whose name ends in \.png, \.svg, \.pdf, found '.*'"):
        picture_of(drawn(), "plot.jpg")


def test_pictures_look_the_same_whatever_the_user_has_set():
    plain = picture_of(drawn(), "a.png")
    with matplotlib.rc_context({"figure.facecolor": "black", "text.color": "red", "font.size": 30, "axes.grid": False}):
        assert picture_of(drawn(), "a.png") == plain
        assert matplotlib.rcParams["font.size"] == 30


def test_a_picture_needs_matplotlib(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError) as caught, new_figure(3, 2):
        pass
    assert caught.value.hint == "run `pip install 'tokenloom[plot]'`"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("web", "web"),
        ("a$b", r"a\$b"),
        ("a\x1b[31m\u202e\n", r"a\x1b[31m\u202e\n"),
        ("é Ω 100%", "é Ω 100%"),
        ("\U000f0000 \U0001f9ec", r"\U000f0000 \U0001f9ec"),
        ("x" * 40, "x" * 16 + "…" + "x" * 15),
    ],
)
def test_labels_are_one_line_that_has_glyphs(text: str, shown: str):
    assert label(text) == shown


@given(st.one_of(st.text(max_size=60), st.text("$\\_^{}a", max_size=20)))
def test_no_label_is_read_as_a_formula(text: str):
    from matplotlib.cbook import is_math_text

    assert not is_math_text(label(text))
    assert all(char != "$" or before == "\\" for before, char in pairwise(" " + label(text)))


def test_a_hostile_name_is_drawn_as_it_is():
    svg = picture_of(drawn(label(HOSTILE)), "a.svg").decode()
    assert svg.count(f"<!-- {HOSTILE} -->") == 2  # as the title and in the legend


def test_all_others_have_one_row():
    assert with_others(["web"], 0) == [("web", "#0072B2")]
    assert with_others(["$", "b"], 1234) == [(r"\$", "#0072B2"), ("b", "#E69F00"), ("1,234 others", OTHER)]


def test_a_notebook_shows_the_figure_that_a_cell_ends_with():
    with new_figure(4, 3) as figure:
        figure.subplots().plot([1, 2])
    shown, told = DisplayFormatter().format(figure)
    assert set(shown) == {"text/plain", "image/png"}
    assert told["image/png"] == {"width": 384, "height": 288}
    assert struct.unpack(">II", shown["image/png"][16:24]) == (600, 450)
    assert "matplotlib.pyplot" not in sys.modules
