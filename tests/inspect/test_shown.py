"""What a token is shown as."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.inspect.drawn import sample, shown, span
from tests.preprocess.corpus import byte_level_json, make_tokenizer

from tokenloom.indexed.roles import PartKind
from tokenloom.inspect.shown import NO_SPAN, SpecialTokens, TokenKind, texts_of
from tokenloom.tokenizers.load import load_tokenizer


@pytest.mark.parametrize(
    ("changes", "heading"),
    [
        ({"start": 0, "stop": 10}, "document 1,234 of web, all 10 tokens"),
        ({"start": 0, "stop": 1, "num_tokens": 1}, "document 1,234 of web, its only token"),
        ({"start": 0, "stop": 0, "num_tokens": 0}, "document 1,234 of web, empty"),
        ({"start": 2, "stop": 9}, "document 1,234 of web, tokens 2 to 8 of 10"),
        ({"start": 2, "stop": 3}, "document 1,234 of web, token 2 of 10"),
        ({"start": 2, "stop": 2}, "document 1,234 of web, no token of 10"),
        ({"start": 2, "stop": 9, "num_tokens": None}, "document 1,234 of web, tokens 2 to 8"),
        ({"start": 0, "stop": 9, "sequence": 1, "num_sequences": 3, "num_tokens": 9},
         "document 1,234 of web, sequence 1 of 3, all 9 tokens"),
        ({"start": 0, "stop": 10, "denied": True}, "document 1,234 of web, all 10 tokens, denied: padding"),
    ],
)  # fmt: skip
def test_a_span_says_what_it_is(changes, heading):
    assert span(1234, changes.pop("start"), changes.pop("stop"), slot=0, **changes).heading() == heading


def test_runs_are_alike_and_special_tokens_stand_alone():
    found = [(run.start, run.stop, run.span, run.kind.name, run.part, run.loss) for run in sample().runs()]
    assert found == [
        (0, 1, 0, "text", None, False),
        (1, 2, 0, "eod", None, True),
        (2, 3, 1, "bos", None, False),
        (3, 6, 1, "text", None, True),
        (6, 7, 1, "eod", None, True),
        (7, 9, 2, "denied", None, False),
        (9, 12, NO_SPAN, "padding", None, False),
    ]
    assert [run.part for run in shown(["a", "b"], parts=[PartKind.prompt, PartKind.answer]).runs()] == [
        PartKind.prompt,
        PartKind.answer,
    ]
    assert [(run.loss, run.stop) for run in shown(["a", "b"]).runs()] == [(None, 2)]
    assert len(list(shown(["", ""], kinds=[TokenKind.eod] * 2).runs())) == 2
    assert list(shown([]).runs()) == []


def test_sections_list_documents_without_tokens_where_they_stand():
    assert [(section.heading(), len(section.runs)) for section in sample().sections()] == [
        ("document 3 of web, tokens 8 to 9 of 10", 2),
        ("document 5 of web, all 5 tokens", 3),
        ("document 6 of web, tokens 0 to 1 of 10, denied: padding", 1),
        ("document 8 of web, empty", 0),
        ("", 1),
    ]


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from(list(TokenKind)), st.booleans()), max_size=40))
def test_sections_hold_each_token_once(rows):
    rows.sort(key=lambda row: row[0])
    spans_of = [number if number < 3 else NO_SPAN for number, _, _ in rows]
    spans = [span(number, 0, 1, slot=spans_of.index(number) if number in spans_of else 0) for number in range(3)]
    drawn = shown(
        [""] * len(rows), spans=spans, spans_of=spans_of, kinds=[row[1] for row in rows], loss=[row[2] for row in rows]
    )
    slots = []
    for section in drawn.sections():
        for run in section.runs:
            slots += range(run.start, run.stop)
            assert (None if run.span == NO_SPAN else drawn.spans[run.span]) is section.span
            assert set(drawn.kinds[run.start : run.stop]) == {run.kind}
            assert set(drawn.loss[run.start : run.stop]) == {run.loss}
    assert slots == list(range(len(rows)))
    assert [section.span for section in drawn.sections() if section.span is not None] == spans


def test_special_tokens_are_those_of_the_tokenizer():
    special = SpecialTokens.of(make_tokenizer(byte_level_json()))
    assert (special.eod, special.bos, special.names) == (0, None, {0: "<|endoftext|>", 1: "<|pad|>"})
    kinds = special.kinds(np.array([65, 0, 1]))
    assert kinds.tolist() == [TokenKind.text, TokenKind.eod, TokenKind.special]
    byte = SpecialTokens.of(load_tokenizer("byte"))
    assert byte.kinds(np.array([256, 257, 65])).tolist() == [TokenKind.eod, TokenKind.bos, TokenKind.text]


def test_special_tokens_have_their_spelling_as_text():
    byte = load_tokenizer("byte")
    special = SpecialTokens(eod=256, names={256: "<stop>"})
    assert texts_of(np.array([104, 256, 105]), byte, special) == ("h", "<stop>", "i")
    assert texts_of(np.array([104, 256, 105]), byte, SpecialTokens.of(byte)) == ("h", "<eod>", "i")
