from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.preprocess.corpus import byte_level_json, make_sentencepiece, make_tiktoken, make_tokenizer

from tokenloom.inputs.parsing import Texts
from tokenloom.inputs.utf8_texts import Utf8Texts, joined_texts, utf8_of
from tokenloom.preprocess.selection import hash_documents
from tokenloom.preprocess.sentences import SentenceSplitter, split_texts
from tokenloom.tokenizers.engine_checks import recheck
from tokenloom.tokenizers.engines import GigatokenEngine, ReferenceEngine
from tokenloom.tokenizers.plain import ByteTokenizer

SOME = ["", "né", "字", "", "a 👍 b", "\0", ""]
lists = st.lists(st.text(max_size=8), max_size=6)


def utf8_texts(texts: Sequence[str]) -> Utf8Texts:
    rows = [text.encode() for text in texts]
    offsets = np.cumsum([0, *map(len, rows)], dtype=np.int64)
    return Utf8Texts(content=np.frombuffer(b"".join(rows), dtype=np.uint8), offsets=offsets)


@given(texts=lists, start=st.integers(-9, 9) | st.none(), stop=st.integers(-9, 9) | st.none())
def test_texts_are_those_of_a_list(texts: list[str], start: int | None, stop: int | None):
    found = utf8_texts(texts)
    assert (len(found), bool(found), list(found), list(reversed(found))) == (
        len(texts),
        bool(texts),
        texts,
        texts[::-1],
    )
    assert [found[index] for index in range(-len(texts), len(texts))] == [*texts, *texts]
    assert found[start:stop] == texts[start:stop]
    assert found[start:stop:-2] == texts[start:stop:-2]
    assert [bytes(data) for data in utf8_of(found)] == list(utf8_of(texts)) == [text.encode() for text in texts]


@pytest.mark.parametrize("index", [7, -8])
def test_there_is_no_text_beyond_the_last(index: int):
    with pytest.raises(IndexError):
        utf8_texts(SOME)[index]


def test_an_index_is_any_integer():
    assert utf8_texts(SOME)[np.int64(1)] == "né"


@given(parts=st.lists(lists, min_size=1, max_size=4))
def test_parts_are_joined_in_their_order(parts: list[list[str]]):
    joined = joined_texts([utf8_texts(texts) for texts in parts])
    assert list(joined) == [text for texts in parts for text in texts]
    assert isinstance(joined, Utf8Texts)
    assert (joined.content.dtype, joined.offsets.dtype) == (np.uint8, np.int64)


def test_parts_of_which_some_are_strings_are_joined_as_strings():
    assert joined_texts([utf8_texts(SOME), ["x"], utf8_texts([])]) == [*SOME, "x"]


@given(texts=lists, others=st.lists(st.tuples(st.integers(0, 6), st.text(max_size=8)), max_size=5))
def test_others_come_between(texts: list[str], others: list[tuple[int, str]]):
    others = sorted((min(before, len(texts)), text) for before, text in others)
    found = utf8_texts(texts).with_others([text for _, text in others], np.array([row[0] for row in others], dtype=int))
    expected = list(texts)
    for number, (before, text) in enumerate(others):
        expected.insert(before + number, text)
    assert list(found) == expected
    assert (found.content.dtype, found.offsets.dtype) == (np.uint8, np.int64)


def test_one_part_is_not_copied():
    texts = utf8_texts(SOME)
    assert joined_texts([texts]) is texts


@given(texts=lists, cut=st.booleans())
def test_hashes_are_those_of_a_list(texts: list[str], cut: bool):
    ends = np.array([len(texts) // 2, len(texts) // 2, len(texts)], dtype=np.int64) if cut else None
    num_documents = 3 if cut else len(texts)
    found = hash_documents([Texts(texts=utf8_texts(texts), document_ends=ends)] * 2, num_documents)
    assert (found == hash_documents([Texts(texts=texts, document_ends=ends)] * 2, num_documents)).all()


def test_sentences_are_those_of_a_list():
    texts = ["One. Two. É.", "", "Three."]
    found = split_texts(Texts(texts=utf8_texts(texts)), SentenceSplitter())
    expected = split_texts(Texts(texts=texts), SentenceSplitter())
    assert (found.texts, found.document_ends.tolist()) == (expected.texts, expected.document_ends.tolist())


@pytest.mark.parametrize(
    "make", [lambda: make_tokenizer(byte_level_json()), make_sentencepiece, make_tiktoken, ByteTokenizer]
)
def test_every_tokenizer_takes_them(make):
    tokenizer = make()
    found, expected = (tokenizer.encode_texts(texts) for texts in (utf8_texts(SOME), SOME))
    assert found.tokens.tolist() == expected.tokens.tolist()
    assert found.lengths.tolist() == expected.lengths.tolist()


@given(texts=lists)
def test_the_fast_engine_gives_the_ids_of_a_list(texts: list[str]):
    engine = GigatokenEngine(make_tokenizer(byte_level_json()))
    found, expected = engine.encode(utf8_texts(texts)), engine.encode(texts)
    assert found.tokens.tolist() == expected.tokens.tolist()
    assert found.lengths.tolist() == expected.lengths.tolist()


def test_the_fast_engine_decodes_nothing(monkeypatch: pytest.MonkeyPatch):
    def decode(self: object, *_: object) -> None:
        raise AssertionError

    tokenizer = make_tokenizer(byte_level_json())
    expected = ReferenceEngine(tokenizer).encode(SOME)
    monkeypatch.setattr(Utf8Texts, "__getitem__", decode)
    monkeypatch.setattr(Utf8Texts, "__iter__", decode)
    assert GigatokenEngine(tokenizer).encode(utf8_texts(SOME)).tokens.tolist() == expected.tokens.tolist()


def test_views_into_larger_buffers_are_read_where_they_are():
    data = np.frombuffer("xx字é--".encode(), dtype=np.uint8)
    offsets = np.array([5, 0, 3, 5, 7], dtype=np.int64)[1:4]
    texts = Utf8Texts(content=data[2:7], offsets=offsets)
    assert list(texts) == ["字", "é"]
    tokenizer = make_tokenizer(byte_level_json())
    assert GigatokenEngine(tokenizer).encode(texts).tokens.tolist() == tokenizer.tokenize("字") + tokenizer.tokenize(
        "é"
    )


@pytest.mark.parametrize("choice", range(8))
def test_any_text_is_compared_with_the_truth(choice: int):
    engine = ReferenceEngine(make_tokenizer(byte_level_json()))
    texts = utf8_texts([*SOME, "long " * 1000])
    recheck(engine, engine, texts, engine.encode(texts), choice=choice)
