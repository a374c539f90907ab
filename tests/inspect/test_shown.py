"""Tokens, spans and sections of a `Shown`, and their lines on a terminal or in a log."""

import functools
import re
import tempfile
import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cli.runs import RUN, write_run
from tests.datasets.conversations import (
    ANSWER,
    FIRST,
    PROMPT,
    conversation,
    conversations_strategy,
    make_sft,
    make_varlen,
    write_conversations,
)
from tests.indexed.origins import add_origins
from tests.indexed.pairs import corpora, write_pair
from tests.inspect.drawn import HOSTILE, columns_of, origins_of, sample, shown, span
from tests.preprocess.corpus import byte_level_json, make_sentencepiece, make_tiktoken, make_tokenizer, word_level_json
from tests.run.folders import make_megatron, opened
from tests.support import EOD, StandInTokenizer, make_config, make_dataset, write_corpus
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from tokenloom import BlendedDataset
from tokenloom.datasets.fim import GPTFIMDataset, GPTFIMDatasetConfig
from tokenloom.datasets.splits import Split
from tokenloom.errors import ConfigError
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.layout import image_to_item
from tokenloom.indexed.roles import PartKind
from tokenloom.indexed.writing.builder import IndexedDatasetBuilder
from tokenloom.inspect.shown import (
    PADDING,
    Look,
    OpenPair,
    OpenPairs,
    shown_document,
    shown_lines,
    shown_sample,
    special_tokens,
    token_texts,
    tokens_of,
)
from tokenloom.rendering.words import cell_width
from tokenloom.run.run import Run
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
    columns = {"kinds": [row[1] for row in rows], "loss": [row[2] for row in rows]}
    found = shown([""] * len(rows), spans=spans, spans_of=spans_of, **columns)
    for section in found.sections():
        for run in section.runs:
            assert (None if run[0].span is None else found.spans[run[0].span]) is section.span
            assert {(token.span, token.kind, token.loss) for token in run} == {(run[0].span, run[0].kind, run[0].loss)}
    assert [token for run in runs_of(found) for token in run] == [*found.tokens]
    assert [section.span for section in found.sections() if section.span is not None] == spans


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


def test_a_character_of_several_tokens_is_the_text_of_the_last_and_what_none_completes_is_shown_as_broken():
    byte = tokenizer_of("byte")
    assert token_texts("é漢!👩".encode(), byte) == ["", "é", "", "", "漢", "!", "", "", "", "👩"]
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

    message = "the tokenizer cannot decode these tokens: out of range\nhint: use the tokenizer that made the data"
    with pytest.raises(ConfigError, match=f"^{message}$"):
        token_texts([1], Other())


STYLE = re.compile("\x1b\\[[0-9;]*m")


INVISIBLE = ("Cc", "Cf", "Cs", "Zl", "Zp")


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
    columns = {"parts": ["prompt"] * 3 + ["answer"] * 2, "loss": [False] * 3 + [True] * 2}
    columns["kinds"] = ["text", "text", "special", "text", "special"]
    chat = shown(["q", "\n", "<end>", "a", "<end>"], spans=[span(0, 0, 5, slot=0)], **columns)
    assert drawn(chat)[2:6] == ["[prompt, without loss]", "q↵", "[<end>]", "[answer, with loss]"]
    assert drawn(chat)[6] == "a[<end>]"
    assert drawn(chat, ids=True)[2:4] == ["[prompt, without loss]", "q⟨100⟩↵⟨101⟩[<end>]⟨102⟩"]
    assert drawn(chat, colour=True)[2:4] == [
        "\x1b[2;36mq\x1b[0m\x1b[35m↵\x1b[0m",
        "\x1b[1;2;36m<end>\x1b[0m\x1b[1;32ma\x1b[0m\x1b[1;32m<end>\x1b[0m",
    ]


@given(st.sampled_from(HOSTILE) | st.text(), st.integers(20, 60), st.booleans(), st.booleans())
def test_no_text_can_drive_a_terminal_or_leave_its_columns(text, width, colour, ids):
    told = {"notes": (text,), "facts": (("made from", text),)}
    spans = [span(0, 0, 2, slot=0, source=text, origin=text)]
    hostile = shown([text, text], spans=spans, kinds=["text", "special"], loss=[True, False], **told)
    for line in drawn(hostile, width=width, colour=colour, ids=ids):
        bare = STYLE.sub("", line) if colour else line
        assert {char for char in bare if unicodedata.category(char) in INVISIBLE} <= set("\u200c\u200d")
        assert cell_width(bare) <= width


