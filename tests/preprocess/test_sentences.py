from __future__ import annotations

import numpy as np
import nupunkt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenloom.inputs.records import Texts
from tokenloom.preprocess.blocks import SentenceSplitter, split_texts

TEXT = ' He met Dr. Smith at 3.15 p.m. on Monday.\n\nWas it late?  No! "Not at all."\tEnd without a stop\n'
SENTENCES = ["He met Dr. Smith at 3.15 p.m. on Monday.", "Was it late?", "No!", '"Not at all."', "End without a stop"]

words = st.sampled_from(
    ["Dr.", "p.m.", "Yes.", "no", "It", "e.g.", "3.14", "U.S.", '"Why?"', "(Ok.)", "...", "!", "x.)"]
)
spaces = st.sampled_from([" ", "  ", "\n", "\n\n", "\t", "\u00a0", "\u2028", ""])
prose = st.lists(st.one_of(words, spaces, st.text(max_size=8)), max_size=40).map("".join)


def test_white_space_stays_behind_its_sentence():
    kept = SentenceSplitter(keep_newlines=True).split(TEXT)
    assert [sentence.strip() for sentence in kept] == SENTENCES
    assert kept[:3] == [" He met Dr. Smith at 3.15 p.m. on Monday.\n\n", "Was it late?  ", "No! "]
    assert kept[-1] == "End without a stop\n"


@given(text=prose)
def test_kept_sentences_are_the_text(text: str):
    kept = SentenceSplitter(keep_newlines=True).split(text)
    assert "".join(kept) == text
    assert "" not in kept
    plain = SentenceSplitter().split(text)
    assert plain == [sentence.strip() for sentence in kept if sentence.strip()]


@given(text=prose)
def test_sentences_are_those_of_the_library(text: str):
    assert SentenceSplitter().split(text) == [each.strip() for each in nupunkt.sent_tokenize(text) if each.strip()]


def test_words_without_end_are_split_at_their_ends_only():
    long = "x.)" * 100_000  # the library alone would take minutes
    text = f"Before. {long} after it. {'y' * 5000}. Next."
    kept = SentenceSplitter(keep_newlines=True).split(text)
    assert "".join(kept) == text
    assert [sentence[:10] for sentence in kept] == ["Before. ", "x.)x.)x.)x", "yyyyyyyyyy", "Next."]


@pytest.mark.parametrize(
    ("texts", "ends", "expected", "expected_ends"),
    [
        (["Rain falls. Snow melts.", "", "E."], None, ["Rain falls.", "Snow melts.", "E."], [2, 2, 3]),
        (["Fog came. Go.", "e", "", "F."], [0, 2, 3, 4, 4], ["Fog came.", "Go.", "e", "F."], [0, 3, 3, 4, 4]),
        ([], None, [], []),
    ],
)
def test_texts_of_documents_are_split_one_by_one(texts, ends, expected, expected_ends):
    ends = None if ends is None else np.array(ends, dtype=np.int64)
    split = split_texts(Texts(texts=texts, document_ends=ends), SentenceSplitter())
    assert (split.texts, split.document_ends.tolist()) == (expected, expected_ends)
