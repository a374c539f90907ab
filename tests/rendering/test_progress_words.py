"""Lines of progress: the words of a log, and what a terminal has room for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenloom.rendering.progress_words import Amounts, Pace, Speed, end_line, fitted_line, plain_line, seconds_left
from tokenloom.rendering.terminal import cell_width

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


def test_the_part_that_is_done_stands_in_the_line():
    inner = plain_line("index of `b`", Amounts("documents", 1, 2))
    assert plain_line("build", Amounts("datasets", 1, 4), Speed(), inner=inner) == (
        "build: 25 % (1 of 4 datasets), index of `b`: 50 % (1 of 2 documents)"
    )


def test_the_last_line_counts_what_was_done_now():
    before, after = Amounts("bytes", 2_000_000_000), Amounts("bytes", 8_000_000_000, 8_000_000_000, 0, ("1 rejected",))
    assert end_line("merge", after, 60.0, before=before) == "merge: done, 6 GB in 1 min, 100 MB/s, 1 rejected"


@pytest.mark.parametrize(
    ("width", "line"),
    [
        (40, "preprocess  43 %  85 MB/s  19 s left"),
        (30, "preprocess  43 %  19 s left"),
        (60, "preprocess  43 %  85 MB/s  0 rejected  shards 4/11  19 s"),
        (70, "preprocess  43 %  85 MB/s  0 rejected  shards 4/11  19 s left"),
        (80, "preprocess  43 %  85 MB/s  21.4 M tokens/s  0 rejected  shards 4/11  19 s left"),
        (
            90,
            "preprocess  43 %  ####------  85 MB/s  21.4 M tokens/s  0 rejected  shards 4/11  19 s left",
        ),
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


def test_the_speed_is_that_of_the_last_half_minute():
    pace = Pace(0.0, Amounts("bytes", 1000))
    assert pace.speed() == Speed()
    pace.add(10.0, Amounts("bytes", 2000, None, 50))
    assert pace.speed() == Speed(100.0, 5.0)
    for second in range(20, 100, 10):
        pace.add(float(second), Amounts("bytes", 2000 + second, None, 50))
    assert pace.speed() == Speed(1.0, 0.0)


def test_the_speed_of_what_rests_is_that_of_all_its_time():
    pace = Pace(0.0, Amounts("sections", 0))
    for second in (10, 20, 60, 90, 100):
        pace.add(float(second), Amounts("sections", 10))
    assert pace.speed() == Speed(0.1)


def test_what_is_left_is_known_with_a_total_and_a_speed():
    assert seconds_left(Amounts("bytes", 40, 100), Speed(20.0)) == 3.0
    assert seconds_left(Amounts("bytes", 40, None), Speed(20.0)) is None
    assert seconds_left(Amounts("bytes", 40, 100), Speed()) is None
    assert seconds_left(Amounts("bytes", 100, 100), Speed(20.0)) is None
    assert seconds_left(Amounts("bytes", 0, 100), Speed(1e-300)) is None
