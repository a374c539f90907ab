"""Tables of chunks and documents, compared with literal ones and a slow twin."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.reference.chunk_table import chunk_rows
from tests.support import write_sentences

from tokenloom.errors import ConfigError
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom_retro.chunk_table import chunk_block, chunk_spans, documents_in, num_train_chunks

EOD = 9


def spans_of(lengths, ends, chunk_length, **more):
    return chunk_spans(np.array(lengths, dtype=np.int64), np.array(ends, dtype=bool), chunk_length, **more)


@given(st.lists(st.lists(st.integers(0, EOD), max_size=20), max_size=20), st.integers(1, 25))
def test_chunks_match_the_slow_reference(documents, chunk_length):
    ends = [bool(tokens) and tokens[-1] == EOD for tokens in documents]
    found = spans_of([len(tokens) for tokens in documents], ends, chunk_length)
    assert [tuple(row) for row in found.tolist()] == chunk_rows(documents, EOD, chunk_length)


def test_a_chunk_without_tokens_for_the_embedder_is_invalid():
    spans = spans_of([4, 2, 3], [False, False, False], 2, first_document=5)
    block = chunk_block(spans, np.array([7, 0, 0, 3, 1]), range(5, 8))
    assert block.chunks_valid.tolist() == [[5, 0, 2, 7], [7, 0, 2, 3], [7, 2, 3, 1]]
    assert block.chunks_invalid.tolist() == [[5, 2, 4, 0], [6, 0, 2, 0]]
    assert block.doc_offsets.tolist() == [[5, 1], [6, 1], [7, 3]]
    assert [array.dtype for array in (block.chunks_valid, block.doc_offsets)] == [np.uint32, np.uint64]
    assert [num_train_chunks(block.chunks_valid, number) for number in (0, 6, 7, 8, 99)] == [0, 1, 1, 3, 3]


def test_documents_of_several_sequences_are_errors(tmp_path: Path):
    pair = IndexedDataset(write_sentences(tmp_path / "data", [[[1]], [], [[2], [3], [4]], []]))
    lengths, ends = documents_in(pair, 0, 1, eod=EOD)
    assert (lengths.tolist(), ends.tolist()) == ([1], [False])
    with pytest.raises(ConfigError, match="document 2 must have one sequence, got 3"):
        documents_in(pair, 1, 4, eod=EOD)
