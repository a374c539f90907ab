"""Texts into vectors: what an embedder is, how one is named, and what is checked of every answer.

An embedder of a user's own may return anything, so nothing reaches an index before `embeddings_of` has seen it. To add
one that has a name: a module here, and its line in the table `EMBEDDERS`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import ConfigError
from tokenloom.numbers import checked_integer
from tokenloom.registry import Registry

Float32s = NDArray[np.float32]
Int64s = NDArray[np.int64]


@runtime_checkable
class Embedder(Protocol):
    """Texts into vectors.

    Deterministic: the same list of texts gives the same bits on one machine, or a check of what was made finds a
    difference. Picklable, where processes share the work.
    """

    @property
    def name(self) -> str:
        """What tells it from others whose vectors are not comparable; recorded with what is made of them."""

    @property
    def dimension(self) -> int:
        """The width of its vectors."""

    def embed(self, texts: Sequence[str], /) -> Float32s:
        """Returns the vectors of texts, float32[num_texts, dimension]: finite, and zero where a text has no tokens."""

    def count_tokens(self, texts: Sequence[str], /) -> Int64s:
        """Returns how many tokens each text has, int64[num_texts]; 0 means that its vector says nothing."""


EmbedFunction = Callable[[Sequence[str]], Float32s]
"""Texts into float32[num_texts, dimension]."""

EMBEDDERS: Registry[Callable[[str], Embedder]] = Registry(
    "embedder",
    {
        "wordllama": "tokenloom_retro.word_llama:from_argument",
        "bert": "tokenloom_retro.bert_embedder:from_argument",
    },
)
"""What makes an embedder from what stands after its name and a colon, such as `bert:PATH`, by name."""


class FunctionEmbedder:
    """A function of texts as an embedder; a text's tokens are its words.

    The width is that of the vector of one word, for which the function is called once.

    Args:
        function: texts into float32[num_texts, dimension].
        name: see `Embedder`; None to name it by its module and its own name.

    Raises:
        ConfigError: the function has no name of its own and is given none; or it does not return such an array.
    """

    def __init__(self, function: EmbedFunction, *, name: str | None = None) -> None:
        self._function = function
        self.name: str = name or _name_of(function)
        found = _array_of(self.name, function(["word"]))
        if found.ndim != 2 or len(found) != 1 or not found.shape[1]:
            message = f"embedder `{self.name}`: expected one vector for one text, found shape {list(found.shape)}"
            raise ConfigError(message)
        self.dimension: int = int(found.shape[1])

    def __repr__(self) -> str:
        return f"FunctionEmbedder({self.name!r}, dimension={self.dimension})"

    def embed(self, texts: Sequence[str], /) -> Float32s:
        """Returns what the function returns."""
        return self._function(texts)

    def count_tokens(self, texts: Sequence[str], /) -> Int64s:
        """Returns how many words each text has, by white space."""
        return np.fromiter((len(text.split()) for text in texts), dtype=np.int64, count=len(texts))


def as_embedder(source: Embedder | EmbedFunction | str, *, name: str | None = None) -> Embedder:
    """Returns an embedder.

    Example:
        >>> embedder = as_embedder(lambda texts: np.ones((len(texts), 8), dtype=np.float32), name="ones")
        >>> embedder.name, embedder.dimension, embedder.count_tokens(["two words", ""]).tolist()
        ('ones', 8, [2, 0])

    Args:
        source: an embedder; a function of texts; or the name of one: `wordllama`, `wordllama:64` (the first 64 numbers
            of its vectors), `bert:PATH` (a folder, or a name of Hugging Face).
        name: name of the embedder that a function is.

    Raises:
        ConfigError: it is none of these, or there is none of this name.
        MissingExtraError: the library of the embedder is not installed.
    """
    if isinstance(source, str):
        kind, _, argument = source.partition(":")
        if kind not in EMBEDDERS:
            message = f"expected the name of an embedder, found {source!r}"
            raise ConfigError(message, hint=f"there are {', '.join(EMBEDDERS)}")
        return EMBEDDERS[kind](argument)
    if isinstance(source, Embedder) and not isinstance(source, type):
        checked_integer(f"the dimension of embedder `{source.name}`", source.dimension, at_least=1)
        return source
    if callable(source) and not isinstance(source, type):
        return FunctionEmbedder(source, name=name)
    message = f"expected an embedder, a function of texts or a name, found {source!r}"
    raise ConfigError(message, hint='such as "wordllama"')


def embeddings_of(embedder: Embedder, texts: Sequence[str]) -> Float32s:
    """Returns the vectors of texts, checked: float32[num_texts, dimension].

    Args:
        embedder: what makes them; it is not asked where there are no texts.
        texts: the texts.

    Raises:
        ConfigError: it returns another number of vectors, another width or dtype, or a number that is not finite.
    """
    if not len(texts):
        return np.empty((0, embedder.dimension), dtype=np.float32)
    found = _array_of(embedder.name, embedder.embed(texts))
    check_embeddings(found, embedder.dimension, num_vectors=len(texts), where=f"embedder `{embedder.name}`")
    return np.ascontiguousarray(found)


def token_counts_of(embedder: Embedder, texts: Sequence[str]) -> Int64s:
    """Returns how many tokens texts have for an embedder, checked: int64[num_texts].

    Args:
        embedder: what counts them; it is not asked where there are no texts.
        texts: the texts.

    Raises:
        ConfigError: it returns another number of counts, what are no integers, or one below 0.
    """
    if not len(texts):
        return np.empty(0, dtype=np.int64)
    found = np.asarray(embedder.count_tokens(texts))
    if found.shape != (len(texts),) or found.dtype.kind not in "iu":
        message = (
            f"embedder `{embedder.name}`: expected integers of shape [{len(texts)}] as counts of tokens, "
            f"found {found.dtype} of shape {list(found.shape)}"
        )
        raise ConfigError(message)
    if int(found.min()) < 0:
        row = int(found.argmin())
        message = (
            f"embedder `{embedder.name}`: expected counts of tokens from 0 on, found {int(found[row])} for text {row}"
        )
        raise ConfigError(message)
    return found.astype(np.int64, copy=False)


def check_embeddings(found: Any, dimension: int, *, where: str, num_vectors: int | None = None) -> None:
    """Checks that an array holds vectors as an index takes them.

    Args:
        found: what must be float32[num_vectors, dimension].
        dimension: the width.
        where: what the message begins with.
        num_vectors: how many there must be; None for any number.

    Raises:
        ConfigError: it has another dtype, shape or number of vectors; or a number in it is not finite.
    """
    rows = "num_vectors" if num_vectors is None else num_vectors
    expected = f"{where}: expected float32 of shape [{rows}, {dimension}]"
    if not isinstance(found, np.ndarray):
        message = f"{expected}, found {type(found).__name__}"
        raise ConfigError(message)
    if found.dtype != np.float32:
        message = f"{expected}, found {found.dtype} of shape {list(found.shape)}"
        raise ConfigError(message, hint="convert it where it is made: `.astype(numpy.float32)`")
    if found.ndim != 2 or found.shape[1] != dimension or num_vectors not in (None, len(found)):
        message = f"{expected}, found shape {list(found.shape)}"
        raise ConfigError(message)
    with np.errstate(invalid="ignore"):  # infinities of both signs add up to none
        is_finite = np.isfinite(found.sum(dtype=np.float64))  # in double precision a sum is finite if its numbers are
    if not is_finite:
        row = int(np.argmin(np.isfinite(found).all(axis=1)))
        value = found[row][~np.isfinite(found[row])][0]
        message = f"{where}: expected finite numbers, found {value} in vector {row} of {len(found)}"
        raise ConfigError(message)


def _array_of(name: str, found: Any) -> NDArray[Any]:
    """Returns what an embedder returned, which may be a tensor of torch on the CPU too."""
    if not isinstance(found, np.ndarray):
        if not hasattr(found, "__array__"):
            message = f"embedder `{name}`: expected an array, found {type(found).__name__}"
            raise ConfigError(message)
        return np.asarray(found)
    return found


def _name_of(function: object) -> str:
    """Returns module and name of a function, as long as these lead to it."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if not module or not name or "<" in name:
        message = f"expected `name` beside a function that has none of its own, found {function!r}"
        raise ConfigError(message, hint="it tells its vectors from those of other embedders")
    return f"{module}.{name}"
