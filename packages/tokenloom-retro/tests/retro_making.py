"""A tokenizer of letters and an embedder that counts them, for tests that build databases."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
from tests.support import write_corpus

from tokenloom_retro.embedders import ChunkMaker
from tokenloom_retro.project import RetroProject

EOD = 0
DIMENSION = 16


class LetterTokenizer:
    """Token i is letter i; token 0 ends a document."""

    sha256 = hashlib.sha256(b"letters").hexdigest()
    unique_identifiers: ClassVar = {"class": "letters"}
    vocab_size = 27
    eod = EOD

    def detokenize(self, ids: Sequence[int]) -> str:
        return "".join(" abcdefghijklmnopqrstuvwxyz"[token] for token in ids)


class LetterEmbedder:
    """Counts letters; the letter z is no token."""

    name = "letters"
    dimension = DIMENSION

    def embed(self, texts: Sequence[str], /) -> np.ndarray:
        vectors = np.zeros((len(texts), DIMENSION), dtype=np.float32)
        for row, text in enumerate(texts):
            for place, letter in enumerate(text.replace("z", "")):
                vectors[row, ord(letter) % DIMENSION] += 1 + place / 100
        return vectors

    def count_tokens(self, texts: Sequence[str], /) -> np.ndarray:
        return np.array([len(text.replace("z", "")) for text in texts], dtype=np.int64)


def maker(chunk_length: int = 4) -> ChunkMaker:
    return ChunkMaker(LetterTokenizer(), LetterEmbedder(), EOD, chunk_length)


def letters(text: str, *, ends: bool = True) -> list[int]:
    return [ord(letter) - ord("a") + 1 for letter in text] + ([EOD] if ends else [])


def project_of(folder: Path, **corpora: Sequence[Sequence[int]]) -> RetroProject:
    """Returns a project that only has pairs."""
    project = RetroProject(folder)
    for prefix, documents in corpora.items():
        path = Path(project.data_prefix(prefix))
        path.parent.mkdir(parents=True, exist_ok=True)
        write_corpus(path, documents, dtype=np.uint16)
    return project
