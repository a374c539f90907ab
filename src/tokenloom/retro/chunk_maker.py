"""What makes chunks into texts and vectors: tokenizer, embedder, and how long a chunk is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.indexed.manifest.tokenizer_identity import optional_number
from tokenloom.retro.embedders import Embedder, embeddings_of, token_counts_of


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
            "tokenizer": getattr(self.tokenizer, "sha256", None) or type(self.tokenizer).__name__,
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
