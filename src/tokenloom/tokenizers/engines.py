"""Texts into token ids: by the tokenizer's own library, which is the truth, or by `gigatoken`, which is held to it.

`gigatoken` is up to a hundred times faster. It is used only where a certificate says which code points the two treat
differently (texts with one of these go to the tokenizer's own library), and after it gave the same ids on strings
chosen to be hard and on a sample of the input; one text of every later block is compared too. It never replaces the
tokenizer's own library silently, nor the other way round.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from tokenloom.errors import ConfigError, MissingExtraError, TokenizerError
from tokenloom.inputs.utf8_texts import Utf8Texts, utf8_texts
from tokenloom.kernels import texts_with
from tokenloom.optional import require
from tokenloom.tokenizers.certificates import Certificate, find_certificate, installed_libraries, read_table
from tokenloom.tokenizers.engine_checks import Engine, hard_texts, pieces_of, require_equal, texts_taken_by
from tokenloom.tokenizers.failures import is_failure
from tokenloom.tokenizers.kinds import ENGINES, EngineName
from tokenloom.tokenizers.text_tokenizer import Encoded, TextTokenizer, joined

_LOGGER = logging.getLogger(__name__)

# The slow engines need some 100 ms for a block, so that an interruption need not wait for long.
_FAST_BLOCK_BYTES = 4 << 20
_SLOW_BLOCK_BYTES = 256 << 10
_FAST = ("gigatoken", "numpy")


@runtime_checkable
class FastEncodable(Protocol):
    """What a `TextTokenizer` that `gigatoken` may be faster for offers beside."""

    @property
    def draws_at_random(self) -> str | None:
        """Why the ids of a text differ from time to time, or None if they do not."""

    @property
    def cutting_rules(self) -> tuple[str, ...]:
        """The normalisers and expressions that decide where a text is cut, in order; see `Certificate`."""

    def load_gigatoken(self, module: Any) -> Any:
        """Returns its tokenizer in the module `gigatoken`; raises anything, with the reason, where there is none."""


class ReferenceEngine:
    """The tokenizer's own library; instances share the tokenizer, which is safe from several threads."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self.name: str = tokenizer.engine_name
        self.encode: Callable[[Sequence[str]], Encoded] = tokenizer.encode_texts


