"""Encodes texts as token ids with the tokenizer's own library (the truth) or with the faster `gigatoken`.

`gigatoken` needs a certificate, which lists the code points that the two libraries treat differently; texts with such a
code point are encoded by the tokenizer's own library. The two libraries must also give equal ids for hard strings, for
a sample of the input, and for one text of each later block. A fallback to the tokenizer's own library logs a warning.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from itertools import accumulate
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from tokenloom._native import texts_with
from tokenloom.errors import ConfigError, MissingExtraError, RefusedTextError, TokenizerError
from tokenloom.inputs.utf8_texts import Utf8Texts, utf8_texts
from tokenloom.machine import own_memory_bytes
from tokenloom.optional import require
from tokenloom.tokenizers.kinds import EngineName
from tokenloom.tokenizers.text_tokenizer import (
    Encoded,
    TextTokenizer,
    failures,
    joined,
    refusals,
    require_sound,
    shortened,
)

TABLE = Path(__file__).with_name("certificates.json")
FAST_LIBRARY = "gigatoken"


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """All Unicode code points (`ranges`) that two libraries treat differently under one set of cutting rules."""

    name: str
    libraries: tuple[str, str]  # each as `name version`
    unicode: tuple[str, str]  # the Unicode version of each library
    rules: tuple[str, ...]  # as in `FastEncodable.cutting_rules`
    ranges: tuple[tuple[int, int], ...]  # half-open ranges of code points that the libraries treat differently

    @property
    def identity(self) -> str:
        """A hash, 12 hex digits, of the libraries, rules and ranges."""
        data = json.dumps([self.libraries, self.rules, self.ranges]).encode()
        return hashlib.sha256(data).hexdigest()[:12]


def installed_libraries(truth: str) -> tuple[str, str]:
    """Returns the installed versions of `gigatoken` and of the library `truth`, each as `name version`."""
    return f"{FAST_LIBRARY} {version(FAST_LIBRARY)}", f"{truth} {version(truth)}"


@functools.cache
def read_table() -> tuple[Certificate, ...]:
    """Returns all certificates from `certificates.json`."""
    found = []
    for row in json.loads(TABLE.read_text(encoding="utf-8")):
        bounds = [[int(bound, 16) for bound in each.split("-")] for each in row.pop("ranges")]
        name, ranges = row.pop("name"), tuple((each[0], each[-1] + 1) for each in bounds)
        found.append(Certificate(name=name, ranges=ranges, **{key: tuple(value) for key, value in row.items()}))
    return tuple(found)


_LOGGER = logging.getLogger(__name__)

# A slow engine takes about 100 ms per block. Larger blocks would delay an interrupt longer.
_FAST_BLOCK_BYTES = 4 << 20
_SLOW_BLOCK_BYTES = 256 << 10
_FAST = ("gigatoken", "numpy")

# `gigatoken` caches every distinct word. The cache takes 20 MB for 500 MB of source code, 330 MB for 45 MB of random
# words. An engine is replaced if the process has grown too much and the engine has encoded enough text to be the cause.
_GROWTH_BYTES = 64 << 20  # per process, plus the same amount per worker thread
_RENEWAL_BYTES = 8 << 20

# Cases that `tools/sweep_tokenizers.py` does not cover: contractions, combined code points, normalization, long runs.
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

_SAMPLE_CHARACTERS = 128 << 10  # `tokenizers` encodes this sample in about 60 ms
_SAMPLE_TEXT_CHARACTERS = 4 << 10
_RECHECK_CHARACTERS = 1 << 10  # encoding this many characters again takes less than 2 % of the time of a block


Engine: TypeAlias = "TextTokenizer | GigatokenEngine"
"""An encoder that turns texts into ids and adds no special tokens. Only one thread at a time may use an instance."""


@runtime_checkable
class FastEncodable(Protocol):
    """The members, besides those of `TextTokenizer`, with which `gigatoken` can load a tokenizer."""

    @property
    def special_tokens(self) -> Mapping[str, int]:
        """Ids of the special tokens by spelling; a special token that a text spells out is encoded as its id."""

    @property
    def cutting_rules(self) -> tuple[str, ...]:
        """The rules, in order, that normalize a text and then split the text into words; see `Certificate`."""

    def load_gigatoken(self, module: Any) -> Any:
        """Loads this tokenizer with `module` (`gigatoken`); any exception means that the tokenizer is not supported."""


class GigatokenEngine:
    """An engine that encodes with `gigatoken`, or with the tokenizer's own library where the two may differ.

    That library encodes texts with a code point in `certificate.ranges`; without a certificate, it encodes none.

    Use one instance per thread: two threads that share an instance are slower than one thread.
    """

    engine_name = FAST_LIBRARY

    def __init__(self, tokenizer: TextTokenizer, certificate: Certificate | None = None) -> None:
        self._truth = tokenizer
        self.certificate = certificate
        module = require("gigatoken", extra="tokenizers")
        message, hint = f"`gigatoken` does not support tokenizer `{tokenizer.path}`", _use(tokenizer)
        if not isinstance(tokenizer, FastEncodable):
            message += f": the ids are not exact for tokenizers of the kind {tokenizer.kind!r}"
            raise TokenizerError(message, hint=hint)
        with failures(message, hint=hint):
            self._backend = tokenizer.load_gigatoken(module)

    def encode_texts(self, texts: Sequence[str]) -> Encoded:
        if not texts:
            return Encoded(np.empty(0, dtype=np.uint32), np.empty(0, dtype=np.int64))
        batch: Any = list(texts)
        if isinstance(texts, Utf8Texts):  # `gigatoken` reads an `awkward` array without copying it
            awkward = require("awkward", extra="tokenizers")
            letters = awkward.contents.NumpyArray(texts.content, parameters={"__array__": "char"})
            kind, offsets = {"__array__": "string"}, awkward.index.Index64(texts.offsets)
            batch = awkward.Array(awkward.contents.ListOffsetArray(offsets, letters, parameters=kind))
        rows = self._backend.encode_batch(batch, parallel=False)
        offsets = np.asarray(rows.layout.offsets.data)
        encoded = Encoded(np.asarray(rows.layout.content.data)[offsets[0] : offsets[-1]], np.diff(offsets))
        if self.certificate is None:
            return encoded
        utf8 = texts if isinstance(texts, Utf8Texts) else utf8_texts(["" if each.isascii() else each for each in texts])
        ranges = np.array(self.certificate.ranges, dtype=np.uint32).reshape(-1, 2)
        numbers = texts_with(utf8.content, utf8.offsets, ranges).tolist()
        if not numbers:
            return encoded
        corrected = encoded.rows()
        others = self._truth.encode_texts([texts[number] for number in numbers]).rows()
        for number, row in zip(numbers, others, strict=True):
            corrected[number] = row
        return joined(corrected, np.uint32)


def _use(truth: Engine) -> str:
    return f"use the engine `{truth.engine_name}`"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineChoice:
    """The chosen engine, with the reason for the choice."""

    name: str
    reason: str  # the checks that the engine passed, or why the faster engine is not used
    create: Callable[[], Engine]  # creates an engine for one thread; the first call returns the checked engine
    certificate: str | None = None  # identity of `gigatoken`'s certificate; None if the tokenizer's own library encodes

    @property
    def recorded(self) -> str:
        """The name of the engine and the identity of its certificate, as recorded in manifests."""
        return self.name if self.certificate is None else f"{self.name} (certificate {self.certificate})"

    @property
    def block_bytes(self) -> int:
        """The size of a block, in bytes of text, for which a thread was fastest in measurements."""
        return _FAST_BLOCK_BYTES if self.name in _FAST else _SLOW_BLOCK_BYTES


def choose_engine(requested: EngineName, tokenizer: TextTokenizer, sample: Sequence[str]) -> EngineChoice:
    """Chooses the engine; chooses `gigatoken` only after a comparison with the tokenizer's own library.

    For byte-level BPE (of Hugging Face or tiktoken), `auto` chooses `gigatoken` if there is a certificate and the two
    libraries give equal ids for hard strings and for 128 K characters of `sample`. Otherwise `auto` logs a warning and
    chooses the other one. If `gigatoken` is requested, a missing certificate or a different id is a `TokenizerError`.
    """
    truth = tokenizer.engine_name
    if requested not in ("auto", FAST_LIBRARY, truth):
        message = f"`engine`: {requested!r} does not support `{tokenizer.path}`, a tokenizer of kind {tokenizer.kind!r}"
        raise ConfigError(message, hint=f"choose auto, {FAST_LIBRARY} or {truth}")
    if requested == truth:
        return EngineChoice(name=truth, reason="requested", create=lambda: tokenizer)
    if requested == "auto" and not isinstance(tokenizer, FastEncodable):
        reason = f"the only engine for tokenizers of kind {tokenizer.kind!r}"
        return EngineChoice(name=truth, reason=reason, create=lambda: tokenizer)
    texts = [*hard_texts(tokenizer), *pieces_of(sample)]
    try:
        engine = GigatokenEngine(tokenizer)
        engine.certificate = certificate = certificate_of(tokenizer)
        require_equal(engine, tokenizer, texts)
    except (TokenizerError, MissingExtraError) as error:
        if requested == FAST_LIBRARY:
            raise
        _LOGGER.warning("tokenizing with the slow engine `%s`: %s", truth, error.message)
        return EngineChoice(name=truth, reason=error.message, create=lambda: tokenizer)
    spare = [engine]  # the only reference to the engine, so that the engine can be freed after it has grown
    del engine
    return EngineChoice(
        name=FAST_LIBRARY,
        reason=f"the same ids as `{truth}` for {len(texts)} texts before the start and for one text per block, "
        f"certificate {certificate.identity} for all code points",
        create=lambda: spare.pop() if spare else GigatokenEngine(tokenizer, certificate),
        certificate=certificate.identity,
    )


def certificate_of(tokenizer: TextTokenizer) -> Certificate:
    """Returns the certificate for a tokenizer and the installed libraries; raises `TokenizerError` if none exists."""
    libraries = installed_libraries(tokenizer.engine_name)
    rules = tokenizer.cutting_rules if isinstance(tokenizer, FastEncodable) else ()
    for each in read_table():
        if (each.libraries, each.rules) == (libraries, tuple(rules)):
            return each
    known = {each.libraries for each in read_table()}
    if libraries in known:
        message = f"`{libraries[0]}` has no certificate for the cutting rules of `{tokenizer.path}`: {rules}"
        raise TokenizerError(message, hint=_use(tokenizer))
    certified = [" with ".join(pair) for pair in known if pair[1].split()[0] == tokenizer.engine_name]
    hint = f"install {' or '.join(sorted(certified))}, or {_use(tokenizer)}"
    raise TokenizerError(f"no certificate compares `{libraries[0]}` with `{libraries[1]}`", hint=hint)


def require_equal(engine: Engine, truth: Engine, texts: Sequence[str]) -> None:
    """Raises `TokenizerError` if `engine` and `truth` give different ids for one of the texts."""
    found, expected = _encoded(engine, texts).rows(), _encoded(truth, texts).rows()
    for text, ours, theirs in zip(texts, found, expected, strict=True):
        _require_equal_ids(engine, truth, text, ours, theirs)


def recheck(engine: Engine, truth: Engine, texts: Sequence[str], encoded: Encoded, *, choice: int) -> None:
    """Encodes one of `texts` with `truth`; raises `TokenizerError` if the ids differ from `engine`'s ids in `encoded`.

    `choice` (any integer) selects the text; of a long text, both engines encode the start. If an engine fails, the
    comparison is skipped with a warning: `choice` must not decide whether a record is bad.
    """
    if not texts:
        return
    index = choice % len(texts)
    text = texts[index]
    stop = int(encoded.lengths[: index + 1].sum())
    try:
        if len(text) > _RECHECK_CHARACTERS:
            require_equal(engine, truth, [text[:_RECHECK_CHARACTERS]])
            return
        expected = _encoded(truth, [text]).tokens
    except RefusedTextError as error:
        _LOGGER.warning("could not recheck the ids of `%s` for one text: %s", engine.engine_name, error.message)
        return
    _require_equal_ids(engine, truth, text, encoded.tokens[stop - int(encoded.lengths[index]) : stop], expected)


def _require_equal_ids(engine: Engine, truth: Engine, text: str, found: NDArray[Any], expected: NDArray[Any]) -> None:
    if np.array_equal(found, expected):
        return
    pairs = enumerate(zip(expected.tolist(), found.tolist(), strict=False))
    at = next((index for index, (a, b) in pairs if a != b), min(len(expected), len(found)))
    message = f"`{engine.engine_name}` and `{truth.engine_name}` give different ids for {shortened(text, 80)!r}: "
    message += f"expected {expected[at : at + 4].tolist()} from token index {at}, found {found[at : at + 4].tolist()}"
    raise TokenizerError(message, hint=_use(truth))


def _encoded(engine: Engine, texts: Sequence[str]) -> Encoded:
    with refusals(f"`{engine.engine_name}`"):
        return engine.encode_texts(texts)


def hard_texts(tokenizer: TextTokenizer) -> list[str]:
    """Returns strings for which engines are likely to give different ids, some with the tokenizer's special tokens."""
    added = list(tokenizer.special_tokens)[:64] if isinstance(tokenizer, FastEncodable) else []
    return [*_HARD_TEXTS, *added, *(f"before {token}{token} after {token} " for token in added), "".join(added)]


