"""Tokens, spans and sections of a `Shown`, and their lines on a terminal or in a log."""

from __future__ import annotations

import functools
import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.inspect.drawn import HOSTILE, sample, shown, span
from tests.preprocess.corpus import byte_level_json, make_sentencepiece, make_tiktoken, make_tokenizer, word_level_json
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from tokenloom.errors import ConfigError
from tokenloom.inspect.shown import PADDING, Look, shown_lines, special_tokens, token_texts, tokens_of
from tokenloom.rendering.words import cell_width
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
    special = {256: ("eod", "<stop>")}
    assert [token.text for token in tokens_of([104, 256, 105], byte, special)] == ["h", "<stop>", "i"]
    assert [token.text for token in tokens_of([104, 256, 105], byte, special_tokens(byte))] == ["h", "<eod>", "i"]


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


@pytest.mark.parametrize("kind", ["byte", "byte level", "tiktoken", "sentencepiece bpe", "word pieces"])
@given(data=st.data())
def test_of_any_tokens_the_texts_are_together_the_text(kind, data):
    tokenizer = tokenizer_of(kind)
    ids = st.lists(st.integers(0, min(tokenizer.vocab_size, 256) - 1), max_size=40)
    if tokenizer.vocab_size >= 256:  # bytes, and parts of characters
        ids |= st.lists(st.sampled_from([0xE6, 0xB1, 0x89, 0x80, 0xF0, 0x9F, 0x41]))
    drawn = data.draw(ids)
    texts = token_texts(drawn, tokenizer)
    assert len(texts) == len(drawn)
    assert "".join(texts) == tokenizer.detokenize(drawn)


def test_tokens_of_another_tokenizer_are_an_error():
    class Other:
        def detokenize(self, ids):
            raise OverflowError("out of range")

    with pytest.raises(ConfigError) as caught:
        token_texts([1], Other())
    assert str(caught.value) == (
        "the tokenizer cannot decode these tokens: out of range\nhint: use the tokenizer that made the data"
    )


STYLE = re.compile("\x1b\\[[0-9;]*m")


def drawn(what, **look) -> list[str]:
    return list(shown_lines(what, Look(**look)))


def test_a_log_tells_boundaries_kinds_and_loss_in_words():
    assert drawn(sample(), width=60) == [
        "position 7",
        "note: a note",
        "── document 3 of web, tokens 8 to 9 of 10 ──────────────────",
        "made from raw/web.jsonl:17",
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
        "beginning of document; ▏ a token that ends within a",
        "character; ↵ line break",
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


@given(st.sampled_from(HOSTILE) | st.text(), st.integers(20, 60), st.booleans(), st.booleans())
def test_no_text_can_drive_a_terminal_or_leave_its_columns(text, width, colour, ids):
    look = Look(width=width, colour=colour, ids=ids)
    hostile = shown(
        [text, text],
        spans=[span(0, 0, 2, slot=0, source=text, origin=text)],
        kinds=["text", "special"],
        loss=[True, False],
        notes=(text,),
        facts=(("made from", text),),
    )
    for line in shown_lines(hostile, look):
        bare = STYLE.sub("", line) if look.colour else line
        assert {char for char in bare if unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp")} <= set(
            "\u200c\u200d"
        )
        assert cell_width(bare) <= look.width
