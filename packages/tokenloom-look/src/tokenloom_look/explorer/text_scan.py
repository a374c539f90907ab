"""Texts as tokens may spell them, however they are cut: looked for without decoding what is looked through.

The texts of all tokens of a vocabulary are compared with a text once: which hold it, which end as it begins, which go
on with it, which end it. Looking through tokens is then a look into a table each, at some hundred million tokens a
second, and decoding is left to what may be a match.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import ConfigError

_LONGEST = 24
"""Characters of a text that tables are made for: what has these is decoded anyway."""

_ASCII = re.compile("[\x01-\x7f]+")
_LETTER = re.compile("[A-Za-z]")


def vocabulary_texts(tokenizer: Any) -> list[str]:
    """Returns what each token of a vocabulary adds to a text, by its id; broken characters as `\\ufffd`.

    Args:
        tokenizer: what has `detokenize` and `vocab_size`.

    Raises:
        ConfigError: a token cannot be decoded.
    """
    try:
        before = next((id for id in range(tokenizer.vocab_size) if _LETTER.fullmatch(tokenizer.detokenize([id]))), None)
        if before is None:
            return [tokenizer.detokenize([each]) for each in range(tokenizer.vocab_size)]
        # Behind another token, since some tokenizers leave out a space where a text begins.
        text = tokenizer.detokenize([before])
        return [tokenizer.detokenize([before, each]).removeprefix(text) for each in range(tokenizer.vocab_size)]
    except (OverflowError, ValueError, IndexError, TypeError) as error:
        message = f"the tokenizer cannot decode its vocabulary: {error}"
        raise ConfigError(message) from error


def seed_of(text: str) -> str:
    """Returns the longest part of a text that no token holds half a character of; "" if there is none."""
    found: list[str] = _ASCII.findall(text)
    return max(found, key=len, default="")[:_LONGEST]


class TextScan:
    """Finds where tokens may spell a text.

    Args:
        seed: the text, of ASCII characters, 1 to 24 of them.
        texts: the text of each token, by its id.
    """

    def __init__(self, seed: str, texts: Sequence[str]) -> None:
        size = len(texts) + 1  # the last stands for ids that the vocabulary lacks
        self._begins = np.zeros(size, dtype=np.uint64)
        self._ends = np.zeros(size, dtype=np.uint64)
        self._passes = np.zeros(size, dtype=np.uint64)
        self._lengths = np.zeros(size, dtype=np.uint64)
        holds = np.zeros(size, dtype=np.bool_)
        cuts = range(1, len(seed))
        rests = {cut: seed[cut:] for cut in cuts}
        heads = [(cut, seed[:cut]) for cut in cuts]
        everything = sum(1 << cut for cut in cuts)
        for number, text in enumerate(texts):
            if not text:
                self._passes[number] = everything
                continue
            holds[number] = seed in text
            if text[-1] in seed:
                self._begins[number] = sum(1 << cut for cut, head in heads if text.endswith(head))
            if text[0] in seed:
                self._ends[number] = sum(1 << cut for cut in cuts if text.startswith(rests[cut]))
                self._passes[number] = sum(
                    1 << cut for cut in cuts if rests[cut].startswith(text) and len(rests[cut]) > len(text)
                )
                self._lengths[number] = len(text)
        self._holds = holds
        self._is_candidate = holds | (self._begins != 0)

    def places(self, tokens: NDArray[Any]) -> NDArray[np.int64]:
        """Returns the tokens in which the text may begin: int64[num_found], rising.

        Args:
            tokens: integers[num_tokens].
        """
        last = len(self._holds) - 1
        candidates = np.flatnonzero(np.take(self._is_candidate, tokens, mode="clip"))
        ids = np.minimum(tokens[candidates].astype(np.int64), last)
        found = [candidates[self._holds[ids]]]
        masks, begins, at = self._begins[ids], candidates, candidates + 1
        while True:
            alive = (masks != 0) & (at < len(tokens))
            masks, begins, at = masks[alive], begins[alive], at[alive]
            if not len(at):
                return np.unique(np.concatenate(found))
            ids = np.minimum(tokens[at].astype(np.int64), last)
            found.append(begins[(masks & self._ends[ids]) != 0])
            masks = (masks & self._passes[ids]) << self._lengths[ids]
            at = at + 1
