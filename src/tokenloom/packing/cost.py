"""What a sub-sample costs the ranks that work on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import ConfigError
from tokenloom.numbers import finite_or_none

Int64s = NDArray[np.int64]
Float64s = NDArray[np.float64]


class CostModel(Protocol):
    """What schedulers ask of a cost model: a pure function, the same on every rank and every CPU."""

    def cost(self, lengths: Int64s, cp_size: int) -> Float64s:
        """Returns the time that each rank of a context-parallel group spends on each sub-sample, in any unit.

        A longer sub-sample costs no less, and no less per token.

        Args:
            lengths: int64[n], tokens, at least 1.
            cp_size: ranks of the group.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class PolynomialCost:
    """Time on each of c ranks for n tokens: (linear × n + quadratic × n²) / c + communication × n × (c - 1) / c.

    The default counts attention work alone, as the reference's schedulers do. For a transformer of hidden size h with
    causal attention and a feed-forward width of 4h, linear / quadratic is about 12 h tokens.

    Example:
        >>> PolynomialCost().cost(np.array([1, 2, 4]), 2).tolist()
        [0.5, 2.0, 8.0]

    Attributes:
        linear: cost per token: everything but attention.
        quadratic: cost per pair of tokens: attention inside one document.
        communication: cost per token that a rank gets from the other ranks of its group.
    """

    linear: float = 0.0
    quadratic: float = 1.0
    communication: float = 0.0

    def __post_init__(self) -> None:
        for name in ("linear", "quadratic", "communication"):
            value = getattr(self, name)
            number = finite_or_none(value)
            if number is None or number < 0:
                message = f"`{name}` of a cost must be finite and not negative, got {value!r}"
                raise ConfigError(message)
        if self.linear == 0 and self.quadratic == 0:
            message = "`linear` and `quadratic` of a cost are both 0, so nothing costs anything"
            raise ConfigError(message)

    def cost(self, lengths: Int64s, cp_size: int) -> Float64s:
        """Returns the time that each rank of a group of `cp_size` spends on each sub-sample."""
        tokens = lengths.astype(np.float64)
        per_token: Float64s = (self.linear + self.quadratic * tokens + self.communication * (cp_size - 1)) / cp_size
        return per_token * tokens
