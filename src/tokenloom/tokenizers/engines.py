"""Texts into token ids: by the tokenizer's own library, which is the truth, or by `gigatoken`, which is held to it.

`gigatoken` is up to a hundred times faster. It is taken only after it gave the same ids on strings chosen to be hard
and on a sample of the input, and one text of every later block is compared too. It never replaces the tokenizer's own
library silently, nor the other way round.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from tokenloom.errors import ConfigError, MissingExtraError, TokenizerError
from tokenloom.inputs.utf8_texts import Utf8Texts
from tokenloom.optional import require
from tokenloom.tokenizers.engine_checks import Engine, hard_texts, pieces_of, require_equal, texts_taken_by
from tokenloom.tokenizers.failures import is_failure
from tokenloom.tokenizers.huggingface import HuggingFaceTokenizer
from tokenloom.tokenizers.text_tokenizer import Encoded, TextTokenizer
from tokenloom.tokenizers.tiktoken_patterns import GIGATOKEN_SCHEMES
from tokenloom.tokenizers.tiktoken_ranks import TiktokenTokenizer

EngineName = Literal["auto", "gigatoken", "tokenizers", "tiktoken", "sentencepiece", "numpy"]
ENGINES: tuple[EngineName, ...] = ("auto", "gigatoken", "tokenizers", "tiktoken", "sentencepiece", "numpy")
"""`auto`, the fast engine, and each library, which takes its own tokenizers only; `numpy` takes bytes and integers."""

# The slow engines need some 100 ms for a block, so that an interruption need not wait for long.
_FAST_BLOCK_BYTES = 4 << 20
_SLOW_BLOCK_BYTES = 256 << 10
_FAST = ("gigatoken", "numpy")


class ReferenceEngine:
    """The tokenizer's own library; instances share the tokenizer, which is safe from several threads."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self.name = tokenizer.engine_name
        self.encode = tokenizer.encode_texts


class GigatokenEngine:
    """`gigatoken`; one instance per thread, because two threads in one instance are slower than one thread.

    Raises:
        TokenizerError: it does not support the tokenizer.
        MissingExtraError: it is not installed.
    """

    name = "gigatoken"
    bytes_per_text_byte = 20  # measured: 4 for source code, up to 23 where no two bytes merge

    def __init__(self, tokenizer: TextTokenizer) -> None:
        module = require("gigatoken", extra="tokenizers")
        try:
            self._backend = _load_gigatoken(module, tokenizer)
        except TokenizerError:
            raise
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
        layout = self._backend.encode_batch(batch, parallel=False).layout
        offsets = np.asarray(layout.offsets.data)
        return Encoded(np.asarray(layout.content.data)[offsets[0] : offsets[-1]], np.diff(offsets))


def _load_gigatoken(module: Any, tokenizer: TextTokenizer) -> Any:
    """Returns its tokenizer, or raises anything."""
    if isinstance(tokenizer, HuggingFaceTokenizer):
        return module.Tokenizer.from_json(tokenizer.data)
    if not isinstance(tokenizer, TiktokenTokenizer):
        raise _unsupported(tokenizer, f"it is not exact for tokenizers of the kind {tokenizer.kind!r}")
    scheme = GIGATOKEN_SCHEMES.get(tokenizer.pattern)
    if scheme is None:
        raise _unsupported(tokenizer, f"it does not know the pattern {tokenizer.pattern!r}")
    import tempfile  # which brings compression and random numbers along

    with tempfile.NamedTemporaryFile(suffix=".tiktoken") as file:  # it reads paths only; ours may have changed
        file.write(tokenizer.data)
        file.flush()
        return module.Tokenizer.from_tiktoken(file.name, scheme, dict(tokenizer.special_tokens))


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
        name: of the engine.
        reason: one phrase: what was checked, or why the faster engine is not used.
        create: makes an engine for one thread; the first is the one that was checked.
        must_agree: whether blocks are compared with the tokenizer's own library as they come.
        bytes_per_text_byte: memory that the engine needs for one text at most, as a multiple of its UTF-8 bytes; most
            texts need a fifth of it.
        fell_back: whether the faster engine was wanted and cannot be used, which a user should hear of.
    """

    name: str
    reason: str
    create: Callable[[], Engine]
    must_agree: bool
    bytes_per_text_byte: int
    fell_back: bool = False

    @property
    def block_bytes(self) -> int:
        """Of text that a thread takes at once, which measured best."""
        return _FAST_BLOCK_BYTES if self.name in _FAST else _SLOW_BLOCK_BYTES


def max_record_bytes(choice: EngineChoice, memory_bytes: int) -> int:
    """Returns the largest text, in UTF-8 bytes, that the engine encodes within some memory; at least 1."""
    return max(1, memory_bytes // choice.bytes_per_text_byte)


def choose_engine(requested: EngineName, tokenizer: TextTokenizer, sample: Sequence[str]) -> EngineChoice:
    """Returns the engine to use, after comparing `gigatoken` with the tokenizer's own library where it may be faster.

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
        return EngineChoice(
            name=truth.name,
            reason=reason,
            create=lambda: truth,
            must_agree=False,
            bytes_per_text_byte=tokenizer.bytes_per_text_byte,
            fell_back=fell_back,
        )

    if requested == truth.name:
        return slow("asked for")
    if requested == "auto" and not isinstance(tokenizer, (HuggingFaceTokenizer, TiktokenTokenizer)):
        return slow(f"the only exact engine for tokenizers of the kind {tokenizer.kind!r}")
    texts = texts_taken_by(truth, [*hard_texts(tokenizer), *pieces_of(sample)])
    try:
        engine = GigatokenEngine(tokenizer)
        if requested == "auto" and _is_sentencepiece_in_disguise(tokenizer):
            # Measured: its SentencePiece side differs on a third of a set of difficult documents.
            return slow("`gigatoken` is not exact enough for tokenizers in the manner of SentencePiece", fell_back=True)
        require_equal(engine, truth, texts)
    except (TokenizerError, MissingExtraError) as error:
        if requested == "gigatoken":
            raise
        return slow(error.message, fell_back=True)
    spare = [engine]  # not held beyond its use: it will be replaced when it has grown
    del engine
    return EngineChoice(
        name=GigatokenEngine.name,
        reason=f"same ids as `{truth.name}` for {len(texts)} texts at the start and one of each block",
        create=lambda: spare.pop() if spare else GigatokenEngine(tokenizer),
        must_agree=True,
        bytes_per_text_byte=GigatokenEngine.bytes_per_text_byte,
    )


def _check_request(requested: str, tokenizer: TextTokenizer) -> None:
    if requested not in ENGINES:
        message = f"expected an engine out of {', '.join(ENGINES)}, got {requested!r}"
        raise ConfigError(message)
    if requested not in ("auto", GigatokenEngine.name, tokenizer.engine_name):
        message = f"the engine {requested!r} does not take `{tokenizer.path}`, which is of the kind {tokenizer.kind!r}"
        raise ConfigError(message, hint=f"expected auto, gigatoken or {tokenizer.engine_name}")
    if isinstance(tokenizer, HuggingFaceTokenizer) and (reason := tokenizer.draws_at_random):
        message = f"tokenizer `{tokenizer.path}` {reason}: its ids cannot be repeated"
        raise TokenizerError(message, hint="set `dropout` to null in its file")


def _is_sentencepiece_in_disguise(tokenizer: TextTokenizer) -> bool:
    return isinstance(tokenizer, HuggingFaceTokenizer) and bool(
        getattr(tokenizer.backend.model, "byte_fallback", False)
    )


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
