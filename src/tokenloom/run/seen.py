"""What of a run is looked at: a picture of its mixture, and its card in a notebook."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.run.lock import RunLock

if TYPE_CHECKING:
    from tokenloom.run.history import RunHistory


class SeenRun(ABC):
    """What a `Run` shows of itself.

    Attributes:
        path: path of `run.toml`.
        lock: all that decides which tokens are read.
    """

    path: str
    lock: RunLock

    @abstractmethod
    def history(
        self, positions: Sequence[int] | NDArray[np.integer[Any]] | None = None, *, until: int | None = None
    ) -> RunHistory:
        """Returns samples and passes of each source before positions."""

    def _repr_html_(self) -> str:
        from tokenloom.run.card import run_card

        return run_card(self)
