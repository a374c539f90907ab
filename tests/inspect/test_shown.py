"""What a token is shown as."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.inspect.drawn import sample, shown, span
from tests.preprocess.corpus import byte_level_json, make_tokenizer

from tokenloom.inspect.shown import PADDING, special_tokens, tokens_of
from tokenloom.tokenizers.load import load_tokenizer

KINDS = ("text", "eod", "bos", "special", "image", *PADDING)


@pytest.mark.parametrize(
    ("changes", "heading"),
    [
        ({"start": 0, "stop": 10}, "document 1,234 of web, all 10 tokens"),
        ({"start": 0, "stop": 1, "num_tokens": 1}, "document 1,234 of web, its only token"),
        ({"start": 0, "stop": 0, "num_tokens": 0}, "document 1,234 of web, empty"),
        ({"start": 2, "stop": 9}, "document 1,234 of web, tokens 2 to 8 of 10"),
        ({"start": 2, "stop": 3}, "document 1,234 of web, token 2 of 10"),
        ({"start": 2, "stop": 2}, "document 1,234 of web, no token of 10"),
        ({"start": 0, "stop": 9, "sequence": 1, "num_sequences": 3, "num_tokens": 9},
         "document 1,234 of web, sequence 1 of 3, all 9 tokens"),
        ({"start": 0, "stop": 10, "denied": True}, "document 1,234 of web, all 10 tokens, denied: padding"),
    ],
)  # fmt: skip
def test_a_span_says_what_it_is(changes, heading):
    assert span(1234, changes.pop("start"), changes.pop("stop"), slot=0, **changes).heading() == heading


def runs_of(what):
    return [run for section in what.sections() for run in section.runs]


def test_runs_are_alike_and_special_tokens_stand_alone():
    found = [(len(run), run[0].span, run[0].kind, run[0].part, run[0].loss) for run in runs_of(sample())]
    assert found == [
        (1, 0, "text", None, False),
        (1, 0, "eod", None, True),
        (1, 1, "bos", None, False),
        (3, 1, "text", None, True),
        (1, 1, "eod", None, True),
        (2, 2, "denied", None, False),
        (3, None, "padding", None, False),
    ]
    assert [run[0].part for run in runs_of(shown(["a", "b"], parts=["prompt", "answer"]))] == ["prompt", "answer"]
    assert [(run[0].loss, len(run)) for run in runs_of(shown(["a", "b"]))] == [(None, 2)]
    assert len(runs_of(shown(["", ""], kinds=["eod"] * 2))) == 2
    assert runs_of(shown([])) == []


def test_sections_list_documents_without_tokens_where_they_stand():
    assert [(section.heading, len(section.runs)) for section in sample().sections()] == [
        ("document 3 of web, tokens 8 to 9 of 10", 2),
        ("document 5 of web, all 5 tokens", 3),
        ("document 6 of web, tokens 0 to 1 of 10, denied: padding", 1),
        ("document 8 of web, empty", 0),
        ("", 1),
    ]


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from(KINDS), st.booleans()), max_size=40))
def test_sections_hold_each_token_once(rows):
    rows.sort(key=lambda row: row[0])
    spans_of = [number if number < 3 else None for number, _, _ in rows]
    spans = [span(number, 0, 1, slot=sum(row[0] < number for row in rows)) for number in range(3)]
    drawn = shown(
        [""] * len(rows), spans=spans, spans_of=spans_of, kinds=[row[1] for row in rows], loss=[row[2] for row in rows]
    )
    for section in drawn.sections():
        for run in section.runs:
            assert (None if run[0].span is None else drawn.spans[run[0].span]) is section.span
            assert {(token.span, token.kind, token.loss) for token in run} == {(run[0].span, run[0].kind, run[0].loss)}
    assert [token for run in runs_of(drawn) for token in run] == [*drawn.tokens]
    assert [section.span for section in drawn.sections() if section.span is not None] == spans


def test_special_tokens_are_those_of_the_tokenizer():
    special = special_tokens(make_tokenizer(byte_level_json()))
    assert special == {0: ("eod", "<|endoftext|>"), 1: ("special", "<|pad|>")}
    byte = load_tokenizer("byte")
    assert [token.kind for token in tokens_of([256, 257, 65], byte, special_tokens(byte))] == ["eod", "bos", "text"]


def test_special_tokens_have_their_spelling_as_text():
    byte = load_tokenizer("byte")
    special = {256: ("eod", "<stop>")}
    assert [token.text for token in tokens_of([104, 256, 105], byte, special)] == ["h", "<stop>", "i"]
    assert [token.text for token in tokens_of([104, 256, 105], byte, special_tokens(byte))] == ["h", "<eod>", "i"]
