"""Conversations of made-up tokens, and datasets that read them."""

import os
import warnings
from typing import Any

import numpy as np
from hypothesis import strategies as st
from tests.indexed.columns import roles_of
from tests.support import StandInTokenizer

from tokenloom.datasets.chat_config import SFTDatasetConfig, VarlenDatasetConfig
from tokenloom.datasets.conversations import SFTDataset, VarlenDataset
from tokenloom.datasets.exposure import SFTLowLevelDataset
from tokenloom.datasets.splits import Split
from tokenloom.errors import AmbiguousPadWarning, UntrainableWarning
from tokenloom.indexed.roles import roles_writer
from tokenloom.indexed.writing.builder import IndexedDatasetBuilder

Parts = list[tuple[int, int, int]]
Conversation = tuple[list[int], Parts]

PROMPT, ANSWER, TEXT = 0, 1, 2


def conversation(*runs: tuple[int, list[int]]) -> Conversation:
    """Returns the tokens and parts of a conversation of runs (kind, tokens)."""
    tokens: list[int] = []
    parts: Parts = []
    for kind, run in runs:
        if run:
            parts.append((len(tokens), len(tokens) + len(run), kind))
        tokens += run
    return tokens, parts


def write_conversations(prefix: str | os.PathLike[str], conversations: list[Conversation], **options: Any) -> str:
    name = os.fspath(prefix)
    roles = roles_writer(name, **options)
    with IndexedDatasetBuilder(f"{name}.bin", dtype=np.uint16) as builder:
        for tokens, parts in conversations:
            builder.add_document(np.array(tokens, dtype=np.uint16), [len(tokens)])
            roles.append(roles_of(parts, len(tokens)))
        builder.finalize(f"{name}.idx", columns={"roles": roles})
    return name


def settings(prefix: str | None, **changes: Any) -> dict[str, Any]:
    """Returns settings for short samples of a pair, or of mock data without a prefix."""
    chosen: dict[str, Any] = {"random_seed": 57, "sequence_length": 8, "tokenizer": StandInTokenizer(pad=7)}
    if prefix is not None:
        chosen |= {"blend": ([prefix], None), "split": "1,0,0"}
    return chosen | changes


def make_sft(prefix: str, *, num_samples: int | None = None, quiet: bool = False, **changes: Any) -> SFTDataset:
    return _make(SFTDataset, SFTDatasetConfig, prefix, num_samples, quiet, changes)


def make_varlen(prefix: str, *, num_samples: int | None = None, quiet: bool = False, **changes: Any) -> VarlenDataset:
    return _make(VarlenDataset, VarlenDatasetConfig, prefix, num_samples, quiet, changes)


def _make(cls: Any, config_class: Any, prefix: str, num_samples: int | None, quiet: bool, changes: Any) -> Any:
    config = config_class(**settings(prefix, **changes))
    with warnings.catch_warnings():
        if quiet:
            warnings.simplefilter("ignore", UntrainableWarning)
            warnings.simplefilter("ignore", AmbiguousPadWarning)
        data: SFTLowLevelDataset = cls.build_low_level_dataset(prefix, config)
        dataset = cls(data, prefix, np.arange(len(data), dtype=np.int32), num_samples, Split.train, config)
        len(dataset)
        return dataset


def conversations_strategy(*, longest: int = 14, most: int = 12) -> st.SearchStrategy[list[Conversation]]:
    """Draws conversations, including empty ones, prompts without answers, long ones and plain texts."""
    run = st.tuples(
        st.sampled_from([PROMPT, PROMPT, ANSWER, ANSWER, TEXT]), st.lists(st.integers(0, 99), max_size=longest // 2)
    )
    one = st.lists(run, max_size=4).map(lambda runs: conversation(*runs))
    return st.lists(one, max_size=most)


FIRST = conversation((PROMPT, [11, 12]), (ANSWER, [13, 9]))
