"""Turns texts into vectors: the protocol of embedders, the built-in embedders, and `ChunkMaker` for chunks of tokens.

An embedder may be user code, so `ChunkMaker` validates its results.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import ConfigError, MissingExtraError, StorageError
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.manifests import fingerprint_of, optional_number
from tokenloom.numbers import checked_integer, parse_integer
from tokenloom.optional import folder_of, is_installed, require
from tokenloom.tokenizers.load import as_tokenizer, load_tokenizer

Float32s = NDArray[np.float32]
Int64s = NDArray[np.int64]

_DIMENSIONS = (64, 128, 256)  # the model was trained for vectors truncated to these lengths
_MODEL = "l2_supercat"
_BATCH = 1024  # texts per call of the tokenizer


@runtime_checkable
class Embedder(Protocol):
    """An object that turns texts into vectors.

    An embedder must be deterministic, else `verify_retro` reports differences: on one machine, equal lists of texts
    must give equal bits. If processes share the work, the embedder must be picklable.
    """

    @property
    def name(self) -> str:
        """Returns the name to record; embedders with equal names must give comparable vectors."""

    @property
    def dimension(self) -> int:
        """Returns the dimension of the vectors."""

    def embed(self, texts: Sequence[str], /) -> Float32s:
        """Returns the vectors of texts, float32[num_texts, dimension]: finite, and zero for a text without tokens."""

    def count_tokens(self, texts: Sequence[str], /) -> Int64s:
        """Returns the number of tokens of each text, int64[num_texts]; texts without tokens are not embedded."""


EmbedFunction = Callable[[Sequence[str]], Float32s]
"""Returns the vectors of texts: float32[num_texts, dimension]."""


class FunctionEmbedder:
    """An embedder that calls a function with lists of texts; words count as tokens.

    The constructor calls the function once to get the dimension. `name` defaults to the function's qualified name.

    Raises:
        ConfigError: the function has no name, or returns an array of another shape.
    """

    def __init__(self, function: EmbedFunction, *, name: str | None = None) -> None:
        self._function = function
        self.name: str = name or _name_of(function)
        found = np.asarray(function(["word"]))
        if found.ndim != 2 or len(found) != 1:
            raise ConfigError(f"embedder `{self.name}` must return shape [1, n] for one text, got {list(found.shape)}")
        self.dimension: int = int(found.shape[1])

    def embed(self, texts: Sequence[str], /) -> Float32s:
        return self._function(texts)

    def count_tokens(self, texts: Sequence[str], /) -> Int64s:
        """Returns the number of words of each text."""
        return np.fromiter((len(text.split()) for text in texts), dtype=np.int64, count=len(texts))


def as_embedder(source: Embedder | EmbedFunction | str, *, name: str | None = None) -> Embedder:
    """Returns an embedder for an object, a function or a name.

    Example:
        >>> embedder = as_embedder(lambda texts: np.ones((len(texts), 8), dtype=np.float32), name="ones")
        >>> embedder.name, embedder.dimension, embedder.count_tokens(["two words", ""]).tolist()
        ('ones', 8, [2, 0])

    Args:
        source: an embedder, a function of texts, or a name: `wordllama`, `wordllama:64` (vectors truncated to 64
            numbers), or `bert:PATH` (a folder, or a Hugging Face name).
        name: name of the embedder, if `source` is a function.

    Raises:
        ConfigError: the source has another type, or its name is unknown.
        MissingExtraError: the library of the embedder is not installed.
    """
    if isinstance(source, str):
        kind, _, argument = source.partition(":")
        if kind == "wordllama":
            return WordLlama(parse_integer(argument, "the dimension of `wordllama`")) if argument else WordLlama()
        if kind == "bert" and argument:
            return BertEmbedder(argument)
        raise ConfigError(f"unknown embedder {source!r}", hint="use `wordllama`, `wordllama:DIMENSION` or `bert:PATH`")
    if isinstance(source, Embedder) and not isinstance(source, type):
        return source
    if callable(source) and not isinstance(source, type):
        return FunctionEmbedder(source, name=name)
    raise ConfigError(f"expected an embedder, a function or a name, got {source!r}", hint='try "wordllama"')


class WordLlama:
    """An embedder that uses the model of the package `wordllama`, offline. Vectors have norm 1, or 0 for no tokens.

    Weights and tokenizer are read from the installed wheel. The package is not imported, since version 0.4 downloads
    its tokenizer and configures logging for the whole program.

    A vector is summed token by token in float32, so its bits do not depend on the block or the number of threads. One
    core embeds 8,000 texts of 64 tokens per second; most of the time is spent in the tokenizer. Picklable, thread-safe.

    Args:
        dimension: dimension of the vectors: 64, 128 or 256.

    Raises:
        ConfigError: the dimension is another number.
        MissingExtraError: `wordllama` is not installed.
        StorageError: the wheel has another model.
    """

    def __init__(self, dimension: int = _DIMENSIONS[-1]) -> None:
        if dimension not in _DIMENSIONS:
            choices = ", ".join(map(str, _DIMENSIONS))
            raise ConfigError(f"the dimension of `wordllama` must be one of {choices}, got {dimension!r}")
        self.dimension: int = dimension
        self.name: str = f"wordllama:{_MODEL}:{dimension}"
        folder = folder_of("wordllama", extra="retro")
        weights_path = os.path.join(folder, "weights", f"{_MODEL}_{_DIMENSIONS[-1]}.safetensors")
        tokenizer_path = os.path.join(folder, "tokenizers", f"{_MODEL}_tokenizer_config.json")
        for path in (weights_path, tokenizer_path):
            if not os.path.isfile(path):
                message = f"no file `{path}`, a part of the model of `wordllama`"
                raise StorageError(message, hint="install a version with this file: `pip install 'wordllama==0.4.*'`")
        weights = require("safetensors.numpy", extra="retro").load_file(weights_path)["embedding.weight"]
        self._vectors: Float32s = weights[:, :dimension].astype(np.float32)
        self._tokenizer = load_tokenizer(tokenizer_path)

    def __reduce__(self) -> tuple[type[WordLlama], tuple[int]]:
        return WordLlama, (self.dimension,)

    def embed(self, texts: Sequence[str], /) -> Float32s:
        """Returns the unit vectors of texts, float32[num_texts, dimension]."""
        vectors = np.zeros((len(texts), self.dimension), dtype=np.float32)
        for first in range(0, len(texts), _BATCH):
            encoded = self._tokenizer.encode_texts(texts[first : first + _BATCH])
            ends = np.cumsum(encoded.lengths).tolist()
            start = 0
            for row, end in enumerate(ends, first):
                vectors[row] = self._vectors[encoded.tokens[start:end]].sum(axis=0)
                start = end
        lengths = np.sqrt(np.square(vectors, dtype=np.float64).sum(axis=1, keepdims=True))
        np.divide(vectors, lengths, out=vectors, where=lengths > 0, casting="same_kind")
        return vectors

    def count_tokens(self, texts: Sequence[str], /) -> Int64s:
        """Returns the number of tokens of each text, int64[num_texts]."""
        counts = np.empty(len(texts), dtype=np.int64)
        for first in range(0, len(texts), _BATCH):
            counts[first : first + _BATCH] = self._tokenizer.encode_texts(texts[first : first + _BATCH]).lengths
        return counts


class BertEmbedder:
    """An embedder that uses an encoder of Hugging Face: a vector is the mean over a text's tokens except special ones.

    The texts of a batch are padded to the longest, and torch's rounding depends on shapes. So equal lists of texts give
    equal bits on one machine with one number of threads, but the last bits of a vector may depend on the other texts.
    The model runs on torch's default device.

    Args:
        path: folder of model and tokenizer, or a Hugging Face name, which `transformers` may download.
        max_length: maximum number of tokens per text, including special tokens.
        batch_size: texts per call of the model.

    Raises:
        ConfigError: the model does not exist, or a number is out of range.
        MissingExtraError: `transformers` is not installed.
    """

    def __init__(self, path: str, max_length: int = 256, batch_size: int = 128) -> None:
        self._max_length = checked_integer("max_length", max_length, at_least=3)
        self._batch_size = checked_integer("batch_size", batch_size, at_least=1)
        self._path = path
        if not is_installed("transformers"):
            hint = "run `pip install transformers 'tokenloom[torch]'`"
            raise MissingExtraError("`transformers` is not installed", hint=hint)
        transformers, self._torch = require("transformers", extra="torch"), require("torch", extra="torch")
        try:
            self._tokenizer: Any = transformers.AutoTokenizer.from_pretrained(path)
            self._model: Any = transformers.AutoModel.from_pretrained(path).eval()
        except (OSError, ValueError) as error:
            message = f"cannot load model {path!r} with `transformers`: {str(error).splitlines()[0]}"
            raise ConfigError(message, hint="pass a folder with model and tokenizer, or a Hugging Face name") from error
        self.name: str = f"bert:{path}:{max_length}"
        self.dimension: int = int(self._model.config.hidden_size)

    def __reduce__(self) -> tuple[Any, ...]:
        return BertEmbedder, (self._path, self._max_length, self._batch_size)

    def embed(self, texts: Sequence[str], /) -> Float32s:
        """Returns the vectors of texts, float32[num_texts, dimension]; zero for a text without tokens."""
        vectors = np.zeros((len(texts), self.dimension), dtype=np.float32)
        for first in range(0, len(texts), self._batch_size):
            batch = list(texts[first : first + self._batch_size])
            inputs = self._tokenizer(
                batch, padding=True, truncation=True, max_length=self._max_length, return_tensors="pt"
            )
            with self._torch.inference_mode():
                states = self._model(**inputs).last_hidden_state.float().cpu().numpy()
            lengths = inputs["attention_mask"].sum(dim=1).tolist()
            for row, (length, state) in enumerate(zip(lengths, states, strict=True), first):
                if length > 2:  # the text has tokens besides the two special tokens
                    vectors[row] = state[1 : length - 1].mean(axis=0)
        return vectors

    def count_tokens(self, texts: Sequence[str], /) -> Int64s:
        """Returns the number of tokens of each text, int64[num_texts]; special tokens do not count."""
        counts = np.zeros(len(texts), dtype=np.int64)
        if len(texts):
            counts[:] = [len(ids) for ids in self._tokenizer(list(texts), add_special_tokens=False)["input_ids"]]
        return counts


@dataclass(frozen=True)
class ChunkMaker:
    """Turns tokens of chunks into texts, and texts into vectors; picklable if tokenizer and embedder are."""

    tokenizer: Any
    embedder: Embedder
    eod: int  # end-of-document id
    chunk_length: int

    def identity(self) -> dict[str, Any]:
        """Returns the tokenizer, embedder and settings that determine texts and vectors, as JSON values."""
        return {
            "tokenizer": fingerprint_of(self.tokenizer) or type(self.tokenizer).__name__,
            "vocab_size": optional_number(self.tokenizer, "vocab_size"),
            "eod": self.eod,
            "embedder": self.embedder.name,
            "dimension": self.embedder.dimension,
            "chunk_length": self.chunk_length,
        }

    def texts(self, rows: NDArray[np.int64]) -> list[str]:
        """Decodes chunks, int64[num_chunks, chunk_length]; end-of-document tokens are dropped."""
        return [self.tokenizer.detokenize(row[row != self.eod].tolist()) for row in rows]

    def span_texts(self, dataset: IndexedDataset, spans: NDArray[np.int64]) -> list[str]:
        """Decodes chunks of a pair, given as int64[num_chunks, 3]: document, first token and end."""
        lengths = spans[:, 2] - spans[:, 1]
        tokens = dataset.gather(spans[:, 0].copy(), spans[:, 1].copy(), lengths)
        rows = np.full((len(spans), self.chunk_length), self.eod, dtype=np.int64)
        rows[np.arange(self.chunk_length) < lengths[:, None]] = tokens
        return self.texts(rows)

    def count_tokens(self, texts: Sequence[str]) -> NDArray[np.int64]:
        """Returns the number of embedder tokens per text, int64[num_texts]; raises ConfigError for invalid counts."""
        found = np.asarray(self.embedder.count_tokens(texts) if len(texts) else np.empty(0, dtype=np.int64))
        if found.shape != (len(texts),) or found.dtype.kind not in "iu" or (len(found) and int(found.min()) < 0):
            found_type = f"{found.dtype}{list(found.shape)}"
            message = f"`count_tokens` must return {len(texts)} non-negative integers, got {found_type}"
            raise ConfigError(f"embedder `{self.embedder.name}`: {message}")
        return found.astype(np.int64, copy=False)

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Returns the vectors of texts, float32[num_texts, dimension]; raises ConfigError for an invalid result."""
        width = self.embedder.dimension
        found = np.asarray(self.embedder.embed(texts) if len(texts) else np.empty((0, width), dtype=np.float32))
        if found.dtype != np.float32 or found.shape != (len(texts), width):
            shapes = f"must return float32[{len(texts)}, {width}], got {found.dtype}{list(found.shape)}"
            raise ConfigError(f"embedder `{self.embedder.name}`: `embed` {shapes}")
        if not np.isfinite(found).all():  # a NaN would make all distances in its IVF list NaN
            row = int(np.argmin(np.isfinite(found).all(axis=1)))
            raise ConfigError(f"embedder `{self.embedder.name}`: vector {row} is not finite")
        return np.ascontiguousarray(found)


def as_chunk_maker(tokenizer: Any, embedder: Embedder | EmbedFunction | str, *, chunk_length: int) -> ChunkMaker:
    """Returns a `ChunkMaker` for a tokenizer (object, path or name) and an embedder (see `as_embedder`).

    Raises:
        ConfigError: the tokenizer has no end-of-document token, or the embedder is invalid.
    """
    tokenizer = as_tokenizer(tokenizer)
    eod = optional_number(tokenizer, "eod")
    if eod is None or not hasattr(tokenizer, "detokenize"):
        raise ConfigError(f"the tokenizer must have an end-of-document token and `detokenize`, got {tokenizer!r}")
    return ChunkMaker(tokenizer, as_embedder(embedder), eod, checked_integer("chunk_length", chunk_length, at_least=1))


def _name_of(function: object) -> str:
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if not module or not name or "<" in name:
        raise ConfigError(f"{function!r} has no name to identify its vectors", hint="pass `name`")
    return f"{module}.{name}"
