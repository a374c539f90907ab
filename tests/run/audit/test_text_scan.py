"""Where tokens may spell a text."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.preprocess.corpus import byte_level_json
from tests.run.audit.greedy import WORDS, Greedy

from tokenloom.errors import ConfigError
from tokenloom.run.audit.text_scan import TextScan, seed_of, vocabulary_texts
from tokenloom.tokenizers.load import load_tokenizer

TEXTS = ["", "a", "b", "c", "ab", "bc", "abc", "ca", "cab", " a", "\ufffd"]


def begins_of(texts: list[str], tokens: list[int], seed: str) -> list[int]:
    """Returns the tokens in which a text begins, by looking at every character."""
    owners = [place for place, number in enumerate(tokens) for _ in texts[number]]
    whole = "".join(texts[number] for number in tokens)
    return sorted({owners[at] for at in range(len(whole) - len(seed) + 1) if whole.startswith(seed, at)})


@given(st.lists(st.integers(0, len(TEXTS) - 1), max_size=40), st.text("abc ", min_size=1, max_size=9))
def test_texts_are_found_however_they_are_cut(tokens, seed):
    found = TextScan(seed, TEXTS).places(np.array(tokens, dtype=np.uint16))
    assert found.tolist() == begins_of(TEXTS, tokens, seed)


def test_ids_beyond_the_vocabulary_spell_nothing():
    scan = TextScan("ab", TEXTS)
    assert scan.places(np.array([1, 60000, 2, 1, 2], dtype=np.uint16)).tolist() == [3]
    assert scan.places(np.array([], dtype=np.int32)).tolist() == []


def test_tokens_add_what_they_add_behind_others(tmp_path):
    assert vocabulary_texts(Greedy())[256:] == WORDS
    (tmp_path / "tokenizer.json").write_text(byte_level_json())
    tokenizer = load_tokenizer(str(tmp_path / "tokenizer.json"))
    text = "def page(text): return text.strip()\n"
    texts = vocabulary_texts(tokenizer)
    assert "".join(texts[number] for number in tokenizer.tokenize(text)) == text


def test_what_tables_are_made_for():
    assert [seed_of(text) for text in ("cat", "中文 ab", "é", "", "x" * 99)] == ["cat", " ab", "", "", "x" * 24]
    with pytest.raises(ConfigError, match="expected 1 to 24 characters of ASCII, found 'é'"):
        TextScan("é", TEXTS)
