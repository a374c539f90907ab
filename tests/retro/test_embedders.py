"""What an embedder is, how one is named, and what is said of answers that no index can take."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tokenloom import ConfigError, MissingExtraError
from tokenloom.retro.embedders import Embedder, as_embedder, check_embeddings, embeddings_of, token_counts_of


def letters(texts):
    """Counts the letters a to d of each text."""
    return np.array([[text.count(letter) for letter in "abcd"] for text in texts], dtype=np.float32)


class Answering:
    """An embedder of width 4 that answers as it is told."""

    name = "answering"
    dimension = 4

    def __init__(self, vectors=None, counts=None):
        self.vectors, self.counts = vectors, counts

    def embed(self, texts, /):
        return self.vectors

    def count_tokens(self, texts, /):
        return self.counts


def test_a_function_is_an_embedder():
    embedder = as_embedder(letters)
    assert isinstance(embedder, Embedder)
    assert (embedder.name, embedder.dimension) == (f"{__name__}.letters", 4)
    assert embeddings_of(embedder, ["abba", ""]).tolist() == [[2, 2, 0, 0], [0, 0, 0, 0]]
    assert token_counts_of(embedder, ["one two  three", " ", ""]).tolist() == [3, 0, 0]
    assert repr(embedder) == f"FunctionEmbedder('{__name__}.letters', dimension=4)"


def test_an_embedder_stays_what_it_is():
    embedder = Answering()
    assert as_embedder(embedder) is embedder


def test_vectors_may_be_tensors():
    embedder = as_embedder(lambda texts: torch.ones(len(texts), 3), name="ones")
    found = embeddings_of(embedder, ["a", "b"])
    assert type(found) is np.ndarray
    assert found.tolist() == [[1, 1, 1], [1, 1, 1]]


def test_without_texts_nothing_is_asked():
    embedder = Answering()
    assert embeddings_of(embedder, []).shape == (0, 4)
    assert token_counts_of(embedder, []).shape == (0,)


def test_vectors_that_lie_scattered_come_in_a_row():
    embedder = Answering(np.arange(16, dtype=np.float32).reshape(4, 4)[::2])
    assert embeddings_of(embedder, ["a", "b"]).flags.c_contiguous


GOOD = np.zeros((2, 4), dtype=np.float32)

WRONG_VECTORS = {
    "found list": [[0.0] * 4] * 2,
    "found float64 of shape [2, 4]": GOOD.astype(np.float64),
    "found int64 of shape [2, 4]": GOOD.astype(np.int64),
    "found float16 of shape [2, 4]": GOOD.astype(np.float16),
    "found shape [2, 5]": np.zeros((2, 5), dtype=np.float32),
    "found shape [1, 4]": GOOD[:1],
    "found shape [3, 4]": np.zeros((3, 4), dtype=np.float32),
    "found shape [8]": GOOD.reshape(-1),
    "found shape [1, 2, 4]": GOOD[None],
}


@pytest.mark.parametrize("found", WRONG_VECTORS)
def test_vectors_of_another_kind_are_refused(found):
    with pytest.raises(ConfigError) as caught:
        embeddings_of(Answering(WRONG_VECTORS[found]), ["a", "b"])
    assert caught.value.message.startswith("embedder `answering`: expected ")
    assert caught.value.message.endswith(found)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite_are_refused(value):
    vectors = GOOD.copy()
    vectors[1, 3] = value
    with pytest.raises(ConfigError, match=f"`answering`: expected finite numbers, found {value} in vector 1 of 2"):
        embeddings_of(Answering(vectors), ["a", "b"])


def test_infinities_of_both_signs_do_not_hide_each_other():
    vectors = np.array([[0, 0], [np.inf, -np.inf]], dtype=np.float32)
    with pytest.raises(ConfigError, match="index: expected finite numbers, found inf in vector 1 of 2"):
        check_embeddings(vectors, 2, where="index")


def test_the_largest_numbers_are_finite():
    check_embeddings(np.full((9, 2), np.finfo(np.float32).max), 2, where="index")


WRONG_COUNTS = {
    "expected integers of shape [2] as counts of tokens, found float64 of shape [2]": [1.0, 2.0],
    "expected integers of shape [2] as counts of tokens, found bool of shape [2]": [True, True],
    "expected integers of shape [2] as counts of tokens, found int64 of shape [1]": [1],
    "expected counts of tokens from 0 on, found -4 for text 1": [1, -4],
}


@pytest.mark.parametrize("message", WRONG_COUNTS)
def test_counts_of_another_kind_are_refused(message):
    with pytest.raises(ConfigError) as caught:
        token_counts_of(Answering(counts=np.array(WRONG_COUNTS[message])), ["a", "b"])
    assert caught.value.message == f"embedder `answering`: {message}"


WRONG_SOURCES = {
    "expected the name of an embedder, found 'word2vec'": "word2vec",
    "expected an embedder, a function of texts or a name, found 5": 5,
    "expected an embedder, a function of texts or a name, found <class": Answering,
    "expected `name` beside a function that has none of its own": lambda texts: letters(texts),
    "expected the folder or the name of a model after `bert:`, found none": "bert",
    "expected 64, 128, 256 as the dimension of `wordllama`, found 100": "wordllama:100",
    "the dimension of `wordllama` is no whole number": "wordllama:all",
}


@pytest.mark.parametrize("message", WRONG_SOURCES)
def test_what_is_no_embedder_is_refused(message):
    with pytest.raises(ConfigError) as caught:
        as_embedder(WRONG_SOURCES[message])
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda texts: np.zeros(4), "expected one vector for one text, found shape [4]"),
        (lambda texts: np.zeros((1, 0)), "expected one vector for one text, found shape [1, 0]"),
        (lambda texts: [[1.0]], "expected an array, found list"),
    ],
)
def test_a_function_without_vectors_is_refused(function, message):
    with pytest.raises(ConfigError) as caught:
        as_embedder(function, name="mine")
    assert caught.value.message == f"embedder `mine`: {message}"


def test_an_embedder_without_a_width_is_refused():
    embedder = Answering()
    embedder.dimension = 0
    with pytest.raises(ConfigError, match="expected the dimension of embedder `answering` of at least 1, found 0"):
        as_embedder(embedder)


def test_a_missing_library_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "transformers", None)
    with pytest.raises(MissingExtraError, match="`transformers` is not installed"):
        as_embedder("bert:bert-base-uncased")
