"""How many samples a blend asks of each dataset."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np


def normalize(weights: Sequence[float]) -> list[float]:
    """Returns the weights divided by their sum: NumPy's float64 sum and division, as the reference does it."""
    array = np.array(weights, dtype=np.float64)
    normalized: list[float] = (array / np.sum(array)).tolist()
    return normalized


def target_sizes(weights: Sequence[float], size: int) -> list[int]:
    """Returns the samples that a blend of `size` takes of each dataset, rounded up.

    Args:
        weights: normalised.
        size: samples wanted of the blend; it will have the sum of the targets.
    """
    return [math.ceil(size * weight) for weight in weights]


def build_sizes(weights: Sequence[float], size: int, *, surplus: float) -> list[int]:
    """Returns the samples to build of each dataset: the target and a share of it more, rounded up."""
    return [math.ceil(target * (1 + surplus)) for target in target_sizes(weights, size)]
