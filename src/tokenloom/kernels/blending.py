"""Kernels of blends: which dataset each sample comes from."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom import _native
from tokenloom.kernels.arrays import Int64s

_SAMPLES_PER_THREAD = 1 << 19
_WARM_UP = 1 << 15
"""Steps a thread takes before its own, to get from guessed to exact counts; measured: nearly always below 4096."""


def build_blending_indices(
    weights: NDArray[np.float64], *, size: int, sizes: Int64s | None = None
) -> tuple[NDArray[Any], Int64s]:
    """Returns which dataset each sample of a blend comes from, and how many that dataset gave before.

    At step s the dataset with the largest `weight * max(s, 1) - given`, in float64 without fused multiply-add, comes
    next; the lowest number on ties. About 3 ns per sample for two datasets, 10 for 16, 100 for thousands, shared by all
    cores.

    Args:
        weights: float64[num_datasets], adding up to 1.
        size: samples in all.
        sizes: int64[num_datasets], what each dataset gives at most; adding up to `size`. None: without bounds.

    Returns:
        dataset_index: int16[size], or int32 where numbers exceed int16.
        sample_index: int64[size].
    """
    wide = len(weights) > np.iinfo(np.int16).max
    dataset_index: NDArray[Any] = np.empty(size, dtype=np.int32 if wide else np.int16)
    sample_index = np.empty(size, dtype=np.int64)
    _native.build_blending_indices(weights, sizes, dataset_index, sample_index, _num_threads(size), _WARM_UP)
    return dataset_index, sample_index


def blending_counts(weights: NDArray[np.float64], size: int) -> Int64s:
    """Returns how many of the first `size` samples of a weighted blend each dataset gives: int64[num_datasets]."""
    counts = np.zeros(len(weights), dtype=np.int64)
    _native.blending_counts(weights, size, counts, _num_threads(size), _WARM_UP)
    return counts


def _num_threads(size: int) -> int:
    """Returns how many threads share a blend: as many as there are cores, as long as each has enough to do."""
    return max(1, min(len(os.sched_getaffinity(0)), size // _SAMPLES_PER_THREAD))
