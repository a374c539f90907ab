"""Texts into token ids: `tokenizers`, which is the truth, and `gigatoken`, a hundred times faster and held to it.

`gigatoken` is taken only after it gave the same ids on strings chosen to be hard and on a sample of the input, and one
text of every later block is compared too. It never replaces `tokenizers` silently, nor the other way round.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import ConfigError, MissingExtraError, TokenizerError
from tokenloom.optional import require
from tokenloom.preprocess.tokenizers import HuggingFaceTokenizer

EngineName = Literal["auto", "gigatoken", "tokenizers"]
ENGINES: tuple[EngineName, ...] = ("auto", "gigatoken", "tokenizers")

# What engines disagree about: character classes, normalisation, byte fallback, white space, merges over long runs.
_HARD_TEXTS = (
    "",
    " ",
    "a",
    "Hello, world! It's 12:30; they'll've said \"no\"...",
    "  leading,   inner    and trailing   ",
    "\ttabs\t\tand\nnewlines\n\n\n \r\n\r mixed \n",
    "\x00\x01\x07\x1b[0m\x7f\x85\x9f control",
    "\u00a0\u1680\u2003\u200b\u2028\u2029\u202f\u3000\ufeff spaces",
    "e\u0301 \u00e9 A\u030a \u00c5 \u1e9b\u0323 o\u0302\u0323 \u0915\u094d\u0937\u093f combining",
    "\ufb01 \u2460 \u33a1 \uff21\uff22\uff23 \u00b2 \u00bd \u2167 compatibility",
    "Größe, naïve façade, Łódź, İstanbul, ﬁn, ŐŰ",
    "Привет, мир! Ελληνικά. עברית ושלום. العربية ١٢٣. हिन्दी में। ภาษาไทย",
    "中文字符没有空格。日本語のテキスト、カタカナ。한국어 문장입니다. 繁體中文",
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
    "é" * 700,
    "한" * 500,
    "abcdefghijklmnopqrstuvwxyz" * 40,
    "\ufffd\uffff\U0010ffff\ue000 outside",
)

_SAMPLE_CHARACTERS = 128 << 10  # `tokenizers` needs some 60 ms for them
_SAMPLE_TEXT_CHARACTERS = 4 << 10
_RECHECK_CHARACTERS = 1 << 10  # under 2 % of the time of a block


@dataclass(frozen=True, slots=True)
class Encoded:
    """The ids of some texts: `tokens`, unsigned or signed integers, back to back, and `lengths`: int64[num_texts]."""

    tokens: NDArray[Any]
    lengths: NDArray[np.int64]


class Engine(Protocol):
    """Turns texts into ids, no special tokens added. Used by one thread at a time; deterministic; not picklable."""

    name: str

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Returns the ids of each text, which must hold no lone surrogates."""


class TokenizersEngine:
    """`tokenizers`; instances share the tokenizer, which is safe from several threads."""

    name = "tokenizers"

    def __init__(self, tokenizer: HuggingFaceTokenizer) -> None:
        self._backend = tokenizer.backend

    def encode(self, texts: Sequence[str]) -> Encoded:
        encodings = self._backend.encode_batch_fast(list(texts), add_special_tokens=False)
        rows = [np.array(encoding.ids, dtype=np.uint32) for encoding in encodings]
        tokens = np.concatenate(rows) if rows else np.empty(0, dtype=np.uint32)
        return Encoded(tokens, np.array([len(row) for row in rows], dtype=np.int64))


class GigatokenEngine:
    """`gigatoken`; one instance per thread, because two threads in one instance are slower than one thread.

    Raises:
        TokenizerError: it does not support the tokenizer.
        MissingExtraError: it is not installed.
    """

    name = "gigatoken"

    def __init__(self, tokenizer: HuggingFaceTokenizer) -> None:
        module = require("gigatoken", extra="preprocess")
        try:
            self._backend = module.Tokenizer.from_json(tokenizer.data)
        except Exception as error:  # whatever it raises means that it cannot be used
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            message = f"`gigatoken` does not support tokenizer `{tokenizer.path}`: {reason}"
            raise TokenizerError(message, hint="use the engine `tokenizers`") from error

    def encode(self, texts: Sequence[str]) -> Encoded:
        if not texts:
            return Encoded(np.empty(0, dtype=np.uint32), np.empty(0, dtype=np.int64))
        layout = self._backend.encode_batch(list(texts), parallel=False).layout
        offsets = np.asarray(layout.offsets.data)
        return Encoded(np.asarray(layout.content.data)[offsets[0] : offsets[-1]], np.diff(offsets))


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineChoice:
    """Which engine runs, and why.

    Attributes:
        name: of the engine.
        reason: one phrase: what was checked, or why the faster engine is not used.
        create: makes an engine for one thread; the first is the one that was checked.
        must_agree: whether blocks are compared with `tokenizers` as they come.
    """

    name: str
    reason: str
    create: Callable[[], Engine]
    must_agree: bool


