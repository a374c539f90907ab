"""What is counted and shown of pairs: lengths, statistics, pictures, cards."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.indexed.pairs import write_pair
from tests.rendering.cards import tables_of, tags_of, text_of
from tests.support import write_corpus

from tokenloom import IndexedDatasetBuilder
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.lengths import (
    PERCENTILES,
    DatasetStatistics,
    length_histogram,
)
from tokenloom.rendering.words import name_of


def lengths_of(*lengths: int) -> np.ndarray:
    return np.array(lengths, dtype=np.int32)


def test_lengths_are_counted_one_by_one_then_by_quarters_of_doublings():
    found = length_histogram([lengths_of(0, 0, 1, 7, 8, 9), lengths_of(10, 2**16, 2**31 - 1)])
    assert found.edges[:14].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 13, 16, 19]
    assert found.edges[-1] == 2**31
    assert found.counts.dtype == found.tokens.dtype == np.int64
    assert found.counts[:10].tolist() == [2, 1, 0, 0, 0, 0, 0, 1, 2, 1]
    assert found.tokens[:10].tolist() == [0, 1, 0, 0, 0, 0, 0, 7, 17, 10]
    assert (found.counts[-1], found.tokens[-1]) == (1, 2**31 - 1)
    assert (found.num_sequences, found.num_tokens) == (9, 35 + 2**16 + 2**31 - 1)


@given(st.lists(st.lists(st.one_of(st.integers(0, 40), st.integers(0, 2**31 - 1)), max_size=20), max_size=4))
def test_counts_are_those_of_numpy_and_can_be_added(parts: list[list[int]]):
    blocks = [lengths_of(*part) for part in parts]
    found = length_histogram(blocks)
    everything = np.concatenate([lengths_of(), *blocks]).astype(np.int64)
    np.testing.assert_array_equal(found.counts, np.histogram(everything, found.edges)[0])
    assert found.num_tokens == everything.sum()
    added = sum((length_histogram([block]) for block in blocks), start=length_histogram([]))
    np.testing.assert_array_equal(added.tokens, found.tokens)


@pytest.fixture
def statistics_of(tmp_path):
    """Returns what makes the statistics of a dataset whose sequences have these lengths."""

    def make(lengths):
        with IndexedDatasetBuilder(f"{tmp_path}/made.bin", dtype=np.uint16) as builder:
            builder.append_block(np.zeros(sum(lengths), dtype=np.uint16), np.array(lengths, dtype=np.int32))
            builder.finalize(f"{tmp_path}/made.idx")
        return IndexedDataset(f"{tmp_path}/made").statistics()

    return make


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


def test_buckets_of_a_histogram_are_half_open_powers_of_two(statistics_of):
    for length, bucket in (
        (0, (0, 1)),
        (1, (1, 2)),
        (2, (2, 4)),
        (3, (2, 4)),
        (1023, (512, 1024)),
        (1024, (1024, 2048)),
    ):
        assert statistics_of([length]).histogram == ((*bucket, 1),)


def test_statistics_agree_with_numpy(rng, statistics_of):
    lengths = rng.integers(0, 5000, size=int(rng.integers(1, 500))).tolist()
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


HOSTILE = "<script>alert(1)</script>&\u202e\x1b[31m'\""


def test_a_pair_shows_its_counts(tmp_path):
    prefix = write_corpus(tmp_path / "a", [[1] * 16, [1] * 16, [1] * 100])
    dataset = IndexedDataset(prefix)
    assert tables_of(dataset._repr_html_()) == [
        [
            ["path", name_of(prefix, width=120)],
            ["documents", "3"],
            ["sequences", "3"],
            ["tokens", "132"],
            ["dtype", "uint16"],
            ["bytes", "264"],
        ]
    ]
    assert text_of(dataset._repr_html_()).startswith("IndexedDataset")


def test_a_hostile_path_is_a_text(tmp_path):
    folder = tmp_path / HOSTILE.replace("/", "|")
    folder.mkdir()
    shown = IndexedDataset(write_corpus(folder / "a", [[1]]))._repr_html_()
    assert "script" not in tags_of(shown)
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    assert re.search(r"&lt;script&gt;alert\(1\)", shown)
