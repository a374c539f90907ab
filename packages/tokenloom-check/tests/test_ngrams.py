"""N-grams in tokens against lists of words; what is no ASCII is tested in tokenloom-check."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tests.reference.ngrams import hits_of, ngrams_of, words_of

from tokenloom.inputs.utf8_texts import utf8_texts
from tokenloom_check.contamination import Folding, NgramIndex, TokenBytes

PLAIN = Folding(
    kinds=np.zeros(0x110001, dtype=np.uint8),
    points=np.empty(0, dtype=np.uint32),
    offsets=np.zeros(1, dtype=np.int64),
    content=np.empty(0, dtype=np.uint8),
)
LETTERS = [*map(chr, range(128)), "a b ", "a long token of text"]
TABLE = TokenBytes([b"\xff" if letter == "|" else letter.encode() for letter in LETTERS])


def index_of(texts, length, least):
    return NgramIndex(utf8_texts(texts), PLAIN, lambda stretch: stretch, length=length, least=least)


def tokens_of(document):
    return [LETTERS.index(letter) for letter in document]


TEXTS = st.lists(st.text(st.sampled_from("abA '-."), max_size=30), min_size=1, max_size=4)
DOCUMENTS = st.lists(st.lists(st.sampled_from([*"abA '-.|", "a b "]), max_size=40), min_size=1, max_size=4)


@given(TEXTS, DOCUMENTS, st.integers(1, 5), st.integers(1, 5))
def test_hits_match_lists_of_words(texts, documents, length, least):
    least = min(least, length)
    index = index_of(texts, length, least)
    numbers = {}
    for text, (first, last) in zip(texts, pairwise(index.gram_offsets.tolist()), strict=True):
        ngrams = ngrams_of(text, length, least)
        numbers |= dict(zip(index.grams[first:last].tolist(), ngrams, strict=True))
    assert len(set(numbers.values())) == len(numbers) == index.num_grams
    ends = np.cumsum([len(document) for document in documents])
    tokens = np.array([token for document in documents for token in tokens_of(document)], dtype=np.uint32)
    hits = index.search(tokens, ends, TABLE)
    for number, document in enumerate(documents):
        own = hits[hits[:, 0] == number]
        found = {(word, numbers[gram]) for _, word, _, _, gram in own.tolist()}
        assert found == hits_of("".join(document), set(numbers.values()))
        assert len(found) == len(own)
        for _, _, start, stop, gram in own.tolist():
            said = words_of("".join(document[start:stop]))
            assert " ".join(numbers[gram]) in " ".join(said)


def test_tokens_longer_than_a_copy_and_words_longer_than_a_hash():
    index = index_of(["A long token of text, and averyverylongwordindeed"], 7, 1)
    document = ["a long token of text", *" and averyverylongwordindeed"]
    tokens = np.array(tokens_of(document), dtype=np.uint32)
    assert index.search(tokens, np.array([len(tokens)]), TABLE).tolist() == [[0, 7, 0, len(tokens), 0]]


def test_words_cut_at_a_block_end_do_not_match():
    index = index_of(["b c d"], 3, 1)
    tokens = np.array(tokens_of("b c d e"), dtype=np.uint32)
    ends = np.array([len(tokens)])
    assert len(index.search(tokens, ends, TABLE)) == 1
    assert len(index.search(tokens, ends, TABLE, begins_inside=True)) == 0
    assert len(index.search(tokens[:5], ends - 2, TABLE, ends_inside=True)) == 0
    assert len(index.search(tokens[:6], ends - 1, TABLE, ends_inside=True)) == 1