def choose_engine(requested: EngineName, tokenizer: HuggingFaceTokenizer, sample: Sequence[str]) -> EngineChoice:
    """Returns the engine to use, after comparing `gigatoken` with `tokenizers` unless the latter was asked for.

    Args:
        requested: `auto` prefers `gigatoken` for byte-level tokenizers where it gives the same ids.
        tokenizer: the truth.
        sample: texts of the input; some hundred kilobytes of them are compared.

    Raises:
        TokenizerError: `gigatoken` was asked for and does not support the tokenizer, or gives other ids; or the
            tokenizer gives random ids.
        MissingExtraError: `gigatoken` was asked for and is not installed.
    """
    if requested not in ENGINES:
        message = f"expected an engine out of {', '.join(ENGINES)}, got {requested!r}"
        raise ConfigError(message)
    if dropout := getattr(tokenizer.backend.model, "dropout", None):
        message = f"tokenizer `{tokenizer.path}` drops merges at random (dropout {dropout}): its ids cannot be repeated"
        raise TokenizerError(message, hint="set `dropout` to null in its file")
    truth = TokenizersEngine(tokenizer)

    def slow(reason: str) -> EngineChoice:
        return EngineChoice(name=truth.name, reason=reason, create=lambda: truth, must_agree=False)

    if requested == "tokenizers":
        return slow("asked for")
    texts = [*_hard_texts(tokenizer), *_pieces(sample)]
    try:
        engine = GigatokenEngine(tokenizer)
        if requested == "auto" and getattr(tokenizer.backend.model, "byte_fallback", False):
            # Measured: its SentencePiece side differs on a third of a set of difficult documents.
            return slow("`gigatoken` is not exact enough for tokenizers in the manner of SentencePiece")
        require_equal(engine, truth, texts)
    except (TokenizerError, MissingExtraError) as error:
        if requested == "gigatoken":
            raise
        return slow(error.message)
    spare = [engine]  # not held beyond its use: it will be replaced when it has grown
    del engine
    return EngineChoice(
        name=GigatokenEngine.name,
        reason=f"same ids as `tokenizers` for {len(texts)} texts at the start and one of each block",
        create=lambda: spare.pop() if spare else GigatokenEngine(tokenizer),
        must_agree=True,
    )


def require_equal(engine: Engine, truth: Engine, texts: Sequence[str]) -> None:
    """Compares two engines.

    Raises:
        TokenizerError: they give different ids for one of the texts.
    """
    found, expected = engine.encode(texts), truth.encode(texts)
    if np.array_equal(found.lengths, expected.lengths) and np.array_equal(found.tokens, expected.tokens):
        return
    for text in texts:
        first, second = engine.encode([text]).tokens, truth.encode([text]).tokens
        if not np.array_equal(first, second):
            raise _mismatch(engine.name, text, second.tolist(), first.tolist())
    message = f"`{engine.name}` and `tokenizers` give different ids for {len(texts)} texts together, but for none alone"
    raise TokenizerError(message, hint="use the engine `tokenizers`")


def recheck(engine: Engine, truth: Engine, texts: Sequence[str], encoded: Encoded, *, choice: int) -> None:
    """Compares one text of a block that was just encoded, or the beginning of a long one, with the truth.

    Args:
        engine: that encoded the block.
        truth: `tokenizers`.
        texts: of the block.
        encoded: their ids.
        choice: any number; it selects the text.

    Raises:
        TokenizerError: the ids differ.
    """
    if not texts:
        return
    index = choice % len(texts)
    text = texts[index]
    if len(text) > _RECHECK_CHARACTERS:
        require_equal(engine, truth, [text[:_RECHECK_CHARACTERS]])
        return
    stop = int(encoded.lengths[: index + 1].sum())
    found = encoded.tokens[stop - int(encoded.lengths[index]) : stop]
    expected = truth.encode([text]).tokens
    if not np.array_equal(found, expected):
        raise _mismatch(engine.name, text, expected.tolist(), found.tolist())


@contextmanager
def one_thread_per_call() -> Iterator[None]:
    """Keeps `tokenizers` from starting threads of its own, unless the user has decided about it."""
    variable = "TOKENIZERS_PARALLELISM"
    if variable in os.environ:
        yield
        return
    os.environ[variable] = "false"
    try:
        yield
    finally:
        os.environ.pop(variable, None)


def _hard_texts(tokenizer: HuggingFaceTokenizer) -> list[str]:
    """Returns strings that engines are likely to disagree about, with the special tokens of this tokenizer."""
    added = [token.content for token in tokenizer.backend.get_added_tokens_decoder().values()][:64]
    return [*_HARD_TEXTS, *added, *(f"before {token}{token} after {token} " for token in added), "".join(added)]


def _pieces(sample: Sequence[str]) -> list[str]:
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


def _mismatch(name: str, text: str, expected: list[int], found: list[int]) -> TokenizerError:
    at = next(
        (index for index, (a, b) in enumerate(zip(expected, found, strict=False)) if a != b),
        min(len(expected), len(found)),
    )
    shown = text if len(text) <= 80 else text[:77] + "..."
    message = (
        f"`{name}` and `tokenizers` give different ids for {shown!r}: expected {expected[at : at + 4]} "
        f"from token {at} on, found {found[at : at + 4]}"
    )
    return TokenizerError(message, hint="use the engine `tokenizers`")
