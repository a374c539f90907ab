"""Lines of progress: the words of a log, and what a terminal has room for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenloom.rendering.progress_words import Amounts, Speed, fitted_line, plain_line
from tokenloom.rendering.words import cell_width

JOB = Amounts("bytes", 1_204_000_000, 2_800_000_000, 257_000_000, ("0 rejected", "shards 4 of 11"))
FAST = Speed(85e6, 21.4e6)


def fitted(amounts: Amounts, speed: Speed, width: int, description: str = "preprocess") -> str:
    return fitted_line(description, amounts, speed, width, full="#", empty="-")


def test_a_line_of_a_log_says_everything():
    assert plain_line("preprocess", JOB, FAST) == (
        "preprocess: 43 % (1.2 of 2.8 GB), 85 MB/s, 21.4 M tokens/s, 0 rejected, shards 4 of 11, 19 s left"
    )


@pytest.mark.parametrize(
    ("amounts", "speed", "line"),
    [
        (Amounts("bytes", 0, None), Speed(), "x: 0 bytes"),
        (Amounts("bytes", 5_000_000, None), Speed(900.0), "x: 5 MB, 900 B/s"),
        (Amounts("bytes", 999, 5_000), Speed(), "x: 19 % (999 bytes of 5 kB)"),
        (Amounts("bytes", 0, 0), Speed(), "x: 0 bytes"),
        (Amounts("sections", 3, 14), Speed(0.1), "x: 21 % (3 of 14 sections), 1 min 50 s left"),
        (Amounts("rows", 3 * 10**6, 4 * 10**6), Speed(5e4), "x: 75 % (3M of 4M rows), 50,000 rows/s, 20 s left"),
        (Amounts("documents", 1, None), Speed(), "x: 1 document"),
        (Amounts("bytes", 999_000, 1_000_000), Speed(), "x: 99 % (999 kB of 1 MB)"),
    ],
)  # fmt: skip
def test_a_line_says_what_is_known(amounts, speed, line):
    assert plain_line("x", amounts, speed) == line


@pytest.mark.parametrize(
    ("width", "line"),
    [
        (40, "preprocess  43 %  85 MB/s  19 s left"),
        (30, "preprocess  43 %  19 s left"),
        (80, "preprocess  43 %  85 MB/s  21.4 M tokens/s  0 rejected  shards 4/11  19 s left"),
        (
            140,
            "preprocess  43 %  ##########--------------  1.2 of 2.8 GB  85 MB/s  21.4 M tokens/s  0 rejected  "
            "shards 4/11  19 s left",
        ),
    ],
)
def test_a_terminal_is_told_as_much_as_fits(width, line):
    assert fitted(JOB, FAST, width) == line


@given(
    width=st.integers(20, 250),
    done=st.integers(0, 10**15),
    total=st.none() | st.integers(0, 10**15),
    speed=st.builds(Speed, st.floats(0, 1e12), st.floats(0, 1e12)),
    notes=st.lists(st.text(max_size=30), max_size=4),
    description=st.text(min_size=1, max_size=60).filter(lambda text: cell_width(text) == len(text)),
)
def test_a_line_is_never_wider_than_the_terminal(width, done, total, speed, notes, description):
    line = fitted(Amounts("bytes", done, total, 1, tuple(notes)), speed, width, description)
    assert cell_width(line) <= width
