"""Documents and samples as a person reads them."""

from __future__ import annotations

import numpy as np
import pytest
from tests.indexed.pairs import write_pair
from tests.support import StandInTokenizer, make_config, make_dataset

from tokenloom.datasets.mock import MockGPTDataset, MockGPTLowLevelDataset
from tokenloom.datasets.splits import Split
from tokenloom.errors import ConfigError
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.inspect.show import document_pieces, sample_pieces

CORPUS = [[[1, 2, 3]], [], [[4, 5, 6, 7], [8, 9]], [[10, 11, 12, 13, 14]]]
"""Rows of the index: 0, 1, 2 and 3; document 1 has none, document 2 has two."""


class Letters:
    """Decodes 1 to a, 2 to b, and so on."""

    def detokenize(self, ids):
        assert isinstance(ids, list)
        return "".join(chr(ord("a") + token - 1) for token in ids)


@pytest.fixture
def prefix(tmp_path):
    return write_pair(tmp_path / "corpus", CORPUS)


def readable(pieces):
    return [(piece.heading(), piece.text) for piece in pieces]


def test_a_document_is_its_sequences(prefix):
    dataset = IndexedDataset(prefix)
    assert readable(document_pieces(dataset, 0, Letters())) == [("document 0, all 3 tokens", "abc")]
    assert readable(document_pieces(dataset, 1, Letters())) == []
    assert readable(document_pieces(dataset, 2, Letters())) == [
        ("document 2, sequence 0 of 2, all 4 tokens", "defg"),
        ("document 2, sequence 1 of 2, all 2 tokens", "hi"),
    ]
    assert readable(document_pieces(dataset, -1, None)) == [("document 3, all 5 tokens", "10 11 12 13 14")]


def test_modes_do_not_matter(tmp_path):
    dataset = IndexedDataset(write_pair(tmp_path / "modes", CORPUS, multimodal=True), multimodal=True)
    assert [piece.ids for piece in document_pieces(dataset, 2, None)] == [(4, 5, 6, 7), (8, 9)]


@pytest.mark.parametrize("document", [4, -5])
def test_a_document_that_does_not_exist_is_an_index_error(prefix, document):
    with pytest.raises(IndexError, match=f"^document {document} of `{prefix}` was asked for, but it has 4$"):
        document_pieces(IndexedDataset(prefix), document, None)


@pytest.mark.parametrize("mmap_bin_files", [True, False])
def test_a_sample_names_the_documents_that_show_would_find(prefix, mmap_bin_files):
    dataset = make_dataset(prefix, sequence_length=6, indices=[0, 1, 2, 3], mmap_bin_files=mmap_bin_files)
    data = IndexedDataset(prefix)
    for k in range(len(dataset)):
        pieces = sample_pieces(dataset, k, Letters())
        ids = [token for piece in pieces for token in piece.ids]
        assert ids[:-1] == dataset.sample(k)["tokens"].tolist()
        assert ids[1:] == dataset.sample(k)["labels"].tolist()
        for piece in pieces:
            whole = document_pieces(data, piece.document, Letters())[piece.sequence]
            assert piece.ids == whole.ids[piece.start : piece.stop]
            assert piece.text == whole.text[piece.start : piece.stop]
            assert (piece.num_tokens, piece.num_sequences) == (whole.num_tokens, whole.num_sequences)


def test_a_part_of_a_document_says_which(prefix):
    dataset = make_dataset(prefix, sequence_length=2, indices=[3])
    headings = [piece.heading() for k in np.argsort(dataset.shuffle_index) for piece in sample_pieces(dataset, k, None)]
    assert headings == ["document 3, tokens 0 to 2 of 5", "document 3, tokens 2 to 4 of 5"]


def test_made_up_data_can_be_shown():
    data = MockGPTLowLevelDataset(StandInTokenizer())
    dataset = MockGPTDataset(data, None, np.arange(1, dtype=np.int32), None, Split.train, make_config(None))
    (piece,) = sample_pieces(dataset, int(np.argsort(dataset.shuffle_index)[0]), None)
    assert (piece.heading(), piece.text) == ("document 0, tokens 0 to 4 of 3484", "1 2 3 4 5")


@pytest.mark.parametrize("error", [OverflowError("out of range"), ValueError("no such id")])
def test_tokens_of_another_tokenizer_are_reported(prefix, error):
    class Other:
        def detokenize(self, ids):
            raise error

    with pytest.raises(ConfigError) as caught:
        document_pieces(IndexedDataset(prefix), 0, Other())
    assert str(caught.value) == (
        f"the tokenizer cannot decode these tokens: {error}\nhint: was the data made with this tokenizer?"
    )
