"""The tokenizer of a run, from its lock."""

from __future__ import annotations

import pickle

import pytest
from tests.support import StandInTokenizer

from tokenloom.datasets.tokenizer import NO_TOKEN, pad_token_id
from tokenloom.errors import ConfigError
from tokenloom.run.dataset import RunTokenizer
from tokenloom.run.lock import LockedTokenizer
from tokenloom.run.locking import locked_tokenizer

SHA256 = "ab" * 32


def known(**ids):
    tokenizer = StandInTokenizer(**ids)
    tokenizer.sha256 = SHA256
    return tokenizer


def test_what_is_locked():
    found = locked_tokenizer("t.json", known(pad=1), allow_ambiguous_pad=False)
    assert found == LockedTokenizer(name="t.json", fingerprint=SHA256, eod=9, pad=1, vocab_size=100)


def test_a_pad_that_is_another_token_counts_where_that_is_allowed():
    assert locked_tokenizer("t.json", known(pad=9), allow_ambiguous_pad=False).pad is None
    tokenizer = RunTokenizer(locked_tokenizer("t.json", known(pad=9), allow_ambiguous_pad=True), None)
    with pytest.warns(UserWarning, match="pad id 9"):
        assert pad_token_id(tokenizer, allow_ambiguous=True) == 9


def test_samples_get_their_ids_without_loading_anything():
    locked = locked_tokenizer("t.json", known(pad=1), allow_ambiguous_pad=False)
    tokenizer = pickle.loads(pickle.dumps(RunTokenizer(locked, "/nowhere/t.json")))
    assert (tokenizer.eod, tokenizer.pad, tokenizer.vocab_size) == (9, 1, 100)
    assert pad_token_id(tokenizer, allow_ambiguous=False) == 1
    with pytest.raises(Exception, match="nowhere"):
        tokenizer.tokenize("text")


def test_a_run_that_names_none():
    tokenizer = RunTokenizer(None, None)
    assert tokenizer.vocab_size is None
    assert pad_token_id(tokenizer, allow_ambiguous=False) == NO_TOKEN
    with pytest.raises(
        ConfigError, match=r"expected a `tokenizer` in run\.toml with an end-of-document id, found none"
    ):
        _ = tokenizer.eod
    with pytest.raises(ConfigError, match="where texts are needed, found none"):
        tokenizer.tokenize("text")
