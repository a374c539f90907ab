"""`megatron.core.datasets.utils`: weights, blends, and logging on one rank."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch.distributed

from tokenloom.blending import spec
from tokenloom.datasets.splits import Split  # noqa: F401

logger: logging.Logger = logging.getLogger(__name__)


def compile_helpers() -> None:
    """Does nothing, because tokenloom's kernels are already compiled."""


def normalize(weights: Sequence[float] | npt.NDArray[np.float64]) -> list[float]:
    """Returns weights divided by their sum, in float64.

    Example:
        >>> normalize([1, 3])
        [0.25, 0.75]
    """
    values = np.array(weights, dtype=np.float64)
    normalized: list[float] = (values / values.sum()).tolist()
    return normalized


def get_blend_from_list(blend: Sequence[Any] | None) -> tuple[list[str], list[float] | None] | None:
    """Returns (prefixes, weights) of a blend, or (prefixes, None) for a blend without weights. Returns None for None.

    Extends `tokenloom.get_blend_from_list`: a weight is anything that `float` accepts, including 0.

    Example:
        >>> get_blend_from_list(["30", "books", "0", "web"])
        (['books', 'web'], [30.0, 0.0])

    Raises:
        ConfigError: only some of the entries with indices 0, 2, 4, … are numbers.
    """
    if isinstance(blend, (list, tuple)) and blend and len(blend) % 2 == 0:
        weights = [_number_or_none(entry) for entry in blend[::2]]
        given = [weight for weight in weights if weight is not None]
        if len(given) == len(weights) and all(isinstance(prefix, str) for prefix in blend[1::2]):
            return [prefix.strip() for prefix in blend[1::2]], given
    return spec.get_blend_from_list(blend)


def has_ranks() -> bool:
    """Returns whether `torch.distributed` is initialized."""
    return bool(torch.distributed.is_available() and torch.distributed.is_initialized())


def log_single_rank(logger: logging.Logger, *args: Any, rank: int = 0, **kwargs: Any) -> None:
    """Calls `logger.log` only on rank `rank`; always if `torch.distributed` is not initialized."""
    if not has_ranks() or torch.distributed.get_rank() == rank:
        logger.log(*args, **kwargs)


def _number_or_none(entry: Any) -> float | None:
    try:
        return float(entry)
    except (TypeError, ValueError):
        return None
