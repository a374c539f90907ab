"""tokenloom and megatron-core behind the same functions, so that both do the same work."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from typing import Any

OURS, PEER = "tokenloom", "megatron-core"
SIDES = (OURS, PEER)


class Tokenizer:
    """The tokenizer attributes that datasets use."""

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


def imports(*, side: str, **_: Any) -> None:
    """Imports the modules that the rounds of a side need."""
    if side in SIDES:
        modules(side)


def gpt_dataset_builder(side: str, prefix: str) -> Callable[..., Any]:
    """Opens a prefix; returns a function that builds its training dataset from num_samples and settings."""
    import numpy as np

    indexed_dataset, _, dataset, config, split = modules(side)
    low_level = indexed_dataset(prefix)
    low_level.sequence_lengths.sum()  # bring the lengths into memory
    indices = np.arange(len(low_level), dtype=np.int32)
    defaults = {**_defaults(), **_whole(prefix)}

    def build(*, num_samples: int | None, **settings: Any) -> Any:
        return dataset(low_level, prefix, indices, num_samples, split.train, config(**(defaults | settings)))

    return build


def run_builder(side: str, num_samples: int, **settings: Any) -> Callable[[], Any]:
    """Returns a function that builds the datasets of a run from settings of the data, like a training script."""
    _, _, dataset, config, _ = modules(side)
    if side == OURS:
        from tokenloom import BlendedMegatronDatasetBuilder as builder_class
    else:
        from megatron.core.datasets.blended_megatron_dataset_builder import (
            BlendedMegatronDatasetBuilder as builder_class,
        )
    chosen = {**_defaults(), **settings}
    return lambda: builder_class(dataset, [num_samples, None, None], lambda: True, config(**chosen)).build()


def prefix_builder(side: str, prefix: str, num_samples: int, **settings: Any) -> Callable[[], Any]:
    """Returns `run_builder` for a run over all documents of one prefix."""
    return run_builder(side, num_samples, **_whole(prefix), **settings)


def _whole(prefix: str) -> dict[str, Any]:
    return {"blend": ([prefix], None), "split": "1,0,0"}


def _defaults() -> dict[str, Any]:
    return {
        "random_seed": 1234,
        "tokenizer": Tokenizer(),
        "reset_position_ids": False,
        "reset_attention_mask": False,
        "eod_mask_loss": False,
        "create_attention_mask": False,
    }
