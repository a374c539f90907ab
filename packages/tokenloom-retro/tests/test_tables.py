"""Tables of chunks and of documents: literal ones, and a slow twin."""

from __future__ import annotations

import os
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.reference.chunk_table import chunk_rows
from tests.support import write_sentences

from tokenloom.errors import ConfigError
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom_retro.chunk_table import (
    chunk_block,
    chunk_spans,
    documents_in,
    individual_chunks,
    individual_paths,
    num_train_chunks,
)
from tokenloom_retro.project import RetroProject

EOD = 9


def spans_of(lengths, ends, chunk_length, **more):
    return chunk_spans(np.array(lengths, dtype=np.int64), np.array(ends, dtype=bool), chunk_length, **more)


def test_chunks_end_with_their_document():
    spans = spans_of([5, 4, 1, 2], [True, False, True, True], 2)
    assert spans.tolist() == [[0, 0, 2], [0, 2, 4], [1, 0, 2], [1, 2, 4], [3, 0, 1]]
    assert spans.dtype == np.uint32


@given(st.lists(st.lists(st.integers(0, EOD), max_size=20), max_size=20), st.integers(1, 25))
def test_chunks_are_those_of_the_slow_twin(documents, chunk_length):
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


BLOCKS = {
    "000-002.hdf5": ([[0, 0, 4, 4], [1, 0, 2, 2]], [[1, 2, 4, 0]], [[0, 1], [1, 2]]),
    "002-004.hdf5": ([], [], [[2, 0], [3, 0]]),
    "004-005.hdf5": ([[4, 0, 3, 3]], [], [[4, 1]]),
}
"""Valid and invalid chunks, and the number of valid ones up to the end of each document."""


@pytest.fixture
def project(tmp_path):
    project = RetroProject(tmp_path)
    folder = project.individual_folder("web/crawl")
    os.makedirs(folder)
    for name, (valid, invalid, offsets) in BLOCKS.items():
        with h5py.File(os.path.join(folder, name), "w") as file:  # as the reference: without rows, without columns
            file.create_dataset("chunks_valid", data=np.array(valid, dtype=np.uint32))
            file.create_dataset("chunks_invalid", data=np.array(invalid, dtype=np.uint32))
            file.create_dataset("doc_offsets", data=np.array(offsets, dtype=np.uint64))
    return project


@pytest.mark.slow
def test_blocks_are_put_together(project):
    assert [os.path.basename(path) for path in individual_paths(project, "web/crawl")] == list(BLOCKS)
    chunks = individual_chunks(project, "web/crawl", number=3)
    assert chunks.dtype == np.uint32
    assert chunks.tolist() == [[3, 0, 0, 4, 4], [3, 1, 0, 2, 2], [3, 4, 0, 3, 3]]
    assert individual_chunks(project, "web/crawl", number=3, name="chunks_invalid").tolist() == [[3, 1, 2, 4, 0]]


def pair_of(folder: Path, documents: list[list[list[int]]]) -> IndexedDataset:
    return IndexedDataset(write_sentences(folder / "data", documents))


@pytest.mark.slow
def test_documents_without_text_have_no_sequence(tmp_path: Path):
    pair = pair_of(tmp_path, [[], [[1]], [], [], [[2, EOD]], []])
    lengths, ends = documents_in(pair, 0, 2, eod=EOD)
    assert (lengths.tolist(), ends.tolist()) == ([1, 2], [False, True])


@pytest.mark.slow
def test_documents_of_several_sequences_are_told_where_they_are(tmp_path: Path):
    pair = pair_of(tmp_path, [[[1]], [], [[2], [3], [4]], []])
    documents_in(pair, 0, 1, eod=EOD)
    for start, stop in ((0, 2), (1, 2), (2, 3), (3, 4), (1, 4)):
        with pytest.raises(ConfigError, match="of one sequence each, found 3 sequences in document 2"):
            documents_in(pair, start, stop, eod=EOD)
