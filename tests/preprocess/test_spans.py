from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.preprocess.corpus import EOD, byte_level_json, make_tokenizer

from tokenloom.preprocess.chat import SpanEncoder
from tokenloom.tokenizers.engines import choose_engine

PARTS = st.lists(st.lists(st.text(st.sampled_from("ab é👍\n\t1한"), max_size=8) | st.just(EOD), max_size=5), max_size=4)


@pytest.fixture(scope="module")
def encoders(tokenizer):
    return {
        name: SpanEncoder(tokenizer, choose_engine(name, tokenizer, []), num_workers=1)
        for name in ("gigatoken", "tokenizers")
    }


@given(texts=PARTS)
def test_both_ways_agree_and_every_part_is_what_ends_in_it(texts, tokenizer, encoders):
    slow, fast = encoders["tokenizers"].encode(texts, number=1), encoders["gigatoken"].encode(texts, number=1)
    for name in ("tokens", "lengths", "part_stops"):
        assert getattr(slow, name).tolist() == getattr(fast, name).tolist()
    assert slow.lengths.tolist() == [len(tokenizer.tokenize("".join(parts))) for parts in texts]
    stops = slow.part_stops.tolist()
    for parts, length in zip(texts, slow.lengths.tolist(), strict=True):
        mine, stops = stops[: len(parts)], stops[len(parts) :]
        assert mine == sorted(mine)
        assert mine[-1:] == [length] * bool(parts)


def test_a_token_ends_where_its_last_byte_is(tokenizer, encoders):
    for encoder in encoders.values():
        encoded = encoder.encode([["a", " b", "", "é"], [], ["", ""]], number=1)
        assert encoded.lengths.tolist() == [len(tokenizer.tokenize("a bé")), 0, 0]
        assert encoded.part_stops.tolist()[4:] == [0, 0]
        assert encoded.part_stops.tolist()[:2] == [1, len(tokenizer.tokenize("a b"))]


def test_a_tokenizer_that_normalises_is_asked_for_offsets():
    data = json.loads(byte_level_json())
    data["normalizer"] = {"type": "NFC"}
    tokenizer = make_tokenizer(json.dumps(data))
    choices = (choose_engine(name, tokenizer, []) for name in ("auto", "tokenizers"))
    fast, slow = (SpanEncoder(tokenizer, choice, num_workers=1) for choice in choices)
    texts = [["e\u0301x", "o\u0302"], ["plain", " text"]]
    found, expected = fast.encode(texts, number=1), slow.encode(texts, number=1)
    assert found.tokens.tolist() == expected.tokens.tolist()
    assert found.part_stops.tolist() == expected.part_stops.tolist()