class GigatokenEngine:
    """`gigatoken`; one instance per thread, because two threads in one instance are slower than one thread.

    Raises:
        TokenizerError: it does not support the tokenizer.
        MissingExtraError: it is not installed.
    """

    name = "gigatoken"

    def __init__(self, tokenizer: TextTokenizer) -> None:
        module = require("gigatoken", extra="tokenizers")
        if not isinstance(tokenizer, FastEncodable):
            raise _unsupported(tokenizer, f"it is not exact for tokenizers of the kind {tokenizer.kind!r}")
        try:
            self._backend = tokenizer.load_gigatoken(module)
        except BaseException as error:  # whatever it raises means that it cannot be used, panics of Rust included
            if not is_failure(error):
                raise
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise _unsupported(tokenizer, reason) from error

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Returns the ids of each text, uint32."""
        if not texts:
            return Encoded(np.empty(0, dtype=np.uint32), np.empty(0, dtype=np.int64))
        batch = _as_awkward(texts) if isinstance(texts, Utf8Texts) else list(texts)
        rows = self._backend.encode_batch(batch, parallel=False)
        offsets = np.asarray(rows.layout.offsets.data)
        return Encoded(np.asarray(rows.layout.content.data)[offsets[0] : offsets[-1]], np.diff(offsets))


class CertifiedEngine:
    """`gigatoken`, but the tokenizer's own library for texts with a code point that the two treat differently."""

    name: str = GigatokenEngine.name

    def __init__(self, fast: Engine, truth: Engine, certificate: Certificate) -> None:
        self._fast, self._truth = fast, truth
        self._ranges = certificate.as_array()

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Returns the ids of each text, uint32."""
        encoded = self._fast.encode(texts)
        held = texts if isinstance(texts, Utf8Texts) else utf8_texts(["" if each.isascii() else each for each in texts])
        numbers = texts_with(held.content, held.offsets, self._ranges).tolist()
        if not numbers:
            return encoded
        rows = encoded.rows()
        for number, row in zip(numbers, self._truth.encode([texts[each] for each in numbers]).rows(), strict=True):
            rows[number] = row
        return joined(rows, np.uint32)


def _as_awkward(texts: Utf8Texts) -> Any:
    """Returns texts as an array of strings of `awkward`, which `gigatoken` reads where they are."""
    awkward = require("awkward", extra="tokenizers")
    letters = awkward.contents.NumpyArray(texts.content, parameters={"__array__": "char"})
    offsets = awkward.index.Index64(texts.offsets)
    return awkward.Array(awkward.contents.ListOffsetArray(offsets, letters, parameters={"__array__": "string"}))


def _unsupported(tokenizer: TextTokenizer, reason: str) -> TokenizerError:
    message = f"`gigatoken` does not support tokenizer `{tokenizer.path}`: {reason}"
    return TokenizerError(message, hint=f"use the engine `{tokenizer.engine_name}`")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineChoice:
    """Which engine runs, and why.

    Attributes:
        name: name of the engine.
        reason: one phrase: what was checked, or why the faster engine is not used.
        create: makes an engine for one thread; the first is the one that was checked.
        must_agree: whether blocks are compared with the tokenizer's own library as they come.
        certificate: identity of the certificate of the faster engine; None for the tokenizer's own library.
        fell_back: whether the faster engine was wanted and cannot be used, which a user should hear of.
    """

    name: str
    reason: str
    create: Callable[[], Engine]
    must_agree: bool
    certificate: str | None = None
    fell_back: bool = False

    @property
    def recorded(self) -> str:
        """What manifests name: the engine, and its certificate."""
        return self.name if self.certificate is None else f"{self.name} (certificate {self.certificate})"

    @property
    def block_bytes(self) -> int:
        """Bytes of text that a thread takes at once, which measured best."""
        return _FAST_BLOCK_BYTES if self.name in _FAST else _SLOW_BLOCK_BYTES


def choose_engine(requested: EngineName, tokenizer: TextTokenizer, sample: Sequence[str]) -> EngineChoice:
    """Returns the engine to use, after comparing `gigatoken` with the tokenizer's own library where it may be faster.

    A fast engine that cannot be used is a warning of the log, unless another one was asked for.

    Args:
        requested: `auto` prefers `gigatoken` for byte-level BPE (of Hugging Face, of tiktoken) where it gives the same
            ids.
        tokenizer: the truth.
        sample: texts of the input; some hundred kilobytes of them are compared.

    Raises:
        ConfigError: there is no such engine, or it is for another kind of tokenizer.
        TokenizerError: `gigatoken` was asked for and does not support the tokenizer, or gives other ids; or the
            tokenizer gives random ids.
        MissingExtraError: `gigatoken` was asked for and is not installed.
    """
    _check_request(requested, tokenizer)
    truth = ReferenceEngine(tokenizer)

    def slow(reason: str, *, fell_back: bool = False) -> EngineChoice:
        if fell_back:
            _LOGGER.warning("tokenizing with `%s`, the slow engine: %s", truth.name, reason)
        return EngineChoice(
            name=truth.name,
            reason=reason,
            create=lambda: truth,
            must_agree=False,
            fell_back=fell_back,
        )

    if requested == truth.name:
        return slow("asked for")
    if requested == "auto" and not isinstance(tokenizer, FastEncodable):
        return slow(f"the only exact engine for tokenizers of the kind {tokenizer.kind!r}")
    texts, expected = texts_taken_by(truth, [*hard_texts(tokenizer), *pieces_of(sample)])
    try:
        fast = GigatokenEngine(tokenizer)
        certificate = _certificate_of(tokenizer)
        engine = CertifiedEngine(fast, truth, certificate)
        require_equal(engine, truth, texts, expected=expected)
    except (TokenizerError, MissingExtraError) as error:
        if requested == "gigatoken":
            raise
        return slow(error.message, fell_back=True)
    spare = [engine]  # not held beyond its use: it will be replaced when it has grown
    del engine, fast
    return EngineChoice(
        name=CertifiedEngine.name,
        reason=f"same ids as `{truth.name}` for {len(texts)} texts at the start and one of each block, "
        f"certificate {certificate.identity} for all code points",
        create=lambda: spare.pop() if spare else CertifiedEngine(GigatokenEngine(tokenizer), truth, certificate),
        must_agree=True,
        certificate=certificate.identity,
    )


def _certificate_of(tokenizer: TextTokenizer) -> Certificate:
    """Returns the certificate for a tokenizer and the installed versions.

    Raises:
        TokenizerError: there is none.
    """
    libraries = installed_libraries(tokenizer.engine_name)
    rules = tokenizer.cutting_rules if isinstance(tokenizer, FastEncodable) else ()
    found = find_certificate(libraries, rules)
    if found is not None:
        return found
    if any(each.libraries == libraries for each in read_table()):
        message = f"`{libraries[0]}` has no certificate for the rules by which `{tokenizer.path}` cuts texts: {rules}"
        raise TokenizerError(message, hint=f"use the engine `{tokenizer.engine_name}`")
    message = (
        f"`{libraries[0]}` and `{libraries[1]}` were not compared on all code points, which "
        "`python -m tokenloom.tokenizers.sweep` does"
    )
    raise TokenizerError(message, hint=f"run that once, or use the engine `{tokenizer.engine_name}`")


def _check_request(requested: str, tokenizer: TextTokenizer) -> None:
    if requested not in ENGINES:
        message = f"expected an engine out of {', '.join(ENGINES)}, got {requested!r}"
        raise ConfigError(message)
    if requested not in ("auto", GigatokenEngine.name, tokenizer.engine_name):
        message = f"the engine {requested!r} does not take `{tokenizer.path}`, which is of the kind {tokenizer.kind!r}"
        raise ConfigError(message, hint=f"expected auto, gigatoken or {tokenizer.engine_name}")
    if isinstance(tokenizer, FastEncodable) and (reason := tokenizer.draws_at_random):
        message = f"tokenizer `{tokenizer.path}` {reason}: its ids cannot be repeated"
        raise TokenizerError(message, hint="set `dropout` to null in its file")


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
