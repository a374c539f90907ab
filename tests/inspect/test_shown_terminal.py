"""Documents and samples as lines of a terminal or a log."""

from __future__ import annotations

import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.inspect.drawn import HOSTILE, sample, shown, span

from tokenloom.inspect.shown import Look, shown_lines
from tokenloom.rendering.words import cell_width

STYLE = re.compile("\x1b\\[[0-9;]*m")


def drawn(what, **look) -> list[str]:
    return list(shown_lines(what, Look(**look)))


def test_a_log_tells_boundaries_kinds_and_loss_in_words():
    assert drawn(sample(), width=60) == [
        "position 7",
        "note: a note",
        "── document 3 of web, tokens 8 to 9 of 10 ──────────────────",
        "made of raw/web.jsonl:17",
        "[without loss]end.[with loss][EOD <eod>]",
        "── document 5 of web, all 5 tokens ─────────────────────────",
        "[without loss][BOS <s>][with loss]two↵",
        "lines▏é[EOD <eod>]",
        "── document 6 of web, tokens 0 to 1 of 10, denied: padding ─",
        "[denied: padding x 2]",
        "── document 8 of web, empty ────────────────────────────────",
        "[padding x 3]",
        "legend: [with loss] the model learns to predict it; [without",
        "loss] the model only reads it; [EOD] end of document; [BOS]",
        "begin of document; ▏ a token that only begins a character; ↵",
        "line break",
    ]


def test_a_terminal_tells_them_by_styles():
    assert drawn(sample(), colour=True)[4:10] == [
        "\x1b[2mend.\x1b[0m\x1b[7;33m<eod>\x1b[0m",
        "\x1b[1m── document 5 of web, all 5 tokens ─────────────────────────────────────────────\x1b[0m",
        "\x1b[2;7;36m<s>\x1b[0mtwo\x1b[35m↵\x1b[0m",
        "lines\x1b[35m▏\x1b[0mé\x1b[7;33m<eod>\x1b[0m",
        "\x1b[1m── document 6 of web, tokens 0 to 1 of 10, denied: padding ─────────────────────\x1b[0m",
        "\x1b[31m[denied: padding x 2]\x1b[0m",
    ]


def test_ids_stand_behind_their_tokens():
    lines = drawn(sample(), width=100, ids=True)
    assert lines[4] == "[without loss]end.⟨100⟩[with loss][EOD <eod>]⟨101⟩"
    assert lines[6] == "[without loss][BOS <s>]⟨102⟩[with loss]two↵lines⟨103⟩▏⟨104⟩é⟨105⟩[EOD <eod>]⟨106⟩"


def test_parts_of_a_conversation_begin_lines():
    chat = shown(
        ["q", "\n", "<end>", "a", "<end>"],
        kinds=["text", "text", "special", "text", "special"],
        spans=[span(0, 0, 5, slot=0)],
        parts=["prompt"] * 3 + ["answer"] * 2,
        loss=[False, False, False, True, True],
    )
    assert drawn(chat)[2:6] == ["[prompt, without loss]", "q↵", "[<end>]", "[answer, with loss]"]
    assert drawn(chat)[6] == "a[<end>]"
    assert drawn(chat, ids=True)[2:4] == ["[prompt, without loss]", "q⟨100⟩↵⟨101⟩[<end>]⟨102⟩"]
    assert drawn(chat, colour=True)[2:4] == [
        "\x1b[2;36mq\x1b[0m\x1b[35m↵\x1b[0m",
        "\x1b[1;2;36m<end>\x1b[0m\x1b[1;32ma\x1b[0m\x1b[1;32m<end>\x1b[0m",
    ]


@pytest.mark.parametrize("look", [Look(), Look(colour=True), Look(ids=True, width=20)])
def test_hostile_text_cannot_drive_a_terminal(look):
    for text in HOSTILE:
        check_harmless(text, look)


@given(st.text(), st.integers(20, 60), st.booleans(), st.booleans())
def test_no_text_can_drive_a_terminal_or_leave_its_columns(text, width, colour, ids):
    check_harmless(text, Look(width=width, colour=colour, ids=ids))


def check_harmless(text: str, look: Look) -> None:
    hostile = shown(
        [text, text],
        spans=[span(0, 0, 2, slot=0, source=text, origin=text)],
        kinds=["text", "special"],
        loss=[True, False],
        notes=(text,),
        facts=(("made of", text),),
    )
    for line in shown_lines(hostile, look):
        bare = STYLE.sub("", line) if look.colour else line
        assert {char for char in bare if unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp")} <= set(
            "\u200c\u200d"
        )
        assert cell_width(bare) <= look.width
