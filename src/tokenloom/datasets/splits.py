"""Train, valid and test: what a split string means, and which elements of a dataset it gives to each."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import ConfigError

SplitMatrix = list[tuple[float, float] | None]


class Split(Enum):
    """The three parts of a dataset."""

    train = 0
    valid = 1
    test = 2


def parse_and_normalize_split(split: str) -> list[float]:
    """Returns the shares of train, valid and test, adding up to 1.

    Example:
        >>> parse_and_normalize_split("3, 1")
        [0.75, 0.25, 0.0]

    Raises:
        ConfigError: the string holds no weight, more than three, a malformed or a negative one, or only zeros.
    """
    if "-" in split:
        message = f"expected weights of at least 0 in the split, found a minus sign in {split!r}"
        raise ConfigError(message)
    texts = re.findall(r"[.0-9]+", split)
    try:
        weights = [float(text) for text in texts]
    except ValueError as error:
        message = f"expected numbers separated by commas in the split, found {split!r}"
        raise ConfigError(message) from error
    if not 1 <= len(weights) <= len(Split):
        message = f"expected 1 to {len(Split)} weights in the split, found {len(weights)} in {split!r}"
        raise ConfigError(message)
    weights += [0.0] * (len(Split) - len(weights))
    # NumPy's sum and division, as the reference: another order of additions could differ in the last bit.
    array = np.array(weights, dtype=np.float64)
    total = np.sum(array)
    if not total > 0:
        message = f"expected at least one weight above 0 in the split, found {split!r}"
        raise ConfigError(message)
    shares: list[float] = (array / total).tolist()
    return shares


def split_matrix(shares: Sequence[float]) -> SplitMatrix:
    """Returns the interval of each split in [0, 1], or None where it is empty.

    Example:
        >>> split_matrix([0.75, 0.25, 0.0])
        [(0, 0.75), (0.75, 1.0), None]
    """
    ends = list(itertools.accumulate([0, *shares]))
    return [None if stop <= start else (start, stop) for start, stop in itertools.pairwise(ends)]


def split_range(bounds: tuple[float, float], num_elements: int) -> range:
    """Returns the elements of a dataset that an interval of the split matrix selects."""
    start, stop = (round(bound * float(num_elements)) for bound in bounds)
    return range(start, stop)


def split_indices(bounds: tuple[float, float], num_elements: int) -> NDArray[Any]:
    """Returns `split_range` as an array: int32, or int64 where that is too narrow."""
    chosen = split_range(bounds, num_elements)
    dtype = np.int32 if num_elements <= np.iinfo(np.int32).max else np.int64
    return np.arange(chosen.start, chosen.stop, dtype=dtype)
