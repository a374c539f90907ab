"""Samples with neighbors, one by one or in batches, from a warm page cache; or copies of as many bytes, in memory."""

from __future__ import annotations

import hashlib
import logging
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from fetch import BATCH, DIGESTED, copies, repeat
from peers import Tokenizer
from serve import Outcome, serve

LENGTH, CHUNK_LENGTH, NUM_SAMPLES, BLOCK_SIZE = 2048, 64, 2000, 10_000
PEER = Path(os.environ.get("TOKENLOOM_RETRO_PEER", Path(__file__).parents[2] / "build" / "megatron-core-0.15.3"))


class TokenizerWithPad(Tokenizer):
    """One whose pad the peer may ask for."""

    pad = -1


def prepare(*, folder: str, is_peer: bool, way: str, seconds: float) -> Callable[[], Outcome]:
    """Opens the project; `way` is single, batched or copy, which copies what a batch holds."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    dataset = peers_dataset(folder) if is_peer else our_dataset(folder)
    positions = np.random.default_rng(1).permutation(NUM_SAMPLES)
    state = hashlib.sha256()
    for position in positions[:DIGESTED].tolist():
        for name, array in dataset[position].items():
            state.update(name.encode() + np.asarray(array).tobytes())
    if way == "copy":
        return copies(dataset.batch(positions[:BATCH]), BATCH, seconds)
    fetch: Callable[..., Any] = dataset.__getitem__
    groups = [[position] for position in positions.tolist()]
    if way == "batched":
        fetch = dataset.batch
        groups = [positions[i : i + BATCH].tolist() for i in range(0, NUM_SAMPLES - BATCH + 1, BATCH)]
    digest = {"digest": state.hexdigest()}
    return lambda: {**repeat(fetch, groups, seconds, spread=way == "single"), **digest}


def settings(folder: str) -> dict[str, Any]:
    """Returns the settings of the samples, which both sides take."""
    return {
        "random_seed": 1234,
        "sequence_length": LENGTH,
        "blend": ([os.path.join(folder, "project", "data", "corpus")], None),
        "split": "1,0,0",
        "split_preprocessing": "1,0,0",
        "return_document_ids": False,
        "tokenizer": TokenizerWithPad(),
        "reset_position_ids": False,
        "reset_attention_mask": False,
        "eod_mask_loss": False,
        "create_attention_mask": False,
        "path_to_cache": os.path.join(folder, "cache"),
    }


def retro_settings(folder: str) -> SimpleNamespace:
    """Returns the settings of neighbors, which both sides take."""
    return SimpleNamespace(
        retro_project_dir=os.path.join(folder, "project"),
        retro_chunk_length=CHUNK_LENGTH,
        retro_block_size=BLOCK_SIZE,
        retro_neighbor_dirs={"train": "train_drawn"},
        retro_num_neighbors=2,
        retro_num_retrieved_chunks=2,
        retro_verify_neighbor_count=True,
    )


def our_dataset(folder: str) -> Any:
    """Returns the samples of tokenloom."""
    from tokenloom.blending.dataset_builder import BlendedMegatronDatasetBuilder
    from tokenloom_retro.assembled import get_retro_datasets
    from tokenloom_retro.multi_split import MultiSplitGPTDataset, MultiSplitGPTDatasetConfig

    config = MultiSplitGPTDatasetConfig(**settings(folder), allow_data_mismatch=True)  # neighbors that were drawn
    train = BlendedMegatronDatasetBuilder(MultiSplitGPTDataset, [NUM_SAMPLES, 0, 0], lambda: True, config).build()[0]
    return get_retro_datasets(retro_settings(folder), {"train": (train, NUM_SAMPLES)}, LENGTH, Tokenizer.eod)[0]


def peers_dataset(folder: str) -> Any:
    """Returns the samples of the last release of megatron-core that has them."""
    if not (PEER / "megatron" / "core" / "datasets" / "retro").is_dir():
        raise RuntimeError(f"expected megatron-core 0.15.3 in {PEER}; `make bench` brings it")
    sys.path.insert(0, str(PEER))
    from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
    from megatron.core.datasets.retro import MultiSplitGPTDataset, MultiSplitGPTDatasetConfig, get_retro_datasets

    config = MultiSplitGPTDatasetConfig(**settings(folder))
    train = BlendedMegatronDatasetBuilder(MultiSplitGPTDataset, [NUM_SAMPLES, 0, 0], lambda: True, config).build()[0]
    samples = {"train": (train, NUM_SAMPLES), "valid": (None, 0), "test": (None, 0)}
    return get_retro_datasets(retro_settings(folder), samples, LENGTH, Tokenizer.eod)[0]


if __name__ == "__main__":
    serve(prepare)
