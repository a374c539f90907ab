"""Holding a fast engine to the tokenizer's own library: on hard texts, on a sample of the input, on every block."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from tokenloom.errors import RefusedTextError, TokenizerError
from tokenloom.tokenizers.failures import refusals
from tokenloom.tokenizers.text_tokenizer import Encoded, TextTokenizer

_LOGGER = logging.getLogger(__name__)

# What the sweep of single code points cannot see: runs, contractions, sequences, normalisation, merges over long runs.
_HARD_TEXTS = (
    "",
    " ",
    "Hello, world! It's 12:30; they'll've said \"no\"...",
    "  leading,   inner    and trailing   ",
    "\ttabs\t\tand\nnewlines\n\n\n \r\n\r mixed \n",
    "e\u0301 \u00e9 A\u030a \u00c5 \u1e9b\u0323 o\u0302\u0323 \u0915\u094d\u0937\u093f combining",
    "👍🏽 👨‍👩‍👧‍👦 🏳️‍🌈 🇩🇪 ❤️ ☺ \U0001d56c\U0001d587\U0001d588 𐍈 🫠",
    "0 12 123 1234 12345678901234567890 1,000.50 1e-5 0xFF 3½ ٣٤",
    "def f(x):\n    return {'a': [1, 2], \"b\": x**2}  # comment\n\n\nclass A_b: pass\n",
    "https://example.org/a?b=c&d=%20#e user@example.org C:\\Users\\x /usr/bin/env",
    "don't DON'T Don\u2019t we're I'M y'all 's 't 'LL",
    "CamelCaseWords snake_case_words SHOUTING lowerUPPER123mixed",
    "a" * 3000,
    " " * 1000,
    "\n" * 300,
    "=" * 500 + "-" * 500,
    "한" * 500,
    "abcdefghijklmnopqrstuvwxyz" * 40,
)

_SAMPLE_CHARACTERS = 128 << 10  # `tokenizers` needs some 60 ms for them
_SAMPLE_TEXT_CHARACTERS = 4 << 10
_RECHECK_CHARACTERS = 1 << 10  # under 2 % of the time of a block


class Engine(Protocol):
    """Turns texts into ids, no special tokens added. Used by one thread at a time; deterministic; not picklable."""

    @property
    def name(self) -> str:
        """Name of the engine."""

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Returns the ids of each text, which must hold no lone surrogates."""


def require_equal(engine: Engine, truth: Engine, texts: Sequence[str], *, expected: Encoded | None = None) -> None:
    """Compares two engines.

    Args:
        engine: engine to be compared.
        truth: ids that the tokenizer's own library gives.
        texts: texts to encode.
        expected: what the truth gives for them; None to ask it.

    Raises:
        RefusedTextError: one of them fails on a text.
        TokenizerError: they give different ids for one of the texts.
    """
    found = _encoded(engine, texts)
    expected = _encoded(truth, texts) if expected is None else expected
    if np.array_equal(found.lengths, expected.lengths) and np.array_equal(found.tokens, expected.tokens):
        return
    for text in texts:
        first, second = _encoded(engine, [text]).tokens, _encoded(truth, [text]).tokens
        if not np.array_equal(first, second):
            raise _mismatch(engine, truth, text, second.tolist(), first.tolist())
    message = (
        f"`{engine.name}` and `{truth.name}` give different ids for {len(texts)} texts together, but for none alone"
    )
    raise TokenizerError(message, hint=f"use the engine `{truth.name}`")


def recheck(engine: Engine, truth: Engine, texts: Sequence[str], encoded: Encoded, *, choice: int) -> None:
    """Compares one text of a block that was just encoded, or the beginning of a long one, with the truth.

    A text that the truth cannot take is not compared: whether a record is bad must not depend on which one is chosen.

    Args:
        engine: engine that encoded the block.
        truth: ids that the tokenizer's own library gives.
        texts: texts of the block.
        encoded: their ids.
        choice: any number; it selects the text.

    Raises:
        TokenizerError: the ids differ.
    """
    if not texts:
        return
    index = choice % len(texts)
    text = texts[index]
    try:
        if len(text) > _RECHECK_CHARACTERS:
            require_equal(engine, truth, [text[:_RECHECK_CHARACTERS]])
            return
        expected = _encoded(truth, [text]).tokens
    except RefusedTextError as error:
        _LOGGER.warning("a text of `%s` could not be compared: %s", engine.name, error.message)
        return
    stop = int(encoded.lengths[: index + 1].sum())
    found = encoded.tokens[stop - int(encoded.lengths[index]) : stop]
    if not np.array_equal(found, expected):
        raise _mismatch(engine, truth, text, expected.tolist(), found.tolist())


def texts_taken_by(engine: Engine, texts: Sequence[str]) -> tuple[list[str], Encoded]:
    """Returns the texts on which an engine does not fail, and their ids."""

    def takes(text: str) -> bool:
        try:
            _encoded(engine, [text])
        except RefusedTextError:
            return False
        return True

    try:
        return list(texts), _encoded(engine, texts)
    except RefusedTextError:
        taken = [text for text in texts if takes(text)]
        return taken, _encoded(engine, taken)


def _encoded(engine: Engine, texts: Sequence[str]) -> Encoded:
    with refusals(f"`{engine.name}`"):
        return engine.encode(texts)


def hard_texts(tokenizer: TextTokenizer) -> list[str]:
    """Returns strings that engines are likely to disagree about, with the special tokens of this tokenizer."""
    added = list(tokenizer.special_tokens)[:64]
    return [*_HARD_TEXTS, *added, *(f"before {token}{token} after {token} " for token in added), "".join(added)]


def pieces_of(sample: Sequence[str]) -> list[str]:
    """Returns texts spread evenly through the sample, each cut to a length, up to the budget of characters."""
    wanted = _SAMPLE_CHARACTERS // _SAMPLE_TEXT_CHARACTERS
    total = 0
    pieces: list[str] = []
    for text in [*sample[:: max(1, len(sample) // wanted)], *sample]:
        piece = text[:_SAMPLE_TEXT_CHARACTERS]
        total += len(piece)
        if total > _SAMPLE_CHARACTERS:
            break
        pieces.append(piece)
    return pieces


def _mismatch(engine: Engine, truth: Engine, text: str, expected: list[int], found: list[int]) -> TokenizerError:
    at = next(
        (index for index, (a, b) in enumerate(zip(expected, found, strict=False)) if a != b),
        min(len(expected), len(found)),
    )
    shown = text if len(text) <= 80 else text[:77] + "..."
    message = (
        f"`{engine.name}` and `{truth.name}` give different ids for {shown!r}: expected {expected[at : at + 4]} "
        f"from token {at} on, found {found[at : at + 4]}"
    )
    return TokenizerError(message, hint=f"use the engine `{truth.name}`")
