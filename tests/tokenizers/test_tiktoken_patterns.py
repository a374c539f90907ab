"""Patterns that cut text before ranks are looked up."""

from __future__ import annotations

import hashlib

import pytest
from tests.preprocess.corpus import make_tiktoken
from tiktoken_ext import openai_public

from tokenloom.errors import TokenizerError
from tokenloom.tokenizers.tiktoken_patterns import GIGATOKEN_SCHEMES, PATTERNS, PUBLISHED, pattern_of
from tokenloom.tokenizers.tiktoken_ranks import read_description


def test_pattern_that_is_none_is_named():
    with pytest.raises(
        TokenizerError, match=r"the pattern '\(' is not one of tiktoken's.*\nhint: .*r50k, p50k, cl100k, o200k"
    ):
        make_tiktoken(pattern="(")


@pytest.mark.parametrize("pattern", ["", "a*", r"\w*", "x{0}", "|a", r"\b|a*"])
def test_pattern_that_matches_no_character_is_named(pattern: str):
    with pytest.raises(TokenizerError, match=r"is not one of tiktoken's: .*\nhint: .* that matches no empty text"):
        make_tiktoken(pattern=pattern)


def test_published_files_are_known_by_their_content(monkeypatch: pytest.MonkeyPatch):
    [name] = {name for name, encoding in PUBLISHED.items() if encoding.name == "cl100k_base"}
    assert pattern_of(PUBLISHED[name].pattern) == PATTERNS["cl100k"]
    assert all(encoding.pattern in PATTERNS for encoding in PUBLISHED.values())
    changed = {hashlib.sha256(b"its content").hexdigest(): PUBLISHED[name]}
    monkeypatch.setattr("tokenloom.tokenizers.tiktoken_ranks.PUBLISHED", changed)
    found = read_description("any name", b"its content")
    assert found is not None
    assert found.special_tokens["<|endofprompt|>"] == 100276


@pytest.mark.parametrize("encoding", PUBLISHED.values(), ids=lambda encoding: encoding.name)
def test_published_encodings_are_those_of_the_library(encoding, monkeypatch: pytest.MonkeyPatch):
    hashes = []
    monkeypatch.setattr(openai_public, "load_tiktoken_bpe", lambda _, expected_hash: hashes.append(expected_hash))
    expected = openai_public.ENCODING_CONSTRUCTORS[encoding.name]()
    assert PUBLISHED[hashes[0]] == encoding
    assert (PATTERNS[encoding.pattern], encoding.special_tokens) == (expected["pat_str"], expected["special_tokens"])
    assert GIGATOKEN_SCHEMES[PATTERNS[encoding.pattern]] in ("gpt2", "gpt4", "o200k")
