"""Chunks of documents: literal tables, a slow twin, the reference's own functions, and what cannot be cut."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.reference.chunk_table import chunk_rows
from tests.support import write_corpus, write_sentences

from tokenloom import ConfigError, IndexedDataset
from tokenloom.retro.chunk_table import (
    check_enough_chunks,
    chunk_block,
    chunk_spans,
    documents_in,
    merged_chunks,
    merged_offsets,
    merged_rows,
    num_sampled_chunks,
    num_train_chunks,
    num_train_documents,
    train_fraction,
)
from tokenloom.retro.project import DatasetInfo

EOD = 9

INFO = DatasetInfo(
    ratio=1.0,
    prefix="web",
    n_docs=10,
    n_docs_train=8,
    n_chunks=50,
    n_chunks_train=40,
    n_chunks_invalid=2,
    n_chunks_sampled=15,
)


def spans_of(lengths, ends, chunk_length, **more):
    return chunk_spans(np.array(lengths, dtype=np.int64), np.array(ends, dtype=bool), chunk_length, **more)


def test_chunks_end_with_their_document():
    spans = spans_of([5, 4, 1, 2], [True, False, True, True], 2)
    assert spans.tolist() == [[0, 0, 2], [0, 2, 4], [1, 0, 2], [1, 2, 4], [3, 0, 1]]
    assert spans.dtype == np.uint32


@pytest.mark.parametrize("length", [1, 63, 64, 65, 128, 129])
def test_a_document_shorter_than_a_chunk_is_one_chunk(length):
    whole, rest = divmod(length, 64)
    expected = [[7, 64 * i, 64 * (i + 1)] for i in range(whole)] + [[7, 64 * whole, length]] * (rest > 0)
    assert spans_of([length], [False], 64, first_document=7).tolist() == expected
    assert spans_of([length + 1], [True], 64, first_document=7).tolist() == expected


@pytest.mark.parametrize(("lengths", "ends"), [([], []), ([1, 1], [True, True]), ([0, 0], [False, False])])
def test_nothing_but_ends_has_no_chunks(lengths, ends):
    assert spans_of(lengths, ends, 64).shape == (0, 3)
    block = chunk_block(spans_of(lengths, ends, 64), np.empty(0, dtype=np.int64), range(len(lengths)))
    assert (block.chunks_valid.shape, block.chunks_invalid.shape) == ((0, 4), (0, 4))
    assert block.doc_offsets.tolist() == [[number, 0] for number in range(len(lengths))]


@given(st.lists(st.lists(st.integers(0, EOD), max_size=20), max_size=20), st.integers(1, 25))
def test_chunks_are_those_of_the_slow_twin(documents, chunk_length):
    ends = [bool(tokens) and tokens[-1] == EOD for tokens in documents]
    found = spans_of([len(tokens) for tokens in documents], ends, chunk_length)
    assert [tuple(row) for row in found.tolist()] == chunk_rows(documents, EOD, chunk_length)


@given(st.lists(st.integers(0, 300), max_size=30), st.integers(0, 30), st.integers(1, 100))
def test_blocks_of_documents_make_up_the_whole(lengths, cut, chunk_length):
    ends = [length % 2 == 1 for length in lengths]
    parts = [
        spans_of(lengths[:cut], ends[:cut], chunk_length),
        spans_of(lengths[cut:], ends[cut:], chunk_length, first_document=min(cut, len(lengths))),
    ]
    assert np.array_equal(np.concatenate(parts), spans_of(lengths, ends, chunk_length))


def test_lengths_and_ends_are_read_from_the_data_set(tmp_path):
    documents = [[1, 2, EOD], [], [EOD], [EOD, 1]]
    write_corpus(str(tmp_path / "data"), [np.array(tokens, dtype=np.uint16) for tokens in documents])
    dataset = IndexedDataset(str(tmp_path / "data"))
    lengths, ends = documents_in(dataset, 0, 4, eod=EOD)
    assert (lengths.tolist(), ends.tolist()) == ([3, 0, 1, 2], [True, False, True, False])
    assert [row.tolist() for row in documents_in(dataset, 1, 3, eod=EOD)] == [[0, 1], [False, True]]
    assert [row.tolist() for row in documents_in(dataset, 2, 2, eod=EOD)] == [[], []]


def test_documents_that_are_not_there_are_refused(tmp_path):
    write_corpus(str(tmp_path / "data"), [np.ones(3, dtype=np.uint16)])
    with pytest.raises(ConfigError, match=r"expected sequences in \[0, 1\), got \[0, 2\)"):
        documents_in(IndexedDataset(str(tmp_path / "data")), 0, 2, eod=EOD)


def test_documents_of_several_sequences_are_refused(tmp_path):
    prefix = str(tmp_path / "data")
    write_sentences(prefix, [[np.ones(3, dtype=np.uint16), np.ones(2, dtype=np.uint16)]])
    with pytest.raises(ConfigError, match="expected documents of one sequence each, found 2 sequences in document 0"):
        documents_in(IndexedDataset(prefix), 0, 1, eod=EOD)


def test_a_chunk_without_tokens_for_the_embedder_is_invalid():
    spans = spans_of([4, 2, 3], [False, False, False], 2, first_document=5)
    block = chunk_block(spans, np.array([7, 0, 0, 3, 1]), range(5, 8))
    assert block.chunks_valid.tolist() == [[5, 0, 2, 7], [7, 0, 2, 3], [7, 2, 3, 1]]
    assert block.chunks_invalid.tolist() == [[5, 2, 4, 0], [6, 0, 2, 0]]
    assert block.doc_offsets.tolist() == [[5, 1], [6, 1], [7, 3]]
    assert [array.dtype for array in (block.chunks_valid, block.doc_offsets)] == [np.uint32, np.uint64]
    assert [num_train_chunks(block.chunks_valid, number) for number in (0, 6, 7, 8, 99)] == [0, 1, 1, 3, 3]


def test_rows_of_merged_tables():
    chunks = np.array([[0, 0, 64, 9], [1, 0, 3, 1]], dtype=np.uint32)
    assert merged_chunks(2, chunks).tolist() == [[2, 0, 0, 64, 9], [2, 1, 0, 3, 1]]
    assert merged_chunks(2, chunks).dtype == np.uint32
    offsets = np.array([[0, 1], [1, 2]], dtype=np.uint64)
    assert merged_offsets(2, offsets, chunks_before=40).tolist() == [[2, 0, 41], [2, 1, 42]]
    assert [merged_rows(INFO, kind) for kind in ("sampled", "train", "valid")] == [range(15), range(40), range(40, 50)]


def test_sampled_chunks_are_shared_out_by_weight():
    assert num_sampled_chunks(100, [1.0]) == [100]
    assert num_sampled_chunks(100, [0.3, 0.3, 0.4]) == [30, 30, 40]
    assert num_sampled_chunks(10, [1, 1, 1]) == [3, 3, 3]


def test_the_train_split_is_a_percentage():
    assert [num_train_documents(1000, split) for split in ("98,2,0", "100,0,0", " 99.95 ,0.05,0")] == [980, 1000, 999]


@pytest.mark.parametrize("split", ["969,30,1", "0,100,0", "-5,5,0"])
def test_a_split_of_other_weights_is_refused(split):
    with pytest.raises(ConfigError, match="expected a percentage above 0 and at most 100 for train, found"):
        train_fraction(split)


def test_a_split_that_is_no_number_is_refused():
    with pytest.raises(ConfigError, match="the first weight of split 'most,1,1' is no number"):
        train_fraction("most,1,1")


def test_fewer_chunks_than_the_index_trains_on():
    check_enough_chunks(INFO)
    with pytest.raises(
        ConfigError, match="`web`: expected 41 chunks in the train split to train the index on, found 40"
    ):
        check_enough_chunks(replace(INFO, n_chunks_sampled=41))


WRONG = {
    "expected chunk_length of at least 1, found 0": lambda: spans_of([5], [True], 0),
    "expected as many ends as lengths, found 2 ends and 1 lengths": lambda: spans_of([5], [True, True], 8),
    "document 8: expected a length of 1 or more tokens, found 0": lambda: spans_of(
        [5, 0], [True, True], 8, first_document=7
    ),
    "document 1: expected a length of 0 or more tokens, found -3": lambda: spans_of([5, -3], [True, False], 8),
    f"expected documents and tokens below {2**32}, found document 0 and one of {2**32} tokens": lambda: spans_of(
        [2**32], [False], 64
    ),
    f"found document {2**32} and one of 1 tokens": lambda: spans_of([1], [False], 64, first_document=2**32),
    "expected a count of tokens per chunk, [1], found [2]": lambda: chunk_block(
        spans_of([5], [True], 8), np.array([1, 2]), range(1)
    ),
    f"expected counts of tokens in [0, {2**32}), found -1 to -1": lambda: chunk_block(
        spans_of([5], [True], 8), np.array([-1]), range(1)
    ),
    "expected weights above 0, found [1.0, 0.0]": lambda: num_sampled_chunks(5, [1, 0]),
}


@pytest.mark.parametrize("message", WRONG)
def test_what_cannot_be_a_table_is_refused(message):
    with pytest.raises(ConfigError) as caught:
        WRONG[message]()
    assert message in str(caught.value)
