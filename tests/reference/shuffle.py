"""The shuffle of `numpy.random.RandomState`: Fisher-Yates from the back, partners drawn by mask and rejection."""

from typing import Any

import numpy as np
from numpy.typing import NDArray


def legacy_shuffle(values: NDArray[Any], random: np.random.RandomState) -> None:
    """Shuffles in place, drawing from `random` exactly what `random.shuffle(values)` would draw."""
    for index in range(len(values) - 1, 0, -1):
        partner = _draw_up_to(index, random)
        values[index], values[partner] = values[partner], values[index]


def _draw_up_to(bound: int, random: np.random.RandomState) -> int:
    """Returns a number in [0, bound]: words are masked to the bits of the bound and rejected when they exceed it."""
    mask = (1 << bound.bit_length()) - 1
    while True:
        value = random.randint(0, 2**32, dtype=np.uint32) & mask  # a full-range draw is one raw word
        if value <= bound:
            return int(value)
