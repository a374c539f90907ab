"""What makes chunks into texts and vectors: tokenizer, embedder, and how long a chunk is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import ConfigError
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.manifest.tokenizer_identity import fingerprint_of, optional_number
from tokenloom.numbers import checked_integer
from tokenloom.tokenizers.load import as_tokenizer
from tokenloom_retro.embedders import Embedder, EmbedFunction, as_embedder, embeddings_of, token_counts_of


@dataclass(frozen=True)
class ChunkMaker:
    """Turns tokens of chunks into texts, and these into vectors; picklable where tokenizer and embedder are.

    Attributes:
        tokenizer: what the tokens are of.
        embedder: what makes vectors of texts.
        eod: the token that ends a document.
        chunk_length: tokens of a chunk.
    """

    tokenizer: Any
    embedder: Embedder
    eod: int
    chunk_length: int

    def identity(self) -> dict[str, Any]:
        """Returns what decides texts and vectors, as values for JSON."""
        return {
            "tokenizer": fingerprint_of(self.tokenizer) or type(self.tokenizer).__name__,
            "vocab_size": optional_number(self.tokenizer, "vocab_size"),
            "eod": self.eod,
            "embedder": self.embedder.name,
            "dimension": self.embedder.dimension,
            "chunk_length": self.chunk_length,
        }

    def texts(self, rows: NDArray[np.int64]) -> list[str]:
        """Returns the text of each chunk; what ends documents in it, or fills it up, is no text.

        Args:
            rows: int64[num_chunks, chunk_length].
        """
        return [self.tokenizer.detokenize(row[row != self.eod].tolist()) for row in rows]

    def span_texts(self, dataset: IndexedDataset, spans: NDArray[np.int64]) -> list[str]:
        """Returns the texts of chunks of a pair.

        Args:
            dataset: the pair.
            spans: int64[num_chunks, 3], document, first token and end of each.

        Raises:
            StorageError: the pair cannot be read, or was changed.
        """
        lengths = spans[:, 2] - spans[:, 1]
        tokens = dataset.gather(spans[:, 0].copy(), spans[:, 1].copy(), lengths)
        rows = np.full((len(spans), self.chunk_length), self.eod, dtype=np.int64)
        rows[np.arange(self.chunk_length) < lengths[:, None]] = tokens
        return self.texts(rows)

    def count_tokens(self, texts: Sequence[str]) -> NDArray[np.int64]:
        """Returns how many tokens each text has for the embedder, int64[num_texts]; 0 for one that says nothing.

        Raises:
            ConfigError: the embedder returns something else.
        """
        return token_counts_of(self.embedder, texts)

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Returns the vectors of texts, float32[num_texts, dimension].

        Raises:
            ConfigError: the embedder returns something else, or a number that is not finite.
        """
        return embeddings_of(self.embedder, texts)


def as_chunk_maker(tokenizer: Any, embedder: Embedder | EmbedFunction | str, *, chunk_length: int) -> ChunkMaker:
    """Returns what makes chunks into texts and vectors.

    Args:
        tokenizer: tokenizer of the tokens: an object, a path or a name.
        embedder: what makes vectors of texts; see `as_embedder`.
        chunk_length: tokens of a chunk.

    Raises:
        ConfigError: the tokenizer has no end-of-document token, or the embedder is none.
    """
    tokenizer = as_tokenizer(tokenizer)
    eod = optional_number(tokenizer, "eod")
    if eod is None or not hasattr(tokenizer, "detokenize"):
        message = f"expected a tokenizer with an end-of-document token and `detokenize`, found {tokenizer!r}"
        raise ConfigError(message)
    return ChunkMaker(tokenizer, as_embedder(embedder), eod, checked_integer("chunk_length", chunk_length, at_least=1))
