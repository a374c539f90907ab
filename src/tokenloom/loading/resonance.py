"""Detects blends whose mixture differs between data-parallel ranks, because sampler and blend are both periodic.

`MegatronPretrainingSampler` gives each of R ranks every R-th micro-batch of B samples; its period is B * R. The order
of a blend is nearly periodic, too. If one period divides the other, a dataset may have a larger share on one rank than
on another rank; this also happens in Megatron. Each global batch, and so each gradient, has the right mixture, but
statistics per rank or micro-batch (balance of experts, losses averaged per micro-batch, lengths) are biased.
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

REMEDY = "use `BalancedSampler`, set `mixing_block=1024` in the configuration, or change the micro-batch size"

_SAMPLES_PER_RANK = 512
_LEAST_SAMPLES, _MOST_SAMPLES = 1 << 14, 1 << 18
_LEAST_DIFFERENCE = 0.1  # relative to the share; smaller differences are not reported
_LEAST_DEVIATIONS = 6.0  # standard deviations of a random order; smaller differences may be chance


class Resonance(NamedTuple):
    """The dataset whose share differs most between ranks: from `least` on `least_rank` to `most` on `most_rank`."""

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
            f"`{self.name}` is {self.share:.1%} of the blend, but during the whole run {self.least:.1%} of the samples "
            f"of rank {self.least_rank} of {self.num_ranks} and {self.most:.1%} of the samples of rank "
            f"{self.most_rank}: micro_batch_size * data_parallel_size = {self.period} matches the period of the blend"
        )


def resonance_of_weights(
    weights: Sequence[float],
    *,
    micro_batch_size: int,
    data_parallel_size: int,
    names: Sequence[str],
    num_samples: int | None = None,
) -> Resonance | None:
    """Returns the dataset whose share differs most between ranks in Megatron's order of a blend; takes milliseconds.

    `num_samples` is the size of the blend. Shares are computed in two halves of the first positions. Returns None if no
    rank's share of a dataset differs from the blend's share by more than chance, in the same direction in both halves.
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
    """Warns on data-parallel rank 0 if the period of a sampler matches the period of a blend in Megatron's order."""
    if (
        not isinstance(sampler, MegatronPretrainingSampler)
        or type(sampler).__iter__ is not MegatronPretrainingSampler.__iter__  # such as `BalancedSampler`
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
