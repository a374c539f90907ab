"""Numbers and names in few characters."""

from __future__ import annotations

import pytest

from tokenloom.rendering.words import counted, name_of, short, size


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"), (999_999, "999,999"), (1_000_000, "1M"), (1_234_567, "1.23M"), (900 * 10**9, "900B"),
        (15 * 10**12, "15T"), (12_345 * 10**12, "12,345T"),
    ],
)  # fmt: skip
def test_numbers_fit_eight_columns(number, text):
    assert short(number) == text
    assert len(text) <= 8


def test_names_keep_how_they_begin_and_end():
    assert name_of("web") == "web"
    assert name_of("a_long_name_of_source_17", width=16) == "a_long_n…urce_17"


def test_things_are_counted():
    assert [counted(1, "pass"), counted(2, "pass"), counted(1000, "pair")] == ["1 pass", "2 passes", "1,000 pairs"]


@pytest.mark.parametrize(
    ("num_bytes", "said"),
    [(0, "0 bytes"), (1, "1 byte"), (1000, "1 kB"), (1_234_567_890, "1.23 GB"), (5 * 10**15, "5,000 TB")],
)
def test_sizes_have_three_digits(num_bytes: int, said: str):
    assert size(num_bytes) == said