CORPUS = [[[1, 2, 3]], [], [[4, 5, 6, 7], [8, 9]], [[10, 11, 12, 13, 14]], [[]]]
"""Rows of the index: 0, 1, 2, 3 and 4; document 1 has none, document 2 has two, and document 4 an empty one."""


class Letters(StandInTokenizer):
    """Decodes 1 to a, 2 to b, and so on."""

    def detokenize(self, ids):
        assert isinstance(ids, list)
        return "".join(chr(ord("a") + token - 1) for token in ids)


@pytest.fixture
def pair(tmp_path):
    return OpenPair(write_pair(tmp_path / "corpus", CORPUS))


def told(shown):
    return [(section.heading, "".join(run[0].text for run in section.runs)) for section in shown.sections()]


def test_a_document_is_its_sequences(pair):
    name = pair.prefix
    one = shown_document(pair, 0, Letters())
    assert (one.heading, one.facts) == (f"document 0 of {name}", (("tokens", "3"),))
    assert [(token.id, token.text) for token in one.tokens] == [(1, "a"), (2, "b"), (3, "c")]
    assert {token.loss for token in one.tokens} == {None}
    two = shown_document(pair, 2, Letters())
    assert two.facts == (("tokens", "6"), ("sequences", "2"))
    assert columns_of(two).text == [*"defghi"]
    assert columns_of(two).span == [0, 0, 0, 0, 1, 1]
    places = [(span.row, span.sequence, span.start, span.stop, span.slot) for span in two.spans]
    assert places == [(1, 0, 0, 4, 0), (2, 1, 0, 2, 4)]
    assert told(two) == [
        (f"document 2 of {name}, sequence 0 of 2, all 4 tokens", "d"),
        (f"document 2 of {name}, sequence 1 of 2, all 2 tokens", "hi"),  # the last is EOD
    ]


def test_documents_without_tokens_are_shown_as_such_and_those_that_do_not_exist_are_an_error(pair):
    nothing = shown_document(pair, 1, Letters())
    assert (nothing.tokens, nothing.spans, nothing.facts) == ((), (), (("tokens", "0"), ("sequences", "0")))
    assert told(shown_document(pair, 4, None)) == [(f"document 4 of {pair.prefix}, empty", "")]
    for document in (5, -6):
        with pytest.raises(IndexError, match=f"^document {document} out of range: `{pair.prefix}` has 5 documents$"):
            shown_document(pair, document, None)


def test_a_window_holds_the_tokens_that_are_asked_for(pair):
    window = shown_document(pair, 2, Letters(), first=3, count=2)
    assert (columns_of(window).text, window.first, window.num_tokens) == (["g", "h"], 3, 6)
    assert [(span.row, span.start, span.stop, span.slot) for span in window.spans] == [(1, 3, 4, 0), (2, 0, 1, 1)]
    behind = shown_document(pair, 2, Letters(), first=5)
    assert (columns_of(behind).text, behind.spans[0].row, behind.spans[0].start) == (["i"], 2, 1)
    assert shown_document(pair, 2, None, first=6, count=9).tokens == ()
    assert shown_document(pair, 2, None, first=60).tokens == ()
    assert shown_document(pair, 2, None, count=0).tokens == ()


def test_characters_at_the_edges_of_a_window_are_whole(tmp_path):
    byte = tokenizer_of("byte")
    pair = OpenPair(write_pair(tmp_path / "corpus", [[byte.tokenize("é漢é")]]))
    assert columns_of(shown_document(pair, 0, byte, first=1, count=4)).text == ["é", "", "", "漢"]
    assert columns_of(shown_document(pair, 0, byte, first=4, count=2)).text == ["漢", ""]


def test_images_are_one_token_each(tmp_path):
    prefix = str(tmp_path / "pairs")
    with IndexedDatasetBuilder(f"{prefix}.bin", dtype=np.int32, multimodal=True) as builder:
        for item, mode in ((np.array([1, 2]), 0), (image_to_item(b"\xff\xd8" + bytes(998)), 1), (np.array([3]), 0)):
            builder.add_item(item.astype(np.int32), mode)
        builder.add_item(np.array([77], dtype=np.int32), 1)
        builder.end_document()
        builder.finalize(f"{prefix}.idx")
    shown = shown_document(OpenPair(prefix), 0, Letters())
    assert columns_of(shown).text == ["a", "b", "image of 1,000 bytes", "c", "1 token of mode 1, not an image"]
    assert columns_of(shown).kind == ["text", "text", "image", "text", "image"]
    assert columns_of(shown).id == [1, 2, -1, 3, -1]
    assert shown.num_tokens == 5
    middle = columns_of(shown_document(OpenPair(prefix), 0, Letters(), first=2, count=2))
    assert middle.text == columns_of(shown).text[2:4]
    assert len(list(shown.sections())) == 4


