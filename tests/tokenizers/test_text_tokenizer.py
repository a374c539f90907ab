"""What every kind of tokenizer must do: one suite for all of them."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.preprocess.corpus import (
    sources,
    tokenizer_of,
)

from tokenloom.errors import TokenizerError
from tokenloom.tokenizers.engines import hard_texts
from tokenloom.tokenizers.kinds import KINDS
from tokenloom.tokenizers.text_tokenizer import TextTokenizer

LOSSLESS = ("huggingface", "tiktoken", "byte")
OF_TEXT = ("huggingface", "sentencepiece", "unigram", "tiktoken", "byte")

every = pytest.mark.parametrize("tokenizer", [*OF_TEXT, "null"], indirect=True)
every_of_text = pytest.mark.parametrize("tokenizer", OF_TEXT, indirect=True)


@pytest.fixture
def tokenizer(request: pytest.FixtureRequest) -> TextTokenizer:
    return tokenizer_of(request.param)


def texts_for(tokenizer: TextTokenizer) -> list[str]:
    if tokenizer.kind == "null":
        return ["", "0", " 12\n\t4999  7 ", "5000", " ".join(map(str, range(5001)))]
    return [*hard_texts(tokenizer), *sources()]


@every
def test_batches_give_the_ids_of_single_texts(tokenizer: TextTokenizer):
    texts = texts_for(tokenizer)
    expected = [tokenizer.tokenize(text) for text in texts]
    encoded = tokenizer.encode_texts(texts)
    assert encoded.lengths.dtype == np.int64
    assert encoded.lengths.tolist() == [len(row) for row in expected]
    assert encoded.tokens.tolist() == [token for row in expected for token in row]
    assert all(type(token) is int and 0 <= token < tokenizer.vocab_size for row in expected for token in row)


@every
def test_nothing_comes_of_nothing(tokenizer: TextTokenizer):
    assert (tokenizer.tokenize(""), tokenizer.detokenize([])) == ([], "")
    for texts in ([], [""], ["", ""]):
        encoded = tokenizer.encode_texts(texts)
        assert (len(encoded.tokens), encoded.lengths.tolist()) == (0, [0] * len(texts))


@every
def test_a_copy_by_pickle_is_the_same(tokenizer: TextTokenizer):
    copy = pickle.loads(pickle.dumps(tokenizer))
    assert copy.unique_identifiers == tokenizer.unique_identifiers
    assert (copy.sha256, copy.kind, copy.path) == (tokenizer.sha256, tokenizer.kind, tokenizer.path)
    for text in texts_for(tokenizer)[:8]:
        assert copy.tokenize(text) == tokenizer.tokenize(text)


@every
def test_identity_is_json_and_roles_are_ids(tokenizer: TextTokenizer):
    assert json.loads(json.dumps(tokenizer.unique_identifiers))["sha256"] == tokenizer.sha256
    assert tokenizer.kind in KINDS
    assert 0 <= tokenizer.eod < tokenizer.vocab_size
    assert len(tokenizer.sha256) == 64


@every_of_text
def test_lone_surrogates_count_as_question_marks(tokenizer: TextTokenizer):
    assert tokenizer.tokenize("a\ud800b\udfff") == tokenizer.tokenize("a?b?")


@pytest.mark.parametrize("name", LOSSLESS)
@given(text=st.text(max_size=80))
def test_every_text_survives_the_round_trip(name: str, text: str):
    tokenizer = tokenizer_of(name)
    assert tokenizer.detokenize(tokenizer.tokenize(text)) == text


@pytest.mark.parametrize("name", ["sentencepiece", "unigram", "tiktoken", "byte", "null"])
@pytest.mark.parametrize("number", [-1, 10**6])
def test_ids_of_another_tokenizer_are_told(name: str, number: int):
    tokenizer = tokenizer_of(name)
    with pytest.raises(
        TokenizerError, match=rf"expected ids in \[0, {tokenizer.vocab_size}\), found {number} at index 1"
    ):
        tokenizer.detokenize([0, number])
