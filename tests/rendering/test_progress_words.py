"""Lines of progress."""

from __future__ import annotations

import pytest

from tokenloom.rendering.progress_words import Amounts, Speed, plain_line

JOB = Amounts("bytes", 1_204_000_000, 2_800_000_000, 257_000_000, ("0 rejected", "shards 4 of 11"))
FAST = Speed(85e6, 21.4e6)


def test_a_line_of_a_log_says_everything():
    assert plain_line("preprocess", JOB, FAST) == (
        "preprocess: 43 % (1.2 of 2.8 GB), 19 s left, 85 MB/s, 21.4M tokens/s, 0 rejected, shards 4 of 11"
    )


@pytest.mark.parametrize(
    ("amounts", "speed", "line"),
    [
        (Amounts("bytes", 0, None), Speed(), "x: 0 bytes"),
        (Amounts("bytes", 5_000_000, None), Speed(900.0), "x: 5 MB, 900 B/s"),
        (Amounts("bytes", 999, 5_000), Speed(), "x: 19 % (999 bytes of 5 kB)"),
        (Amounts("bytes", 0, 0), Speed(), "x: 0 bytes"),
        (Amounts("sections", 3, 14), Speed(0.1), "x: 21 % (3 of 14 sections), 1 min 50 s left"),
        (Amounts("rows", 3 * 10**6, 4 * 10**6), Speed(5e4), "x: 75 % (3M of 4M rows), 20 s left, 50,000 rows/s"),
        (Amounts("documents", 1, None), Speed(), "x: 1 document"),
        (Amounts("bytes", 999_000, 1_000_000), Speed(), "x: 99 % (999 kB of 1 MB)"),
    ],
)  # fmt: skip
def test_a_line_says_what_is_known(amounts, speed, line):
    assert plain_line("x", amounts, speed) == line
