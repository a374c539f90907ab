"""Which of many are shown one by one, and which together."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike


def largest(sizes: ArrayLike, most: int) -> tuple[list[int], list[int]]:
    """Returns the numbers of the largest, largest first, and those of all others, which is one at least if any.

    Args:
        sizes: numbers[count].
        most: how many rows there may be; one of them is for all others.

    Example:
        >>> largest([3, 9, 1], 3), largest([3, 9, 1, 2], 3)
        (([1, 0, 2], []), ([1, 0], [3, 2]))
    """
    order: list[int] = np.argsort(-np.asarray(sizes, dtype=np.float64), kind="stable").tolist()
    return (order, []) if len(order) <= most else (order[: most - 1], order[most - 1 :])
