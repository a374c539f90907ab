"""`tokenloom.megatron.sample_counts`."""

from __future__ import annotations

import pytest

from tokenloom.errors import ConfigError
from tokenloom.megatron.sample_counts import step_batch_size_schedule


@pytest.mark.parametrize(
    ("text", "seq_length", "sizes"),
    [
        (
            "0:768 250B:1536 500B:3072 750B:6144",
            4096,
            ((0, 768), (61035156, 1536), (122070312, 3072), (183105468, 6144)),
        ),
        ("0:768, 61035156250:1536", None, ((0, 768), (61035156250, 1536))),
        ("1k:8,0:4", None, ((0, 4), (1000, 8))),  # any order, suffixes of samples
        ("0:1K 1e3:1.5K", None, ((0, 1000), (1000, 1500))),
        ("0:4 1_000:8 .5M:16", 10, ((0, 4), (100, 8), (50000, 16))),
        ("0:2.9 4.1:8.9", None, ((0, 2), (4, 8))),  # cut to integers
        ("0:4 0.00435K:8", None, ((0, 4), (4, 8))),
        ("0:4 2.3B:8 4.35B:16 0.57T:32", 1, ((0, 4), (2_300_000_000, 8), (4_350_000_000, 16), (570_000_000_000, 32))),
    ],
)
def test_text_is_read_as_the_reference_reads_it(text, seq_length, sizes):
    assert step_batch_size_schedule(text, seq_length).sizes == sizes


def test_products_are_in_double_precision():
    assert step_batch_size_schedule("0:4 4.35B:8", 1).sizes[1][0] == int(float("4.35") * 1_000_000_000)
    assert step_batch_size_schedule("0:4 1.001K:8").sizes[1][0] == int(float("1.001") * 1_000) == 1000


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "expected at least one"),
        ("5:4", "expected 0 as the consumed samples"),
        ("-5:4 0:8", "of at least 0, found -5"),
        ("0:4 8", "'8'"),
        ("0:4 x:8", "'x:8'"),
        ("0:4 nan:8", "'nan:8'"),
        ("0:4 inf:8", "'inf:8'"),
        ("0:4 0:8", "expected more than 0 as the consumed samples"),
        ("0:4 10:0", "batch size"),
    ],
)
def test_what_is_no_schedule_is_said(text, words):
    with pytest.raises(ConfigError, match=words):
        step_batch_size_schedule(text)


def test_two_thresholds_in_one_sample_are_said():
    with pytest.raises(ConfigError, match="expected more than 0 as the consumed samples"):
        step_batch_size_schedule("0:4 50:8", 100)
