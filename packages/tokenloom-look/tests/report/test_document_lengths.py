"""Documents counted by their length, as with lists."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tokenloom import IndexedDatasetBuilder
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom_look.report.document_lengths import DocumentLengths

LENGTHS = st.lists(st.integers(0, 2**34) | st.integers(0, 300) | st.integers(2**16 - 3, 2**16 + 3), max_size=60)


def counted(*lengths: int) -> DocumentLengths:
    rows = np.array(lengths, dtype=np.int64)
    bounds = np.arange(len(rows) + 1)
    counts = {"num_documents": len(rows), "num_tokens": sum(lengths), "idx_path": "lengths.idx"}
    return DocumentLengths([SimpleNamespace(sequence_lengths=rows, document_indices=bounds, **counts)])


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
