"""A shuffle for remote data: blocks of data in random order, and documents in random order within a group of blocks.

A full shuffle reads a block once for each sample in the block. This shuffle reads each block once per epoch. It needs a
cache for one group (`window_blocks * block_bytes` bytes), or two where a group ends. Seed and epoch define the order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.kernels.order import LegacyRandom
from tokenloom.numbers import checked_integer
from tokenloom.order.epochs import EpochPlan
from tokenloom.order.shuffles import document_index_dtype, shuffle_index_dtype

_SAMPLES = -1  # replaces the epoch in the seed of the shuffle of samples


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockShuffle:
    """Settings of the block shuffle: documents mix within groups of `window_blocks` blocks.

    Attributes:
        block_bytes: bytes of tokens per block; the block size of the object storage is best.
        window_blocks: number of blocks per group.

    Raises:
        ConfigError: a setting is below 1.
    """

    block_bytes: int = 4 << 20
    window_blocks: int = 64

    def __post_init__(self) -> None:
        for name in ("block_bytes", "window_blocks"):
            object.__setattr__(self, name, checked_integer(name, getattr(self, name), at_least=1))


def build_block_document_index(
    indices: NDArray[Any], numbers: NDArray[np.int64], plan: EpochPlan, blocks: BlockShuffle, seed: int
) -> NDArray[Any]:
    """Returns the shuffled documents of all epochs: integers[num_epochs * num_documents].

    Args:
        indices: integers[num_documents], the documents of the split.
        numbers: int64[num_documents], index of the block of each document, in ascending order.
        plan, blocks, seed: `plan` has the number of epochs, `blocks` the settings; `seed` is the seed of the run.
    """
    count = len(indices)
    stream = np.empty((plan.num_epochs, count), dtype=document_index_dtype(int(indices.max(initial=-1))))
    starts = np.flatnonzero(np.diff(numbers, prepend=-1))
    sizes = np.diff(starts, append=count)
    for epoch in range(plan.num_epochs):
        random = _random(seed, epoch)
        order = np.arange(len(starts))
        random.shuffle(order)
        ends = np.cumsum(sizes[order])
        rows = np.arange(count) + np.repeat(starts[order] - (ends - sizes[order]), sizes[order])
        stream[epoch] = indices[rows]
        begin = 0
        for end in [*ends[blocks.window_blocks - 1 :: blocks.window_blocks].tolist(), count]:
            random.shuffle(stream[epoch, begin:end])
            begin = end
    return stream.reshape(-1)


def build_block_shuffle_index(plan: EpochPlan, blocks: BlockShuffle, *, sample_bytes: int, seed: int) -> NDArray[Any]:
    """Returns the window of each sample, integers[num_samples], shuffled within groups of `window_blocks` blocks."""
    shuffled = np.arange(plan.num_samples, dtype=shuffle_index_dtype(plan.num_samples))
    random = _random(seed, _SAMPLES)
    group = max(1, blocks.window_blocks * blocks.block_bytes // sample_bytes)
    for begin in range(0, plan.num_samples, group):
        random.shuffle(shuffled[begin : begin + group])
    return shuffled


def _random(seed: int, epoch: int) -> LegacyRandom:
    return LegacyRandom(int(np.random.SeedSequence([seed, epoch + 1]).generate_state(1)[0]))
