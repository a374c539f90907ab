"""What the marks of a drawing mean."""

from __future__ import annotations

import pytest
from tests.inspect.drawn import sample, shown, span

from tokenloom.indexed.roles import PartKind
from tokenloom.inspect.shown import NO_SPAN, TokenKind, TokenRun
from tokenloom.inspect.shown_words import (
    kind_words,
    legend,
    padding_words,
    styles,
    teaching_words,
    text_of_special,
)


def run(kind=TokenKind.text, *, part=None, loss=None, count=1) -> TokenRun:
    return TokenRun(start=0, stop=count, span=0, kind=kind, part=part, loss=loss)


@pytest.mark.parametrize(
    ("found", "drawn", "said"),
    [
        (run(), (), ""),
        (run(loss=True), ("loss",), "with loss"),
        (run(loss=False), ("no-loss",), "without loss"),
        (run(part=PartKind.prompt, loss=False), ("prompt", "no-loss"), "prompt, without loss"),
        (run(part=PartKind.answer), ("answer",), "answer"),
        (run(part=PartKind.text, loss=True), ("loss",), "with loss"),
        (run(TokenKind.eod, loss=True), ("eod", "loss"), "with loss"),
        (run(TokenKind.padding, loss=False), ("padding", "no-loss"), ""),
        (run(TokenKind.denied, loss=False), ("denied", "no-loss"), ""),
    ],
)
def test_a_run_has_styles_and_words(found, drawn, said):
    assert (styles(found), teaching_words(found)) == (drawn, said)


def test_kinds_have_words_but_text():
    assert [kind_words(run(kind)) for kind in TokenKind] == [
        "",
        "end of document",
        "begin of document",
        "special token",
        "padding",
        "denied document: padding",
        "image",
    ]


def test_padding_is_its_number():
    assert padding_words(run(TokenKind.padding, count=1200)) == "[padding x 1,200]"
    assert padding_words(run(TokenKind.denied, count=3)) == "[denied: padding x 3]"


def test_what_is_no_text_has_a_text():
    odd = shown(["<e>", "", "image of 3 bytes"], kinds=[TokenKind.special, TokenKind.eod, TokenKind.image])
    assert [text_of_special(odd, index) for index in range(3)] == ["<e>", "[end of document]", "[image of 3 bytes]"]


def test_the_legend_has_what_occurs_and_nothing_else():
    assert [entry.style for entry in legend(sample())] == [
        *("loss", "no-loss", "eod", "bos", "padding", "denied", "partial", "newline"),
    ]
    assert list(legend(shown(["a"]))) == []
    chat = shown(["a\t", "b\x00"], parts=[PartKind.prompt, PartKind.answer], loss=[True, True])
    assert [(entry.style, entry.sign) for entry in legend(chat)] == [
        ("loss", ""),
        ("prompt", ""),
        ("answer", ""),
        ("tab", "→"),
        ("escape", r"\x1b"),
    ]


def test_padding_is_not_said_to_be_without_loss():
    padded = shown(
        ["a", ""],
        spans=[span(0, 0, 1, slot=0)],
        spans_of=[0, NO_SPAN],
        kinds=[0, TokenKind.padding],
        loss=[True, False],
    )
    assert [entry.style for entry in legend(padded)] == ["loss", "padding"]


def test_special_tokens_hide_no_signs():
    assert [entry.style for entry in legend(shown([""], kinds=[TokenKind.eod]))] == ["eod"]
