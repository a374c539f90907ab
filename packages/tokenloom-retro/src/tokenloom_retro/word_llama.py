"""WordLlama: a vector per token, and of a text their mean. The default: small, fast on a CPU, and never online.

The wheel of `wordllama` brings the weights, 256 numbers per token, and the tokenizer. They are read from there, and the
package itself is not imported: version 0.4 looks for its tokenizer in a folder of another name than the wheel's, and
downloads it instead; and importing it sets up the logging of the whole program.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import ConfigError, StorageError
from tokenloom.numbers import parse_integer
from tokenloom.optional import folder_of, require
from tokenloom.tokenizers.load import load_tokenizer

Float32s = NDArray[np.float32]
Int64s = NDArray[np.int64]

DIMENSIONS = (64, 128, 256)
"""How many of a vector's first numbers may be taken: the model was trained so that these stand for themselves."""

_MODEL = "l2_supercat"
_BATCH = 1024
"""Texts that are tokenized together; more are no faster."""


class WordLlama:
    """The model of the package `wordllama`; vectors of length 1, and zero for a text without tokens.

    Each text's vector is summed token by token in float32, whatever stands beside it: it has the same bits in every
    block, and on any number of threads. One core takes some 8,000 texts of 64 tokens per second, of which the tokenizer
    takes most. Picklable; safe from several threads.

    Args:
        dimension: how many numbers of each vector are taken: 64, 128 or 256.

    Raises:
        ConfigError: another number.
        MissingExtraError: `wordllama` is not installed.
        StorageError: its wheel does not bring the model that is known here.
    """

    def __init__(self, dimension: int = DIMENSIONS[-1]) -> None:
        if dimension not in DIMENSIONS:
            message = f"expected {', '.join(map(str, DIMENSIONS))} as the dimension of `wordllama`, found {dimension!r}"
            raise ConfigError(message)
        self.dimension: int = dimension
        self.name: str = f"wordllama:{_MODEL}:{dimension}"
        folder = folder_of("wordllama", extra="retro")
        weights_path = os.path.join(folder, "weights", f"{_MODEL}_{DIMENSIONS[-1]}.safetensors")
        tokenizer_path = os.path.join(folder, "tokenizers", f"{_MODEL}_tokenizer_config.json")
        for path in (weights_path, tokenizer_path):
            if not os.path.isfile(path):
                message = f"expected the model of `wordllama` at `{path}`, found no such file"
                raise StorageError(message, hint="install a version that brings it: `pip install 'wordllama==0.4.*'`")
        weights = require("safetensors.numpy", extra="retro").load_file(weights_path)["embedding.weight"]
        self._vectors: Float32s = weights[:, :dimension].astype(np.float32)
        self._tokenizer = load_tokenizer(tokenizer_path)

    def __repr__(self) -> str:
        return f"WordLlama({self.dimension})"

    def __reduce__(self) -> tuple[type[WordLlama], tuple[int]]:
        return WordLlama, (self.dimension,)

    def embed(self, texts: Sequence[str], /) -> Float32s:
        """Returns the vectors of texts, float32[num_texts, dimension], of length 1."""
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
        """Returns how many tokens each text has, int64[num_texts]."""
        counts = np.empty(len(texts), dtype=np.int64)
        for first in range(0, len(texts), _BATCH):
            counts[first : first + _BATCH] = self._tokenizer.encode_texts(texts[first : first + _BATCH]).lengths
        return counts


def from_argument(argument: str) -> WordLlama:
    """Returns the embedder that `wordllama` or `wordllama:DIMENSION` names.

    Raises:
        ConfigError: the dimension is another than 64, 128 or 256.
        MissingExtraError: `wordllama` is not installed.
        StorageError: its wheel does not bring the model that is known here.
    """
    return WordLlama(parse_integer(argument, "the dimension of `wordllama`")) if argument else WordLlama()
