"""Lengths of documents, counted in bounded memory."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenloom import IndexedDataset, IndexedDatasetBuilder
from tokenloom.errors import DatasetFormatError
from tokenloom.indexed.document_lengths import DocumentLengths

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
    return DocumentLengths.of([Lengths([[length] for length in lengths])])


def test_documents_of_a_pair_are_counted(tmp_path):
    with IndexedDatasetBuilder(f"{tmp_path}/corpus.bin", dtype=np.uint16) as builder:
        builder.add_document([1, 2, 3], [2, 1])
        builder.end_document()  # one without sequences
        builder.add_document([4], [1])
        builder.add_document([], [0])
        builder.finalize(f"{tmp_path}/corpus.idx")
    found = DocumentLengths.of([IndexedDataset(f"{tmp_path}/corpus")] * 2)
    assert (found.num_documents, found.num_tokens, found.num_empty, found.mean) == (8, 8, 4, 1.0)
    assert (found.longest, found.shortest) == ((3, 0, 0), (1, 2, 0))
    assert found.percentiles([50, 75, 100]) == [0, 1, 3]


def test_nothing_has_no_lengths():
    found = counted()
    assert (found.num_documents, found.mean, found.percentiles([50])) == (0, 0.0, [])
    assert found.share_of_tokens_in_longest(0.01) == 0
    assert [part.tolist() for part in found.histogram()] == [[1], [], []]
    assert counted(0, 0).histogram()[1].tolist() == []


def test_bars_are_even_on_a_logarithmic_axis():
    edges, counts, tokens = counted(0, 1, 10, 99, 100, 999).histogram(most_bars=3)
    assert edges.tolist() == [1, 10, 100, 1000]
    assert counts.tolist() == [1, 2, 2]
    assert tokens.tolist() == [1, 109, 1099]


@pytest.mark.parametrize("longest", [9, 100, 5000, 65_000, 10**9])
def test_steps_of_bars_never_get_shorter(longest):
    edges, _, _ = counted(1, longest).histogram()
    steps = np.diff(edges)[:-1]
    assert (np.diff(steps[edges[1:-1] < 2**16]) >= 0).all()


def test_the_commonest_length_is_told():
    assert counted(0, 0, 0, 7, 512, 512, 90_000).commonest == (512, 2)
    assert counted(0).commonest[1] == 0


def test_the_longest_documents_hold_a_share():
    assert counted(*[1] * 99, 99).share_of_tokens_in_longest(0.01) == 0.5
    assert counted(4, 4).share_of_tokens_in_longest(0.25) == 0.25


@pytest.mark.parametrize(("documents", "num_tokens"), [([[3]], 4), ([[-3]], None), ([[5], [-5]], 0)])
def test_a_damaged_index_is_refused(documents, num_tokens):
    with pytest.raises(DatasetFormatError, match=r"`lengths\.idx`: expected lengths .*\nhint: .*verify"):
        DocumentLengths.of([Lengths(documents, num_tokens=num_tokens)])


@given(LENGTHS, st.integers(1, 60))
def test_counts_are_those_of_all_lengths(lengths, most_bars):
    found = counted(*lengths)
    assert found.num_tokens == sum(lengths)
    filled = [length for length in lengths if length]
    if filled:
        assert (found.longest[0], found.shortest[0]) == (max(filled), min(filled))
        exact = np.percentile(lengths, [1, 50, 99], method="inverted_cdf")
        for near, value in zip(found.percentiles([1, 50, 99]), exact, strict=True):
            assert value / 1.016 <= near <= value
    edges, counts, tokens = found.histogram(most_bars=most_bars)
    assert len(counts) <= most_bars + 1
    assert (np.diff(edges) > 0).all()
    assert (counts.sum(), tokens.sum()) == (len(filled), sum(filled))
    for start, stop, count in zip(edges, edges[1:], counts, strict=False):
        assert count == sum(start <= length < stop for length in filled)
    assert 0 <= found.share_of_tokens_in_longest(0.01) <= 1
