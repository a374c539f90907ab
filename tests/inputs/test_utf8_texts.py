import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.preprocess.corpus import byte_level_json, make_sentencepiece, make_tiktoken, make_tokenizer

from tokenloom.inputs.utf8_texts import Utf8Texts, utf8_of, utf8_texts
from tokenloom.tokenizers.engines import GigatokenEngine
from tokenloom.tokenizers.plain import ByteTokenizer

SOME = ["", "né", "字", "", "a 👍 b", "\0", ""]
lists = st.lists(st.text(max_size=8), max_size=6)


@given(texts=lists, start=st.integers(-9, 9) | st.none(), stop=st.integers(-9, 9) | st.none())
def test_texts_are_those_of_a_list(texts, start, stop):
    found = utf8_texts(texts)
    assert (len(found), bool(found)) == (len(texts), bool(texts))
    assert (list(found), list(reversed(found))) == (texts, texts[::-1])
    assert [found[index] for index in range(-len(texts), len(texts))] == [*texts, *texts]
    assert found[start:stop] == texts[start:stop]
    assert found[start:stop:-2] == texts[start:stop:-2]
    assert [bytes(data) for data in utf8_of(found)] == list(utf8_of(texts)) == [text.encode() for text in texts]


@pytest.mark.parametrize(
    "make", [lambda: make_tokenizer(byte_level_json()), make_sentencepiece, make_tiktoken, ByteTokenizer]
)
def test_every_tokenizer_takes_them(make):
    tokenizer = make()
    found, expected = (tokenizer.encode_texts(texts) for texts in (utf8_texts(SOME), SOME))
    assert found.tokens.tolist() == expected.tokens.tolist()
    assert found.lengths.tolist() == expected.lengths.tolist()


def test_views_into_larger_buffers_are_read_where_they_are():
    data = np.frombuffer("xx字é--".encode(), dtype=np.uint8)
    offsets = np.array([5, 0, 3, 5, 7], dtype=np.int64)[1:4]
    texts = Utf8Texts(content=data[2:7], offsets=offsets)
    assert list(texts) == ["字", "é"]
    tokenizer = make_tokenizer(byte_level_json())
    expected = [*tokenizer.tokenize("字"), *tokenizer.tokenize("é")]
    assert GigatokenEngine(tokenizer).encode_texts(texts).tokens.tolist() == expected
