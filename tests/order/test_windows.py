"""Windows over a stream of documents."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tests.reference.gpt import count_windows
from tests.reference.windows import build_sample_index as slow_sample_index

from tokenloom._native import WindowReader
from tokenloom.kernels.order import build_sample_index
from tokenloom.order.windows import (
    SpanBatch,
    Spans,
    num_windows,
    span_mismatch,
)

LENGTHS = np.array([4, 6, 3], dtype=np.int32)


def int64s(*values):
    return np.array(values, dtype=np.int64)


def reader_of(lengths, stream, rows, shuffle, *, window_length, extra=1):
    arrays = [np.asarray(each, dtype=np.int32) for each in (lengths, stream, rows)]
    shape = {"window_length": window_length, "extra": extra}
    num_tokens = sum(lengths[document] for document in stream)
    return WindowReader(*arrays, np.asarray(shuffle, dtype=np.uint32), num_tokens=num_tokens, **shape)


@given(
    lengths=st.lists(st.integers(0, 9), min_size=1, max_size=12),
    length=st.integers(1, 10),
    extra=st.integers(0, 1),
    keep_partial=st.booleans(),
    dtype=st.sampled_from([np.int32, np.int64]),
    documents=st.sampled_from([np.int32, np.int64]),
    data=st.data(),
)
def test_windows_are_those_of_the_slow_twins(lengths, length, extra, keep_partial, dtype, documents, data):
    stream = data.draw(st.lists(st.integers(0, len(lengths) - 1), min_size=1, max_size=30))
    tokens = sum(lengths[document] for document in stream)
    count = num_windows(tokens, length, extra=extra, keep_partial=keep_partial)
    assert count == count_windows(tokens, sequence_length=length, extra=extra, keep_partial=keep_partial)
    shape = {"window_length": length, "extra": extra, "num_windows": count}
    arrays = np.array(lengths, dtype=np.int32), np.array(stream, dtype=documents)
    rows = build_sample_index(*arrays, **shape, dtype=dtype)
    slow = slow_sample_index(lengths, stream, **shape)
    assert (list(map(tuple, rows.tolist())), rows.dtype) == (slow, dtype)

    # Window j must be tokens [j * length, (j + 1) * length + extra) of the stream.
    flat = [(document, offset) for document in stream for offset in range(lengths[document])]
    reader = reader_of(lengths, stream, rows, range(count), window_length=length, extra=extra)
    batch = SpanBatch(*reader.spans(np.arange(count), keep_empty=False))
    assert len(batch) == count
    for number, spans in enumerate(batch):
        covered = [
            (document, offset)
            for document, start, stop in zip(
                spans.documents.tolist(), spans.starts.tolist(), spans.stops.tolist(), strict=True
            )
            for offset in range(start, stop)
        ]
        assert covered == flat[number * length : (number + 1) * length + extra]
    assert span_mismatch(reader, count) is None


def test_spans_know_where_documents_meet():
    spans = Spans(int64s(7, 3), int64s(0, 4), int64s(2, 3))
    assert len(spans) == 2
    assert spans.stops.tolist() == [2, 7]
    assert spans.num_tokens == 5
    assert spans.boundaries.tolist() == [0, 2, 5]


def test_counts_of_windows_are_exact_beyond_every_float():
    assert num_windows(2**60 + 1, 1, extra=1, keep_partial=False) == 2**60
    assert num_windows(2**24 + 2, 1, extra=0, keep_partial=True) == 2**24 + 2
    assert num_windows(0, 4, extra=1, keep_partial=True) == 0


def test_indices_of_other_data_are_found_out():
    rows = build_sample_index(LENGTHS, int64s(0, 1, 2), window_length=4, extra=1, num_windows=3, dtype=np.int32)

    def misfit(lengths, shuffle=(0, 1, 2)):
        return span_mismatch(reader_of(lengths, [0, 1, 2], rows, shuffle, window_length=4), 3)

    assert misfit([4, 6, 3]) is None
    assert misfit([4, 6, 3], shuffle=(2, 0, 1)) is None
    assert misfit([5, 5, 3]) == "expected sample 0 to cover 5 tokens, found 6"
    assert misfit([3, 7, 3]) == "expected sample 0 to cover 5 tokens, found 4"
    assert "cuts sequence" in misfit([4, 3, 6])
    assert misfit([4, 6, 3], shuffle=(0, 1, 3)) == "shuffle index names window 3 of 3"
