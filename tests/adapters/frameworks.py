"""Frameworks, which all exist in the environment of `make adapters`; a small dataset, a sampler, tokens of batches."""

import importlib
import os
import warnings
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from tests.support import EOD, StandInTokenizer, make_dataset, random_documents, write_corpus

from tokenloom import MegatronPretrainingSampler

MUST_BE_THERE = os.environ.get("TOKENLOOM_ADAPTERS") == "all"
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


def library(module: str) -> ModuleType:
    """Imports a module; skips the test if it is missing outside of `make adapters`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module(module) if MUST_BE_THERE else pytest.importorskip(module)
