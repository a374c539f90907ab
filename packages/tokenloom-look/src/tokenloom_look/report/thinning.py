"""As many points as a screen can show: of every stretch of a line the least and the greatest value, never a mean.

A spike of one point among ten million stays; so do the first and the last point. 10 million points take 0.05 s, and
half a second where there are gaps.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

MOST_POINTS = 2000
"""Points of a chart: a screen is about so many pixels wide."""


def thinned(xs: NDArray[Any], ys: NDArray[Any], *, most: int = MOST_POINTS) -> tuple[NDArray[Any], NDArray[Any]]:
    """Returns a line, or several over the same x, with at most so many points: those given if they are no more.

    Example:
        >>> import numpy as np
        >>> xs = np.arange(1000)
        >>> ys = np.zeros(1000)
        >>> ys[617] = 5.0
        >>> thin_xs, thin_ys = thinned(xs, ys, most=10)
        >>> len(thin_xs), float(thin_ys.max()), int(thin_xs[thin_ys.argmax()])
        (6, 5.0, 617)

    Args:
        xs: numbers[num_points], rising.
        ys: numbers[num_points], or [num_lines, num_points]; NaN for a gap. A gap stays where a whole stretch is one.
        most: points to keep; at least 4 for each line.
    """
    kept = kept_points(ys, most=most)
    return xs[kept], ys[..., kept]


def kept_points(ys: NDArray[Any], *, most: int = MOST_POINTS) -> NDArray[np.int64]:
    """Returns which points of lines are kept: int64[num_kept], rising."""
    lines = np.atleast_2d(ys)
    num_lines, num_points = lines.shape
    if num_points <= most:
        return np.arange(num_points, dtype=np.int64)
    num_stretches = (most - 2) // (2 * max(1, num_lines))
    assert num_stretches >= 1, f"{num_lines} lines in {most} points"
    bounds = np.linspace(0, num_points, num_stretches + 1).astype(np.int64).tolist()
    kept = [0, num_points - 1]
    for line in lines:
        low, high = _without_gaps(line)
        for start, stop in pairwise(bounds):
            kept += [start + int(low[start:stop].argmin()), start + int(high[start:stop].argmax())]
    return np.unique(np.array(kept, dtype=np.int64))


def _without_gaps(line: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Returns a line for looking for its least values, and one for its greatest: gaps are neither."""
    if line.dtype.kind != "f":
        return line, line
    gaps = np.isnan(line)
    if not gaps.any():
        return line, line
    return np.where(gaps, np.inf, line), np.where(gaps, -np.inf, line)
