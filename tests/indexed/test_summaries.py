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
from tokenloom.errors import DatasetFormatError
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.lengths import (
    PERCENTILES,
    DatasetStatistics,
    DocumentLengths,
    dataset_statistics,
    length_histogram,
)
from tokenloom.rendering.words import name_of

LENGTHS = st.lists(st.integers(0, 2**34) | st.integers(0, 300) | st.integers(2**16 - 3, 2**16 + 3), max_size=60)


class Lengths:
    """What is asked of a dataset."""

    idx_path = "lengths.idx"

    def __init__(self, documents, *, num_tokens=None):
        rows = [row for document in documents for row in document]
        self.sequence_lengths = np.array(rows, dtype=np.int64)
        self.document_indices = np.cumsum([0, *map(len, documents)], dtype=np.int64)
        self.num_documents = len(documents)
        self.num_tokens = sum(rows) if num_tokens is None else num_tokens


def counted(*lengths: int) -> DocumentLengths:
    return DocumentLengths([Lengths([[length] for length in lengths])])


def test_documents_of_a_pair_are_counted(tmp_path):
    with IndexedDatasetBuilder(f"{tmp_path}/corpus.bin", dtype=np.uint16) as builder:
        builder.add_document([1, 2, 3], [2, 1])
        builder.end_document()  # one without sequences
        builder.add_document([4], [1])
        builder.add_document([], [0])
        builder.finalize(f"{tmp_path}/corpus.idx")
    found = DocumentLengths([IndexedDataset(f"{tmp_path}/corpus")] * 2)
    assert (found.num_documents, found.num_tokens, found.num_empty, found.mean) == (8, 8, 4, 1.0)
    assert (found.longest, found.shortest) == ((3, 0, 0), (1, 2, 0))
    assert found.percentiles([50, 75, 100]) == [0, 1, 3]


def test_the_longest_documents_hold_a_share_of_the_tokens():
    lengths = counted(*[1] * 4, *[10] * 4)
    assert [lengths.share_of_tokens_in_longest(share) for share in (0, 0.25, 0.5, 1)] == [0, 20 / 44, 40 / 44, 1]


def test_bars_are_four_for_each_doubling_from_the_shortest_to_the_longest():
    found = counted(0, 5, 8, 9, 13).histogram()
    assert found.edges.tolist() == [5, 6, 7, 8, 10, 12, 14]
    assert found.counts.tolist() == [1, 0, 0, 2, 0, 1]
    assert found.tokens.tolist() == [5, 0, 0, 17, 0, 13]


@pytest.mark.parametrize(("documents", "num_tokens"), [([[3]], 4), ([[-3]], None), ([[5], [-5]], 0)])
def test_a_damaged_index_is_refused(documents, num_tokens):
    with pytest.raises(DatasetFormatError, match=r"`lengths\.idx`: expected lengths .*\nhint: .*verify"):
        DocumentLengths([Lengths(documents, num_tokens=num_tokens)])


@given(LENGTHS)
def test_counts_are_those_of_all_lengths(lengths):
    found = counted(*lengths)
    assert found.num_tokens == sum(lengths)
    filled = [length for length in lengths if length]
    if filled:
        assert (found.longest[0], found.shortest[0]) == (max(filled), min(filled))
        exact = np.percentile(lengths, [1, 50, 99], method="inverted_cdf")
        for near, value in zip(found.percentiles([1, 50, 99]), exact, strict=True):
            assert value / 1.016 <= near <= value
    bars = found.histogram()
    assert (np.diff(bars.edges) > 0).all()
    assert (bars.num_sequences, bars.num_tokens) == (len(filled), sum(filled))
    for start, stop, count in zip(bars.edges, bars.edges[1:], bars.counts, strict=False):
        assert count == sum(start <= length < stop for length in filled)
    assert 0 <= found.share_of_tokens_in_longest(0.01) <= 1


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


def test_buckets_of_a_histogram_are_half_open_powers_of_two():
    for length, bucket in (
        (0, (0, 1)),
        (1, (1, 2)),
        (2, (2, 4)),
        (3, (2, 4)),
        (1023, (512, 1024)),
        (1024, (1024, 2048)),
    ):
        assert statistics_of([length]).histogram == ((*bucket, 1),)
    assert statistics_of([2**31 - 1]).histogram == ((2**30, 2**31, 1),)


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
