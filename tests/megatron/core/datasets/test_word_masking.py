"""`tokenloom.megatron.core.datasets.word_masking`: a text masked by hand; `test_masked_dataset` has the rest."""

from __future__ import annotations

from argparse import Namespace

import numpy as np
import pytest
from tests.support import MASKING, StandInWordPieces

from tokenloom.megatron.core.datasets.word_masking import mask_words

TEXT = [1, 30, 31, 32, 33, 2, 34, 2]
"""cls, two words of two pieces, sep, a word, sep."""


def mask(replacement=3, **changes):
    config = Namespace(**(MASKING | {"tokenizer": StandInWordPieces(continuations=[31, 33])} | changes))
    return mask_words(TEXT, 100, np.random.RandomState(3), config=config, replacement=lambda _: replacement)


def test_words_are_masked_whole():
    masked, positions, labels, boundaries, spans = mask(masking_probability=0.9, masking_max_ngram=1)
    assert boundaries == [1, 1, 0, 1, 0, 1, 1, 1]
    assert spans == [([1, 2], [30, 31]), ([3, 4], [32, 33]), ([6], [34])]
    assert (positions, labels) == ([1, 2, 3, 4, 6], [30, 31, 32, 33, 34])
    assert masked == [1, 3, 3, 3, 3, 2, 3, 2]


def test_pieces_are_masked_by_themselves():
    spans = mask(masking_probability=0.9, masking_max_ngram=1, masking_do_full_word=False)[4]
    assert [positions for positions, _ in spans] == [[1], [2], [3], [4], [6]]


def test_none_keeps_a_token_that_is_predicted():
    masked, positions, labels, _, _ = mask(replacement=None, masking_probability=0.5, masking_max_ngram=1)
    assert masked == TEXT
    assert len(positions) == len(labels) == 4


def test_a_share_of_the_tokens_is_masked_at_most():
    assert mask(masking_probability=0.2, masking_max_ngram=1)[1] in ([1, 2], [3, 4], [6])
    assert mask(masking_probability=0.01, masking_max_ngram=1)[1] == [6]


@pytest.mark.parametrize("longer", [False, True])
def test_permuted_tokens_are_those_that_are_not_masked(longer):
    masked, positions, labels, _, spans = mask(
        masking_probability=0.4, masking_max_ngram=2, masking_do_permutation=True, masking_use_longer_ngrams=longer
    )
    covered = {position for span, _ in spans for position in span}
    moved = set(positions) - covered
    assert moved
    assert sorted(masked[i] for i in moved) == sorted(TEXT[i] for i in moved)
    assert labels == [TEXT[i] for i in positions]
