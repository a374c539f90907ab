"""The choice of the pad id of samples."""

from __future__ import annotations

import warnings

import pytest
from tests.support import StandInTokenizer

from tokenloom.datasets.tokenizer import NO_TOKEN, pad_token_id
from tokenloom.errors import AmbiguousPadWarning


class Special(StandInTokenizer):
    """A tokenizer that lists its special tokens."""

    def __init__(self, tokens, **options):
        super().__init__(**options)
        self.special_tokens_dict = tokens


@pytest.mark.parametrize(
    ("tokenizer", "pad"),
    [
        (StandInTokenizer(pad=3), 3),
        (StandInTokenizer(pad=0), 0),
        (StandInTokenizer(pad=3, eod=None), 3),
        (StandInTokenizer(), NO_TOKEN),
        (Special({"pad_token": 3, "bos_token": 4}, pad=3), 3),
        (Special({"bos_token": 4}, pad=9, eod=9), 9),  # only listed special tokens count; `eod` is not listed
        (object(), NO_TOKEN),
    ],
)
def test_a_pad_id_of_its_own_is_taken_without_a_word(tokenizer, pad):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert pad_token_id(tokenizer, allow_ambiguous=False) == pad
        assert pad_token_id(tokenizer, allow_ambiguous=True) == pad


@pytest.mark.parametrize(
    "tokenizer",
    [
        StandInTokenizer(pad=9, eod=9),
        Special({"pad_token": 9, "eos_token": 9}, pad=9, eod=1),
        Special({}, pad=9, eod=9),
    ],
)
def test_a_pad_id_that_means_something_else_is_not_used_unless_asked(tokenizer):
    for allowed, pad, effect in (
        (False, NO_TOKEN, "padding is found by position instead"),
        (True, 9, "`allow_ambiguous_pad_tokens` masks it in the data too"),
    ):
        with pytest.warns(AmbiguousPadWarning, match=f"^pad id 9 is also another special token; {effect}$"):
            assert pad_token_id(tokenizer, allow_ambiguous=allowed) == pad
