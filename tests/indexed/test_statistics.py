"""Counts and length distribution."""

from __future__ import annotations

import numpy as np
import pytest
from tests.indexed.pairs import write_pair

from tokenloom import IndexedDataset
from tokenloom.indexed.statistics import PERCENTILES, DatasetStatistics, dataset_statistics


def statistics_of(lengths):
    return dataset_statistics(
        np.array(lengths, dtype=np.int32), num_documents=7, num_tokens=sum(lengths), dtype=np.dtype(np.uint16)
    )


def test_statistics_of_a_small_dataset(tmp_path):
    prefix = write_pair(tmp_path / "corpus", [[[1, 2, 3], [4]], [[]], [[5, 6]], []], dtype=np.uint16)
    assert IndexedDataset(prefix).statistics() == DatasetStatistics(
        num_sequences=4,
        num_documents=4,
        num_tokens=6,
        num_bytes=12,
        dtype="uint16",
        shortest=0,
        longest=3,
        mean_length=1.5,
        num_empty=1,
        percentiles=((1, 0), (5, 0), (25, 0), (50, 1), (75, 2), (95, 2), (99, 2)),
        histogram=((0, 1, 1), (1, 2, 1), (2, 4, 2)),
    )


def test_statistics_of_an_empty_dataset(tmp_path):
    statistics = IndexedDataset(write_pair(tmp_path / "corpus", [])).statistics()
    assert statistics.num_sequences == statistics.num_documents == statistics.num_tokens == 0
    assert (statistics.shortest, statistics.longest, statistics.mean_length) == (0, 0, 0.0)
    assert (statistics.percentiles, statistics.histogram) == ((), ())


@pytest.mark.parametrize(
    ("length", "bucket"),
    [
        (0, (0, 1)),
        (1, (1, 2)),
        (2, (2, 4)),
        (3, (2, 4)),
        (4, (4, 8)),
        (1023, (512, 1024)),
        (1024, (1024, 2048)),
        (2**31 - 1, (2**30, 2**31)),
    ],
)
def test_histogram_buckets_are_half_open_powers_of_two(length, bucket):
    assert statistics_of([length]).histogram == ((*bucket, 1),)


def test_a_histogram_shows_gaps_but_no_empty_ends():
    assert statistics_of([2, 3, 17]).histogram == ((2, 4, 2), (4, 8, 0), (8, 16, 0), (16, 32, 1))


def test_statistics_agree_with_numpy(rng):
    lengths = rng.integers(0, 5000, size=int(rng.integers(1, 2000))).tolist()
    statistics = statistics_of(lengths)
    assert statistics.mean_length == pytest.approx(np.mean(lengths))
    assert (statistics.shortest, statistics.longest) == (min(lengths), max(lengths))
    assert sum(count for _, _, count in statistics.histogram) == len(lengths)
    for start, stop, count in statistics.histogram:
        assert count == sum(start <= length < stop for length in lengths)
    ordered = sorted(lengths)
    assert [percent for percent, _ in statistics.percentiles] == list(PERCENTILES)
    for percent, tokens in statistics.percentiles:
        assert tokens == ordered[(len(lengths) - 1) * percent // 100]
