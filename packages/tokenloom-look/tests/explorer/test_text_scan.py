"""Where tokens may spell a text."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tokenloom_look.explorer.text_scan import TextScan

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
