from __future__ import annotations

import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st
from tests.preprocess.corpus import make_sentencepiece, sentencepiece_model, sources

from tokenloom.errors import TokenizerError
from tokenloom.tokenizers.engines import hard_texts
from tokenloom.tokenizers.sentencepiece_model import SentencePieceTokenizer

KINDS = ("bpe", "unigram")


@pytest.fixture(params=KINDS)
def sides(request: pytest.FixtureRequest) -> tuple[SentencePieceTokenizer, sentencepiece.SentencePieceProcessor]:
    library = sentencepiece.SentencePieceProcessor(model_proto=sentencepiece_model(request.param))
    return make_sentencepiece(request.param), library


def test_ids_are_those_of_the_library(sides):
    tokenizer, library = sides
    texts = [*hard_texts(tokenizer), *sources()]
    assert [tokenizer.tokenize(text) for text in texts] == [library.encode(text) for text in texts]
    assert all(tokenizer.detokenize(library.encode(text)) == library.decode(library.encode(text)) for text in texts)


@pytest.mark.parametrize("kind", KINDS)
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


def test_control_symbols_are_text_and_user_symbols_are_ids(sides):
    tokenizer, library = sides
    assert not {1, 2, 3, 4} & set(tokenizer.tokenize("<s>a</s> <pad><cls>"))
    assert library.piece_to_id("<|user|>") in tokenizer.tokenize("a<|user|>b")


@pytest.mark.parametrize("data", [b"", b"garbage", b"\x0a\xff\xff\xff\xff\x0f"])
def test_what_is_no_model_is_named(data: bytes):
    with pytest.raises(TokenizerError, match=r"`x\.model` is not a SentencePiece model"):
        SentencePieceTokenizer("x.model", data)
