"""A small corpus, a small model and what batches are compared by, for tests with frameworks."""

from __future__ import annotations

from typing import Any

import numpy as np
from tests.support import EOD, StandInTokenizer, make_dataset, random_documents, write_corpus

VOCAB_SIZE = 64
SEQUENCE_LENGTH = 16
NUM_SAMPLES = 40


def samples_of(folder: Any, rng: np.random.Generator, **changes: Any) -> Any:
    """Returns a dataset of `NUM_SAMPLES` samples or more, of short documents that end in an end-of-document token."""
    drawn = random_documents(rng, count=120, longest=12, vocab_size=VOCAB_SIZE, empty_share=0)
    prefix = write_corpus(folder / "corpus", [np.append(document, EOD) for document in drawn])
    changes = {"sequence_length": SEQUENCE_LENGTH, "tokenizer": StandInTokenizer(pad=0), **changes}
    return make_dataset(prefix, num_samples=NUM_SAMPLES, **changes)


def tokens_of(batches: Any) -> list[list[list[int]]]:
    """Returns the tokens of batches, as lists."""
    return [batch["tokens"].tolist() for batch in batches]


def expected_tokens(dataset: Any, positions: Any) -> list[list[list[int]]]:
    """Returns the tokens that batches of these positions must have: those of single samples."""
    return [[dataset[position]["tokens"].tolist() for position in batch] for batch in positions]
