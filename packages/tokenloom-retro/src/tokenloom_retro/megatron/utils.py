"""`megatron.core.datasets.retro.utils`: blocks, chunks, and their texts."""

from __future__ import annotations

import logging
import os
from typing import Any, TypedDict

import torch

from tokenloom.megatron.core.datasets.utils import log_single_rank
from tokenloom_retro.block_files import BlockPathMap
from tokenloom_retro.gpt_chunks import get_num_chunks_per_sample
from tokenloom_retro.megatron.query import MultiSplitGPTDataset, MultiSplitGPTDatasetConfig

__all__ = [
    "Block",
    "BlockPathMap",
    "GPTToTextDataset",
    "MultiSplitGPTDataset",
    "MultiSplitGPTDatasetConfig",
    "extract_data_config",
    "get_num_chunks_per_sample",
    "log_retro_rank_0",
    "log_single_rank",
    "retro_makedir",
]

logger: logging.Logger = logging.getLogger(__name__)


class Block(TypedDict):
    """A range of items, and the path of the file with these items."""

    range: tuple[int, int]
    path: str


def log_retro_rank_0(message: str) -> None:
    log_single_rank(logger, logging.INFO, f"[RETRO] {message}")


def retro_makedir(config: Any, path: str) -> None:
    """Creates a folder, unless `config.retro_task_validate` is set: then the task only checks a project."""
    if config.retro_task_validate is None:
        os.makedirs(path, exist_ok=True)


def extract_data_config(config: Any) -> MultiSplitGPTDatasetConfig:
    """Returns the settings of the samples that get neighbors."""
    found: MultiSplitGPTDatasetConfig = config.retro_gpt_chunk_datasets.train["dataset"].sample_dataset.config
    return found


class GPTToTextDataset(torch.utils.data.Dataset):  # type: ignore[misc]  # torch has no types
    """The decoded texts of samples or chunks.

    Args:
        gpt_dataset: samples with a `text` of token ids.
        gpt_tokenizer: the tokenizer of the samples, with a method `detokenize`.
    """

    def __init__(self, gpt_dataset: Any, gpt_tokenizer: Any) -> None:
        super().__init__()
        self.gpt_dataset = gpt_dataset
        self.gpt_tokenizer = gpt_tokenizer

    def __len__(self) -> int:
        return len(self.gpt_dataset)

    def __getitem__(self, idx: int) -> dict[str, Any]:
        """Returns the decoded `text` of a sample."""
        return {"text": self.gpt_tokenizer.detokenize(self.gpt_dataset[idx]["text"].tolist())}