def test_the_record_that_it_was_made_of_is_told(tmp_path):
    prefix = write_pair(tmp_path / "corpus", CORPUS)
    add_origins(prefix, origins_of("raw/a.jsonl", [(0, 5), (-1, 0), (0, 9), (0, 10), (0, 11)]))
    shown = shown_document(OpenPair(prefix), 2, None)
    assert shown.facts[-1] == ("made from", "raw/a.jsonl:9")
    assert [span.origin for span in shown.spans] == ["raw/a.jsonl:9"] * 2
    assert shown_document(OpenPair(prefix), 1, None).facts == (("tokens", "0"), ("sequences", "0"))


@given(corpora(dtype=np.uint16), st.data())
def test_windows_are_slices_of_the_document(corpus, data):
    with tempfile.TemporaryDirectory() as folder:
        pair = OpenPair(write_pair(f"{folder}/corpus", corpus, dtype=np.uint16))
        for number, document in enumerate(corpus):
            whole = [token for sequence in document for token in sequence]
            assert columns_of(shown_document(pair, number, None)).id == whole
            first, count = data.draw(st.integers(0, 30)), data.draw(st.none() | st.integers(0, 30))
            shown = shown_document(pair, number, None, first=first, count=count)
            tokens = columns_of(shown)
            assert tokens.id == whole[first:][:count]
            assert shown.num_tokens == len(whole)
            for place, span in enumerate(shown.spans):
                slots = [slot for slot, number in enumerate(tokens.span) if number == place]
                assert [tokens.id[slot] for slot in slots] == document[span.sequence][span.start : span.stop]
                assert len(slots) == 0 or slots[0] == span.slot


@given(conversations_strategy(), st.data())
def test_parts_are_those_of_the_roles(conversations, data):
    with tempfile.TemporaryDirectory() as folder:
        pair = OpenPair(write_conversations(f"{folder}/chat", conversations))
        for number, (tokens, parts) in enumerate(conversations):
            expected = [PartKind(kind).name for start, stop, kind in parts for _ in range(start, stop)]
            assert columns_of(shown_document(pair, number, None)).part == expected
            start = data.draw(st.integers(0, len(tokens)))
            stop = data.draw(st.integers(start, len(tokens)))
            assert pair.parts(number, start, stop) == expected[start:stop]


DOCUMENT_ROWS = [[1, 2, 3, EOD], [], [4, 5, 6, 7, 8, EOD], [10, 11, 12, 13, EOD]]


@pytest.fixture
def prefix(tmp_path):
    return write_corpus(tmp_path / "corpus", DOCUMENT_ROWS)


def slots_of(shown, number):
    return [slot for slot, token in enumerate(shown.tokens) if token.span == number]


def check(shown, sample):
    """Checks a sample whose tokens are in the order of their documents."""
    size = len(sample["tokens"])
    tokens = columns_of(shown)
    assert tokens.id[:size] == sample["tokens"].tolist()
    assert tokens.loss == [False, *(sample["loss_mask"] > 0)][: len(tokens.loss)]
    taught = [slot for slot, trained in enumerate(tokens.loss) if trained]
    assert [tokens.id[slot] for slot in taught] == [int(sample["labels"][slot - 1]) for slot in taught]
    for number, each in enumerate(shown.spans):
        slots = slots_of(shown, number)
        assert slots == [*range(each.slot, each.slot + each.stop - each.start)]
        if each.denied:
            assert {tokens.kind[slot] for slot in slots} == {"denied"}
        else:
            whole = OpenPair(each.prefix).data.get(each.row)
            assert [tokens.id[slot] for slot in slots] == whole[each.start : each.stop].tolist()
    nowhere = slots_of(shown, None)
    assert {tokens.kind[slot] for slot in nowhere} <= {"padding"}
    assert not any(tokens.loss[slot] for slot in nowhere)


def test_a_window_is_its_documents_with_the_label_of_its_last_token(prefix):
    dataset = make_dataset(prefix, sequence_length=8, indices=[0, 1, 2, 3])
    shown = shown_sample(dataset, 0, Letters())
    assert (shown.heading, shown.notes, len(shown.tokens), shown.num_tokens) == ("position 0", (), 9, 9)
    facts = {"source": prefix, "pass": "0", "window": "0", "tokens": "9", "with loss": "8", "padding": "0"}
    assert dict(shown.facts) == facts
    for k in range(len(dataset)):
        check(shown_sample(dataset, k, Letters()), dataset.sample(k))


