"""Documents counted by their length, as with lists."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenloom import IndexedDatasetBuilder
from tokenloom.errors import DatasetFormatError
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom_look.report.document_lengths import DocumentLengths

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
