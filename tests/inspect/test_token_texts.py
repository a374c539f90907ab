"""The text of each single token."""

from __future__ import annotations

import functools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.preprocess.corpus import (
    byte_level_json,
    make_sentencepiece,
    make_tiktoken,
    make_tokenizer,
    word_level_json,
)
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from tokenloom.errors import ConfigError
from tokenloom.inspect.shown import token_texts
from tokenloom.tokenizers.load import load_tokenizer


def word_piece_json() -> str:
    words = ["[UNK]", "[SEP]", "play", "##ing", "##ed", "don", "'", "t", ",", ".", "the", "##s", "é"]
    backend = Tokenizer(models.WordPiece({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True, strip_accents=False)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    backend.add_special_tokens(["[SEP]"])
    return backend.to_str()


@functools.cache
def tokenizer_of(kind: str):
    return {
        "byte": lambda: load_tokenizer("byte"),
        "null": lambda: load_tokenizer("null:1000"),
        "byte level": lambda: make_tokenizer(byte_level_json()),
        "words": lambda: make_tokenizer(word_level_json(), eod_token="</s>"),
        "word pieces": lambda: make_tokenizer(word_piece_json(), eod_token="[SEP]"),
        "sentencepiece bpe": lambda: make_sentencepiece("bpe"),
        "sentencepiece unigram": lambda: make_sentencepiece("unigram"),
        "tiktoken": make_tiktoken,
    }[kind]()


ALL = ["byte", "null", "byte level", "words", "word pieces", "sentencepiece bpe", "sentencepiece unigram", "tiktoken"]
BYTE_WISE = ["byte", "byte level", "tiktoken"]
TEXTS = [
    "",
    "def f(x):\n\treturn x + 1\n",
    "naïve 漢字 👩\u200d🔬 ✓",
    "  two  spaces ",
    "a\u0301\u202eb\x00",
    "\ufffd!",
]


@pytest.mark.parametrize("kind", ALL)
def test_texts_of_tokens_are_together_the_text(kind):
    tokenizer = tokenizer_of(kind)
    for text in TEXTS:
        ids = [1, 2, 3] if kind == "null" else tokenizer.tokenize(text)
        texts = token_texts(ids, tokenizer)
        assert len(texts) == len(ids)
        assert "".join(texts) == tokenizer.detokenize(ids)


def test_a_character_of_several_tokens_is_the_text_of_the_last():
    assert token_texts("é漢!👩".encode(), tokenizer_of("byte")) == [
        "", "é", "", "", "漢", "!", "", "", "", "👩",
    ]  # fmt: skip


def test_what_no_token_completes_is_shown_as_broken():
    byte = tokenizer_of("byte")
    assert token_texts([0xE6, 0x41], byte) == ["", "\ufffdA"]
    assert token_texts([0x41, 0xE6], byte) == ["A", "\ufffd"]
    assert "".join(token_texts([0x80] * 50, byte)) == "\ufffd" * 50


@pytest.mark.parametrize("kind", BYTE_WISE)
@given(data=st.data())
def test_of_any_tokens_the_texts_are_together_the_text(kind, data):
    tokenizer = tokenizer_of(kind)
    ids = data.draw(
        st.lists(st.integers(0, 255), max_size=40)
        | st.lists(st.sampled_from([0xE6, 0xB1, 0x89, 0x80, 0xF0, 0x9F, 0x41]))
    )
    texts = token_texts(ids, tokenizer)
    assert len(texts) == len(ids)
    assert "".join(texts) == tokenizer.detokenize(ids)


@pytest.mark.parametrize("kind", ["sentencepiece bpe", "word pieces"])
@given(data=st.data())
def test_of_any_ids_each_has_a_text(kind, data):
    tokenizer = tokenizer_of(kind)
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=40))
    texts = token_texts(ids, tokenizer)
    assert len(texts) == len(ids)
    assert "".join(texts) == tokenizer.detokenize(ids)


def test_tokens_of_another_tokenizer_are_an_error():
    class Other:
        def detokenize(self, ids):
            raise OverflowError("out of range")

    with pytest.raises(ConfigError) as caught:
        token_texts([1], Other())
    assert str(caught.value) == (
        "the tokenizer cannot decode these tokens: out of range\nhint: was the data made with this tokenizer?"
    )
