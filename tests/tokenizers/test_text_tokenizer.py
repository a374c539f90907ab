from __future__ import annotations

import json
import pickle
import re

import numpy as np
import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st
from tests.preprocess.corpus import make_sentencepiece, sentencepiece_model, sources, tokenizer_of

from tokenloom.errors import TokenizerError
from tokenloom.tokenizers.engines import hard_texts
from tokenloom.tokenizers.kinds import KINDS
from tokenloom.tokenizers.plain import ByteTokenizer, NullTokenizer
from tokenloom.tokenizers.sentencepiece_model import SentencePieceTokenizer
from tokenloom.tokenizers.text_tokenizer import TextTokenizer

LOSSLESS = ("huggingface", "tiktoken", "byte")
OF_TEXT = ("huggingface", "sentencepiece", "unigram", "tiktoken", "byte")

every = pytest.mark.parametrize("tokenizer", [*OF_TEXT, "null"], indirect=True)


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

    assert (tokenizer.tokenize(""), tokenizer.detokenize([])) == ([], "")
    for empty in ([], [""], ["", ""]):
        encoded = tokenizer.encode_texts(empty)
        assert (len(encoded.tokens), encoded.lengths.tolist()) == (0, [0] * len(empty))


@every
def test_identity_is_json_and_a_copy_by_pickle_is_the_same(tokenizer: TextTokenizer):
    copy = pickle.loads(pickle.dumps(tokenizer))
    assert copy.unique_identifiers == tokenizer.unique_identifiers
    assert (copy.sha256, copy.kind, copy.path) == (tokenizer.sha256, tokenizer.kind, tokenizer.path)
    for text in texts_for(tokenizer)[:8]:
        assert copy.tokenize(text) == tokenizer.tokenize(text)
    assert json.loads(json.dumps(tokenizer.unique_identifiers))["sha256"] == tokenizer.sha256
    assert tokenizer.kind in KINDS
    assert 0 <= tokenizer.eod < tokenizer.vocab_size
    assert len(tokenizer.sha256) == 64


@pytest.mark.parametrize("tokenizer", OF_TEXT, indirect=True)
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
    message = rf"id {number} at index 1 out of range: .* has {tokenizer.vocab_size} ids"
    with pytest.raises(TokenizerError, match=message):
        tokenizer.detokenize([0, number])


def test_bytes_are_ids():
    tokenizer = ByteTokenizer()
    assert tokenizer.tokenize("a\x00é€") == [97, 0, 195, 169, 226, 130, 172]
    assert (tokenizer.vocab_size, tokenizer.eod, tokenizer.eos) == (259, 256, 256)
    assert (tokenizer.bos, tokenizer.pad) == (257, 258)
    assert tokenizer.detokenize([257, 97, 226, 130, 256, 258]) == "<bos>a\ufffd<eod><pad>"
    assert tokenizer.tokens_to_ids(["<eod>", "a", "é", "ab", ""]) == [256, 97, None, None, None]


def test_integers_are_ids():
    tokenizer = NullTokenizer(50)
    assert (tokenizer.vocab_size, tokenizer.eod, tokenizer.path) == (51, 50, "null:50")
    assert tokenizer.tokenize(" 7\t0\r\n50 007 ") == [7, 0, 50, 7]
    assert tokenizer.detokenize([7, 0, 50]) == "7 0 50"
    assert tokenizer.tokens_to_ids(["3", "50", "51", "x", "-1", "", "٣", "9" * 5000]) == [3, 50] + [None] * 6


WRONG = {"51": "51", "1 -2": "-", "1,2": ",", "1.5": ".", "٣": "٣", "1\u20032": "\\u2003", "word": "word"}
WRONG |= {"9" * 30: "9" * 30, "9" * 5000: "9" * 37 + "..."}


@pytest.mark.parametrize(("text", "found"), WRONG.items(), ids=range(len(WRONG)))
def test_what_is_no_id_is_named(text: str, found: str):
    with pytest.raises(TokenizerError, match=re.escape(f"'{found}' is not an integer in [0, 51)\nhint")):
        NullTokenizer(50).tokenize(text)


@given(ids=st.lists(st.integers(0, 2**31 - 2)))
def test_all_ids_survive_the_round_trip(ids: list[int]):
    tokenizer = NullTokenizer(2**31 - 2)
    assert tokenizer.tokenize(tokenizer.detokenize(ids)) == ids
    assert tokenizer.encode_texts([tokenizer.detokenize(ids)]).tokens.dtype == np.int64


MODELS = ("bpe", "unigram")


@pytest.fixture(params=MODELS)
def sides(request: pytest.FixtureRequest) -> tuple[SentencePieceTokenizer, sentencepiece.SentencePieceProcessor]:
    library = sentencepiece.SentencePieceProcessor(model_proto=sentencepiece_model(request.param))
    return make_sentencepiece(request.param), library


def test_ids_are_those_of_the_library(sides):
    tokenizer, library = sides
    texts = [*hard_texts(tokenizer), *sources()]
    assert [tokenizer.tokenize(text) for text in texts] == [library.encode(text) for text in texts]
    assert all(tokenizer.detokenize(library.encode(text)) == library.decode(library.encode(text)) for text in texts)


@pytest.mark.parametrize("kind", MODELS)
@given(text=st.text(max_size=60))
def test_ids_of_any_text_are_those_of_the_library(kind: str, text: str):
    tokenizer = make_sentencepiece(kind)
    assert tokenizer.encode_texts([text, text]).tokens.tolist() == 2 * tokenizer.backend.encode(text)


def test_roles_are_those_that_the_model_names(sides):
    tokenizer, library = sides
    assert (tokenizer.bos, tokenizer.eod, tokenizer.eos, tokenizer.pad, tokenizer.cls) == (1, 2, 2, 3, 4)
    assert tokenizer.vocab_size == library.get_piece_size() == 600
    assert tokenizer.vocab["<s>"] == 1
    assert tokenizer.inv_vocab[2] == "</s>"
    assert tokenizer.additional_special_tokens_ids == [library.piece_to_id(f"<extra_id_{index}>") for index in (0, 1)]
    # Spelled-out control symbols are text, user symbols are ids.
    assert not {1, 2, 3, 4} & set(tokenizer.tokenize("<s>a</s> <pad><cls>"))
    assert library.piece_to_id("<|user|>") in tokenizer.tokenize("a<|user|>b")


@pytest.mark.parametrize("data", [b"", b"garbage", b"\x0a\xff\xff\xff\xff\x0f"])
def test_what_is_no_model_is_named(data: bytes):
    with pytest.raises(TokenizerError, match=r"`x\.model` is not a SentencePiece model"):
        SentencePieceTokenizer("x.model", data)