def pieces_of(sample: Sequence[str]) -> list[str]:
    """Returns the starts of texts that are spread evenly over `sample`, at most `_SAMPLE_CHARACTERS` in total."""
    num_pieces = _SAMPLE_CHARACTERS // _SAMPLE_TEXT_CHARACTERS
    pieces = [text[:_SAMPLE_TEXT_CHARACTERS] for text in [*sample[:: max(1, len(sample) // num_pieces)], *sample]]
    totals = accumulate(map(len, pieces))
    return [piece for piece, total in zip(pieces, totals, strict=True) if total <= _SAMPLE_CHARACTERS]


class EnginePool:
    """A thread-safe encoder for `num_workers` threads, with a pool of engines: one engine per concurrent call."""

    def __init__(self, tokenizer: TextTokenizer, choice: EngineChoice, *, num_workers: int) -> None:
        self._tokenizer = tokenizer
        self._choice = choice
        self._idle: list[tuple[Engine, int]] = []  # each with the number of bytes of text that it has encoded
        self._budget = own_memory_bytes() + _GROWTH_BYTES * (1 + num_workers)

    def encode(self, texts: Sequence[str], *, num_bytes: int, number: int) -> Encoded:
        """Encodes texts of `num_bytes` in total; `number` (any integer) selects the text to recheck.

        Raises:
            RefusedTextError: the engine failed on a text, or gave ids out of range. That engine is not used again.
        """
        try:
            engine, done = self._idle.pop()
        except IndexError:
            engine, done = self._choice.create(), 0
        encoded = _encoded(engine, texts)
        vocab_size, hint = self._tokenizer.vocab_size, _use(self._tokenizer)
        require_sound(encoded, num_texts=len(texts), vocab_size=vocab_size, hint=hint)
        if self._choice.certificate is not None:
            recheck(engine, self._tokenizer, texts, encoded, choice=number)
        done += num_bytes
        if done < _RENEWAL_BYTES or own_memory_bytes() < self._budget:
            self._idle.append((engine, done))
        else:
            del engine
            if (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
                trim(0)  # glibc does not by itself return memory that threads freed
        return encoded


@contextmanager
def one_thread_per_call() -> Iterator[None]:
    """Disables the internal threads of `tokenizers` in the `with` block, unless `TOKENIZERS_PARALLELISM` is set."""
    variable = "TOKENIZERS_PARALLELISM"
    is_set = variable in os.environ
    os.environ.setdefault(variable, "false")
    try:
        yield
    finally:
        if not is_set:
            os.environ.pop(variable, None)