def test_the_pad_id_in_the_data_is_told(prefix):
    dataset = make_dataset(prefix, sequence_length=5, indices=[2], tokenizer=Letters(pad=6))
    shown = shown_sample(dataset, 0, Letters(pad=6))
    assert shown.notes == ("the data contains the pad id 6 (1 time), read as id 0 without loss",)
    assert columns_of(shown).id == [4, 5, 0, 7, 8, EOD]
    assert columns_of(shown).loss == [False, True, False, True, True, True]
    assert columns_of(shown).span == [0] * 6


def test_records_are_told_where_they_are_known(prefix):
    add_origins(prefix, origins_of("raw/web.jsonl", [(0, 3), (0, 4), (0, 5), (-1, 0)]))
    spans = shown_sample(make_dataset(prefix, sequence_length=14, indices=[0, 1, 2, 3]), 0, None).spans
    assert {(span.document, span.origin) for span in spans} == {
        (0, "raw/web.jsonl:3"),
        (2, "raw/web.jsonl:5"),
        (3, None),
    }


CODE = ["def first(): return 1", "x", "", "class Second: pass", "end"]


class Characters(StandInTokenizer):
    """A token is a character; what fill in the middle needs is beyond all of them."""

    def __init__(self):
        super().__init__(eod=0, vocab_size=1100)

    def tokenize(self, text):
        return [ord(char) for char in text]

    def detokenize(self, ids):
        return "".join(map(chr, ids))


def make_fim(folder, *, rate):
    prefix = write_corpus(folder / "texts", [[*map(ord, text), 0] if text else [] for text in CODE])
    fim = {"fim_rate": rate, "fim_spm_rate": 0.5}
    fim |= {"fim_extra_tokens": {"prefix": 1001, "middle": 1002, "suffix": 1003}, "window_policy": "best_fit"}
    config = make_config(prefix, kind=GPTFIMDatasetConfig, sequence_length=100, tokenizer=Characters(), **fim)
    indices = np.arange(len(CODE), dtype=np.int32)
    return GPTFIMDataset(IndexedDataset(prefix), prefix, indices, None, Split.train, config)


def test_of_rearranged_documents_spans_are_only_listed(tmp_path):
    dataset = make_fim(tmp_path, rate=1.0)
    shown, sample = shown_sample(dataset, 0, Characters()), dataset.sample(0)
    tokens = columns_of(shown)
    assert shown.notes[0].startswith("the tokens are not in the order of their documents")
    assert len(shown.spans) == 4
    assert set(tokens.span) == {None}
    stop = tokens.kind.index("padding")
    assert (tokens.kind[stop - 1], set(tokens.kind[stop:])) == ("eod", {"padding"})
    assert "".join(tokens.text[:stop]) == "".join(map(chr, sample["tokens"][:stop]))
    assert tokens.loss[1:] == (sample["loss_mask"] > 0).tolist()[: len(shown.tokens) - 1]


def test_conversations_tell_prompts_from_answers(tmp_path):
    second = conversation((PROMPT, [21]), (ANSWER, [22, 9]))
    dataset = make_sft(write_conversations(tmp_path / "chat", [FIRST, second]))
    shown = shown_sample(dataset, 0, None)
    tokens = columns_of(shown)
    assert tokens.id[:7] == [11, 12, 13, 9, 21, 22, 9]
    assert tokens.part[:7] == ["prompt", "prompt", "answer", "answer", "prompt", "answer", "answer"]
    assert tokens.loss == [False, False, True, True, False, True, True, False]
    assert columns_of(shown).kind[7] == "padding"
    *_, last = shown.sections()
    assert (last.span, len(last.runs)) == (None, 1)


