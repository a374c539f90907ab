"""Documents as spans and tokens."""

from __future__ import annotations

import tempfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.datasets.conversations import conversations_strategy, write_conversations
from tests.indexed.origins import add_origins
from tests.indexed.pairs import corpora, write_pair
from tests.inspect.drawn import columns_of, origins_of

from tokenloom.indexed.layout import image_to_item
from tokenloom.indexed.roles import PartKind
from tokenloom.indexed.writing.builder import IndexedDatasetBuilder
from tokenloom.inspect.shown import OpenPair, shown_document
from tokenloom.tokenizers.load import load_tokenizer

CORPUS = [[[1, 2, 3]], [], [[4, 5, 6, 7], [8, 9]], [[10, 11, 12, 13, 14]], [[]]]
"""Rows of the index: 0, 1, 2, 3 and 4; document 1 has none, document 2 has two, and document 4 an empty one."""


class Letters:
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
        (f"document 2 of {name}, sequence 1 of 2, all 2 tokens", "h"),
    ]


def test_documents_without_tokens_are_shown_as_such(pair):
    nothing = shown_document(pair, 1, Letters())
    assert (nothing.tokens, nothing.spans, nothing.facts) == ((), (), (("tokens", "0"), ("sequences", "0")))
    assert told(shown_document(pair, 4, None)) == [(f"document 4 of {pair.prefix}, empty", "")]


@pytest.mark.parametrize("document", [5, -6])
def test_a_document_that_does_not_exist_is_an_index_error(pair, document):
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
    byte = load_tokenizer("byte")
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
