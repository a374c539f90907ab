from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenloom.errors import TokenizerError
from tokenloom.tokenizers.plain import ByteTokenizer, NullTokenizer


def test_bytes_are_ids():
    tokenizer = ByteTokenizer()
    assert tokenizer.tokenize("a\x00é€") == [97, 0, 195, 169, 226, 130, 172]
    assert (tokenizer.vocab_size, tokenizer.eod, tokenizer.eos, tokenizer.bos, tokenizer.pad) == (
        259,
        256,
        256,
        257,
        258,
    )
    assert tokenizer.detokenize([257, 97, 226, 130, 256, 258]) == "<bos>a\ufffd<eod><pad>"
    assert tokenizer.tokens_to_ids(["<eod>", "a", "é", "ab", ""]) == [256, 97, None, None, None]


def test_integers_are_ids():
    tokenizer = NullTokenizer(50)
    assert (tokenizer.vocab_size, tokenizer.eod, tokenizer.path) == (51, 50, "null:50")
    assert tokenizer.tokenize(" 7\t0\r\n50 007 ") == [7, 0, 50, 7]
    assert tokenizer.detokenize([7, 0, 50]) == "7 0 50"
    assert tokenizer.tokens_to_ids(["3", "50", "51", "x", "-1", "", "٣", "9" * 5000]) == [3, 50] + [None] * 6


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("51", "'51'"),
        ("1 -2", "'-'"),
        ("1,2", "','"),
        ("1.5", r"'\.'"),
        ("1_0", "'_'"),
        ("٣", "'٣'"),
        ("1\u20032", r"'\\u2003'"),
        ("1\x002", r"'\\x00'"),
        ("word", "'word'"),
        ("9" * 30, "'9{30}'"),
        ("9" * 5000, r"'9{37}\.\.\.'"),
    ],
)
def test_what_is_no_id_is_named(text: str, found: str):
    with pytest.raises(
        TokenizerError, match=rf"expected integers in \[0, 51\) between white space, found {found}\nhint"
    ):
        NullTokenizer(50).tokenize(text)


@given(ids=st.lists(st.integers(0, 2**31 - 2)))
def test_all_ids_survive_the_round_trip(ids: list[int]):
    tokenizer = NullTokenizer(2**31 - 2)
    assert tokenizer.tokenize(tokenizer.detokenize(ids)) == ids
    assert tokenizer.encode_texts([tokenizer.detokenize(ids)]).tokens.dtype == np.int64