@pytest.mark.parametrize("multiple", [1, 4])
@pytest.mark.parametrize("last", [ANSWER, PROMPT])
def test_the_last_token_of_a_conversation_may_be_a_label_only(tmp_path, multiple, last):
    talk = conversation((PROMPT, [21]), (ANSWER, [22, 23]), (last, [24, 25]))
    dataset = make_varlen(write_conversations(tmp_path / "chat", [talk]), context_parallel_size=multiple // 2 or 1)
    shown = shown_sample(dataset, 0, None)
    tokens = columns_of(shown)
    assert tokens.id[:5] == [21, 22, 23, 24, 25]
    assert tokens.loss[:5] == [False, True, True, last == ANSWER, last == ANSWER]
    assert tokens.span[:5] == [0] * 5
    assert set(columns_of(shown).kind[5:]) <= {"padding"}


@given(conversations_strategy(), st.booleans())
def test_conversations_are_shown_as_they_are_fed(conversations, single):
    with tempfile.TemporaryDirectory() as folder:
        prefix = write_conversations(f"{folder}/chat", conversations)
        try:
            dataset = (make_varlen if single else make_sft)(prefix, quiet=True, sequence_length=16)
        except ConfigError:  # nothing to train
            return
        for k in range(len(dataset)):
            shown, sample = shown_sample(dataset, k, None), dataset.sample(k)
            assert shown.notes == ()
            tokens = columns_of(shown)
            assert tokens.loss == [False, *(sample["loss_mask"] > 0)][: len(tokens.loss)]
            taught = [slot for slot, trained in enumerate(tokens.loss) if trained]
            assert [tokens.id[slot] for slot in taught] == [int(sample["labels"][slot - 1]) for slot in taught]
            for number, span in enumerate(shown.spans):
                whole = columns_of(shown_document(OpenPair(prefix), span.row, None))
                slots = slots_of(shown, number)
                assert [tokens.id[slot] for slot in slots] == whole.id[: len(slots)]
                assert [tokens.part[slot] for slot in slots] == whole.part[: len(slots)]
                assert len(slots) == span.stop - span.start


def test_blends_are_shown_by_their_datasets(tmp_path, prefix):
    other = write_corpus(tmp_path / "other", [[20, 21, 22, 23, 24]])
    members = [make_dataset(each, sequence_length=3, indices=[0]) for each in (prefix, other)]
    blend = BlendedDataset(members, [1, 1], 2, make_config(prefix))
    for k in range(len(blend)):
        sample, shown = blend.sample(k), shown_sample(blend, k, None)
        check(shown, sample)
        assert dict(shown.facts)["source"] == (prefix, other)[int(sample["dataset_id"])]


def test_positions_of_a_run(tmp_path):
    dataset = Run.open(write_run(tmp_path)).dataset()
    for position in range(0, 100, 9):
        shown, place = shown_sample(dataset, position, None), dataset.place(position)
        check(shown, dataset.sample(position))
        facts = {"source": place.source, "stage": "main", "window": f"{place.window:,}"}
        assert facts.items() <= dict(shown.facts).items()
        assert {span.source for span in shown.spans} == {place.source}


def test_documents_that_are_denied_are_padding(tmp_path):
    pairs, dataset = OpenPairs(), Run.open(write_run(tmp_path / "before")).dataset()
    spans = [span for position in range(20) for span in shown_sample(dataset, position, None, pairs=pairs).spans]
    chosen = next(span.document for span in spans if span.source == "code")
    text = RUN + f'\n[[denied]]\ndocuments = ["code:{chosen}"]\n'
    dataset = Run.open(write_run(tmp_path / "after", text)).dataset()
    denied = 0
    for position in range(20):
        shown = shown_sample(dataset, position, None, pairs=pairs)
        check(shown, dataset.sample(position))
        for each in shown.spans:
            assert each.denied == (each.source == "code" and each.document == chosen)
            denied += each.denied
    assert denied


def test_a_run_in_the_order_of_the_reference(tmp_path):
    run = opened(make_megatron(tmp_path))
    dataset = run.dataset()
    for position in range(0, 300, 31):
        shown = shown_sample(dataset, position, None, run=run)
        check(shown, dataset.sample(position))
        assert dict(shown.facts)["source"] in ("web", "code")


def test_samples_of_another_kind_are_an_error():
    class Other:
        def __len__(self):
            return 1

        def __getitem__(self, index):
            return {"text": np.zeros(3)}

    with pytest.raises(ConfigError, match=r"^cannot show samples that lack 'labels', 'loss_mask', 'tokens'\n"):
        shown_sample(Other(), 0, None)


DOCUMENTS = st.lists(st.lists(st.integers(0, 99), max_size=12), min_size=1, max_size=6)


SETTINGS = {"eod_mask_loss": st.booleans(), "add_extra_token_to_sequence": st.booleans()}
SETTINGS |= {"sequence_length": st.integers(2, 9), "window_policy": st.sampled_from(["concat", "best_fit"])}


@given(DOCUMENTS.filter(lambda rows: sum(map(len, rows)) > 10), st.fixed_dictionaries(SETTINGS))
def test_spans_and_loss_are_those_of_the_sample(documents, settings):
    with tempfile.TemporaryDirectory() as folder:
        dataset = make_dataset(write_corpus(f"{folder}/corpus", documents), **settings)
        for k in range(min(len(dataset), 8)):
            shown = shown_sample(dataset, k, Letters())
            assert shown.notes == ()
            check(shown, dataset.sample(k))
            assert {token.kind for token in shown.tokens if token.span is not None and token.id == EOD} <= {"eod"}
