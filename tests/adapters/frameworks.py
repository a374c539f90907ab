"""A small dataset, a sampler, and the tokens of batches, for tests with frameworks."""

from __future__ import annotations

from typing import Any

import numpy as np
from tests.support import EOD, StandInTokenizer, make_dataset, random_documents, write_corpus

from tokenloom import MegatronPretrainingSampler

VOCAB_SIZE = 64
SEQUENCE_LENGTH = 16
NUM_SAMPLES = 40


def samples_of(folder: Any, rng: np.random.Generator, **changes: Any) -> Any:
    drawn = random_documents(rng, count=120, longest=12, vocab_size=VOCAB_SIZE, empty_share=0)
    prefix = write_corpus(folder / "corpus", [np.append(document, EOD) for document in drawn])
    changes = {"sequence_length": SEQUENCE_LENGTH, "tokenizer": StandInTokenizer(pad=0), **changes}
    return make_dataset(prefix, num_samples=NUM_SAMPLES, **changes)


def in_order(rank: int = 0, size: int = 1, *, num_samples: int = NUM_SAMPLES) -> MegatronPretrainingSampler:
    return MegatronPretrainingSampler(num_samples, 0, 4, rank, size)


def tokens_of(batches: Any) -> list[list[list[int]]]:
    return [np.asarray(batch["tokens"]).tolist() for batch in batches]


def expected_tokens(dataset: Any, positions: Any = None) -> list[list[list[int]]]:
    """Returns the tokens of single samples, in batches of `positions`; None for all samples in order."""
    positions = in_order(num_samples=len(dataset)) if positions is None else positions
    return [[dataset[position]["tokens"].tolist() for position in batch] for batch in positions]


def in_turns(ranks: Any) -> list[Any]:
    """Returns the first batch of each rank, the second of each rank, and so on."""
    return [batch for step in zip(*ranks, strict=True) for batch in step]
