"""Detects ranks that see another mixture than the blend, because sampler and blend repeat in step.

`MegatronPretrainingSampler` gives a rank every R-th micro-batch of B samples: the same places of each B * R positions.
The order of a blend is nearly periodic, too. Where one period divides the other, some ranks read more of a dataset than
others all run long, as in the reference. Each global batch, and so the gradient, is right; statistics per rank or
micro-batch (balance of experts, losses averaged by micro-batch, lengths) are not.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tokenloom.blending.array_order import ArrayBlendOrder
from tokenloom.blending.blended import BlendedDataset
from tokenloom.blending.quota import normalize
from tokenloom.errors import ResonanceWarning
from tokenloom.kernels.order import build_blending_indices
from tokenloom.loading.samplers import MegatronPretrainingSampler
from tokenloom.overrides import overrides

REMEDY = "use `BalancedSampler`, or `mixing_block=1024` in the configuration, or another micro-batch size"

_SAMPLES_PER_RANK = 512
_LEAST_SAMPLES, _MOST_SAMPLES = 1 << 14, 1 << 18
_LEAST_DIFFERENCE = 0.1  # of a share; smaller ones are not reported
_LEAST_DEVIATIONS = 6.0  # standard deviations of a random order; smaller differences may be chance


class Resonance(NamedTuple):
    """The dataset whose share differs most between ranks; `period` is `micro_batch_size * data_parallel_size`."""

    dataset: int
    name: str
    share: float
    least: float
    most: float
    least_rank: int
    most_rank: int
    period: int
    num_ranks: int

    def __str__(self) -> str:
        return (
            f"`{self.name}` is {self.share:.1%} of the blend, but {self.least:.1%} of what rank {self.least_rank} of "
            f"{self.num_ranks} reads, and {self.most:.1%} of rank {self.most_rank}, all run long: micro_batch_size * "
            f"data_parallel_size = {self.period} is in step with the order of the blend"
        )


def resonance_of_weights(
    weights: Sequence[float],
    *,
    micro_batch_size: int,
    data_parallel_size: int,
    names: Sequence[str],
    num_samples: int | None = None,
) -> Resonance | None:
    """Returns the largest difference of shares between ranks in the reference's order; takes milliseconds.

    None if there is none beyond chance: shares must differ in both halves of the positions. `num_samples` is the length
    of the blend; None for a long one.
    """
    period, num_ranks = micro_batch_size * data_parallel_size, data_parallel_size
    count = min(max(_SAMPLES_PER_RANK * num_ranks, _LEAST_SAMPLES), _MOST_SAMPLES)
    count = count if num_samples is None else min(count, num_samples)
    half = count // (2 * period) * period
    if num_ranks == 1 or not half:
        return None
    numbers, _ = build_blending_indices(np.array(normalize(weights), dtype=np.float64), size=count)
    places = np.arange(2 * half)
    rows = places // half * num_ranks + places % period // micro_batch_size
    cells = np.bincount(rows * len(names) + numbers[: 2 * half], minlength=2 * num_ranks * len(names))
    counts = cells.reshape(2, num_ranks, len(names))  # by half, rank and dataset
    shares = counts.sum(axis=(0, 1)) / (2 * half)
    first, second = counts * (num_ranks / half) - shares
    persistent = np.where(np.sign(first) == np.sign(second), np.minimum(abs(first), abs(second)), 0.0)
    chance = np.sqrt(shares * (1 - shares) * num_ranks / half)
    persistent[persistent <= np.maximum(_LEAST_DEVIATIONS * chance, _LEAST_DIFFERENCE * shares)] = 0
    if not persistent.any():
        return None
    dataset = int(np.argmax(persistent.max(axis=0)))
    by_rank = counts[:, :, dataset].sum(axis=0) * (num_ranks / (2 * half))
    found = float(shares[dataset]), float(by_rank.min()), float(by_rank.max())
    return Resonance(dataset, names[dataset], *found, int(by_rank.argmin()), int(by_rank.argmax()), period, num_ranks)


def warn_of_resonance(dataset: Any, sampler: Any, *, stacklevel: int = 3) -> None:
    """Warns, on the first rank, if a sampler is in step with a blend in the reference's order."""
    if (
        not isinstance(sampler, MegatronPretrainingSampler)
        or type(sampler).__iter__ is not MegatronPretrainingSampler.__iter__  # as of `BalancedSampler`
        or overrides(sampler, "get_start_end_idx")
        or sampler.data_parallel_rank
        or sampler.data_parallel_size == 1
        or not isinstance(dataset, BlendedDataset)
        or not isinstance(dataset.order, ArrayBlendOrder)
        or dataset.config.mixing_block > 1
    ):
        return
    found = resonance_of_weights(
        dataset.weights,
        micro_batch_size=sampler.micro_batch_size,
        data_parallel_size=sampler.data_parallel_size,
        names=[str(each.dataset_path) for each in dataset.datasets],
        num_samples=len(dataset),
    )
    if found is not None:
        warnings.warn(f"{found}; {REMEDY}", ResonanceWarning, stacklevel=stacklevel)
