"""Numbers of documents and of their sequences."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.support import write_corpus, write_sentences

from tokenloom.errors import ConfigError
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.retro.document_numbers import DocumentNumbers, check_one_sequence_each, checked_document


def pair_of(folder: Path, documents: list[list[list[int]]]) -> IndexedDataset:
    return IndexedDataset(write_sentences(folder / "data", documents))


def test_documents_without_text_have_no_sequence(tmp_path: Path):
    pair = pair_of(tmp_path, [[], [[1]], [], [], [[2, 3]], []])
    numbers = DocumentNumbers(pair)
    assert numbers.of_sequences(np.array([0, 1, 1, 0], dtype=np.uint32)).tolist() == [1, 4, 4, 1]
    assert [list(numbers.sequences_of(document)) for document in range(6)] == [[], [0], [], [], [1], []]
    assert numbers.with_empty_ones(np.array([1, 0])).tolist() == [4, 1, 0, 2, 3, 5]
    for start in range(3):
        for stop in range(start, 3):
            check_one_sequence_each(pair, start, stop)


def test_numbers_are_the_same_where_all_have_one(tmp_path: Path):
    numbers = DocumentNumbers(IndexedDataset(write_corpus(tmp_path / "data", [[1], [2]])))
    assert numbers.of_sequences(np.array([1, 0])).tolist() == [1, 0]
    assert list(numbers.sequences_of(1)) == [1]
    assert numbers.with_empty_ones(np.array([1, 0])).tolist() == [1, 0]


def test_documents_are_those_that_are_there(tmp_path: Path):
    pair = pair_of(tmp_path, [[[1]], [], [[2]]])
    assert [checked_document(pair, document) for document in (0, 2, -1, -3)] == [0, 2, 2, 0]
    for document in (-4, 3):
        with pytest.raises(IndexError, match=f"document {document} of `.*data` was asked for, but it has 3"):
            checked_document(pair, document)


def test_documents_of_several_sequences_are_told_where_they_are(tmp_path: Path):
    pair = pair_of(tmp_path, [[[1]], [], [[2], [3], [4]], []])
    check_one_sequence_each(pair, 0, 1)
    for start, stop in ((0, 2), (1, 2), (2, 3), (3, 4), (1, 4)):
        with pytest.raises(ConfigError, match="of one sequence each, found 3 sequences in document 2"):
            check_one_sequence_each(pair, start, stop)
    with pytest.raises(ConfigError, match=r"expected sequences in \[0, 4\), got \[2, 5\)"):
        check_one_sequence_each(pair, 2, 5)


def test_a_pair_without_sequences(tmp_path: Path):
    pair = pair_of(tmp_path, [[], []])
    check_one_sequence_each(pair, 0, 0)
    assert DocumentNumbers(pair).with_empty_ones(np.array([], dtype=np.int64)).tolist() == [0, 1]
