"""What makes chunks into texts and vectors: what is no text, and what decides it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from tests.retro.making import EOD, LetterEmbedder, LetterTokenizer, letters, maker
from tests.support import write_corpus

from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.retro.chunk_maker import as_chunk_maker


def test_what_ends_or_fills_a_chunk_is_no_text(tmp_path: Path):
    assert maker().texts(np.array([[1, 2, EOD, EOD], [EOD] * 4])) == ["ab", ""]
    pair = IndexedDataset(write_corpus(tmp_path / "corpus", [letters("abcdef"), letters("xy")]))
    assert maker().span_texts(pair, np.array([[1, 0, 2], [0, 4, 7], [0, 0, 4]])) == ["xy", "ef", "abcd"]


def test_what_decides_texts_and_vectors_is_told():
    chunks = as_chunk_maker(LetterTokenizer(), LetterEmbedder(), chunk_length=8)
    assert chunks.identity() == {
        "tokenizer": "letters",
        "vocab_size": 27,
        "eod": EOD,
        "embedder": "letters",
        "dimension": 16,
        "chunk_length": 8,
    }
