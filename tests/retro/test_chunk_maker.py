"""What makes chunks into texts and vectors: what is no text, what is refused of an embedder, and what decides it."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.retro.making import EOD, LetterEmbedder, LetterTokenizer, letters, maker
from tests.support import write_corpus

from tokenloom.errors import ConfigError
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.retro.chunk_maker import as_chunk_maker

ROWS = np.array([[1, 2, 3, EOD], [EOD, EOD, EOD, EOD], [26, EOD, 1, 2]], dtype=np.int64)


class Wrong(LetterEmbedder):
    """Returns what it is given."""

    def __init__(self, found: object) -> None:
        self.found = found

    def embed(self, texts, /):
        return self.found

    def count_tokens(self, texts, /):
        return self.found


def test_counts_and_vectors_are_those_of_the_embedder():
    texts = maker().texts(ROWS)
    assert maker().count_tokens(texts).tolist() == [3, 0, 2]
    vectors = maker().embed(texts)
    assert vectors.shape == (3, LetterEmbedder.dimension)
    assert (vectors == LetterEmbedder().embed(texts)).all()
    assert maker().embed([]).shape == (0, LetterEmbedder.dimension)


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (np.full((1, 16), np.nan, dtype=np.float32), "expected finite numbers, found nan in vector 0 of 1"),
        (np.full((1, 16), -np.inf, dtype=np.float32), "expected finite numbers, found -inf in vector 0 of 1"),
        (np.zeros((1, 15), dtype=np.float32), r"expected float32 of shape \[1, 16\], found shape \[1, 15\]"),
        (np.zeros((2, 16), dtype=np.float32), r"expected float32 of shape \[1, 16\], found shape \[2, 16\]"),
        (np.zeros((1, 16)), r"expected float32 of shape \[1, 16\], found float64"),
        (None, "embedder `letters`: expected an array, found NoneType"),
    ],
)
def test_an_embedder_that_answers_otherwise_is_told(found: object, message: str):
    with pytest.raises(ConfigError, match=message):
        replace(maker(), embedder=Wrong(found)).embed(["abc"])


@pytest.mark.parametrize("found", [np.array([-1]), np.array([1, 2]), np.array([1.0]), np.array(1)])
def test_counts_that_are_none_are_told(found: np.ndarray):
    with pytest.raises(ConfigError, match=r"embedder `letters`: expected (integers|counts)"):
        replace(maker(), embedder=Wrong(found)).count_tokens(["abc"])


def test_what_ends_or_fills_a_chunk_is_no_text(tmp_path: Path):
    assert maker().texts(np.array([[1, 2, EOD, EOD], [EOD] * 4])) == ["ab", ""]
    pair = IndexedDataset(write_corpus(tmp_path / "corpus", [letters("abcdef"), letters("xy")]))
    assert maker().span_texts(pair, np.array([[1, 0, 2], [0, 4, 7], [0, 0, 4]])) == ["xy", "ef", "abcd"]


def test_what_decides_texts_and_vectors_is_told():
    chunks = as_chunk_maker(LetterTokenizer(), LetterEmbedder(), chunk_length=8)
    assert chunks.identity() == {
        "tokenizer": LetterTokenizer.sha256,
        "vocab_size": 27,
        "eod": EOD,
        "embedder": "letters",
        "dimension": 16,
        "chunk_length": 8,
    }
    assert pickle.loads(pickle.dumps(chunks)).identity() == chunks.identity()

    class Unnamed(LetterTokenizer):
        sha256 = None

    assert replace(chunks, tokenizer=Unnamed()).identity()["tokenizer"] == "Unnamed"


def test_a_tokenizer_must_end_documents():
    class Endless(LetterTokenizer):
        eod = None

    with pytest.raises(ConfigError, match="expected a tokenizer with an end-of-document token and `detokenize`"):
        as_chunk_maker(Endless(), LetterEmbedder(), chunk_length=8)
    with pytest.raises(ConfigError, match="expected chunk_length of at least 1"):
        as_chunk_maker(LetterTokenizer(), LetterEmbedder(), chunk_length=0)
