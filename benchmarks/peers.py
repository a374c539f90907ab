"""tokenloom and megatron-core behind the same few calls, so that both are asked for the very same thing."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from typing import Any

OURS, PEER = "tokenloom", "megatron-core"
SIDES = (OURS, PEER)


class Tokenizer:
    """What datasets ask of a tokenizer."""

    eod = 0
    vocab_size = 50257
    unique_identifiers = {"class": "benchmark"}  # noqa: RUF012 - read only

    @property
    def pad(self) -> int:
        raise NotImplementedError


def modules(side: str) -> tuple[Any, Any, Any, Any, Any]:
    """Returns (IndexedDataset, IndexedDatasetBuilder, GPTDataset, GPTDatasetConfig, Split) of one side."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    if side == OURS:
        import tokenloom

        return (
            tokenloom.IndexedDataset,
            tokenloom.IndexedDatasetBuilder,
            tokenloom.GPTDataset,
            tokenloom.GPTDatasetConfig,
            tokenloom.Split,
        )
    from megatron.core.datasets import gpt_dataset, indexed_dataset, utils

    return (
        indexed_dataset.IndexedDataset,
        indexed_dataset.IndexedDatasetBuilder,
        gpt_dataset.GPTDataset,
        gpt_dataset.GPTDatasetConfig,
        utils.Split,
    )


def gpt_dataset_builder(side: str, prefix: str) -> Callable[..., Any]:
    """Opens a prefix and returns what builds its training dataset, given num_samples and settings."""
    import numpy as np

    indexed_dataset, _, dataset, config, split = modules(side)
    low_level = indexed_dataset(prefix)
    low_level.sequence_lengths.sum()  # bring the lengths into memory
    indices = np.arange(len(low_level), dtype=np.int32)
    defaults = {
        "random_seed": 1234,
        "blend": ([prefix], None),
        "split": "1,0,0",
        "tokenizer": Tokenizer(),
        "reset_position_ids": False,
        "reset_attention_mask": False,
        "eod_mask_loss": False,
        "create_attention_mask": False,
    }

    def build(*, num_samples: int | None, **settings: Any) -> Any:
        return dataset(low_level, prefix, indices, num_samples, split.train, config(**(defaults | settings)))

    return build
