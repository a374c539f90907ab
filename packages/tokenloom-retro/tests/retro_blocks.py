"""A task for tests that needs no data: squares of rows, and who made which block."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from tokenloom.errors import ConfigError
from tokenloom_retro.block_plan import Arrays


@dataclass(frozen=True)
class SquaresTask:
    """Squares of the rows from 0, times a factor; `log` gets a line for each block, a row `wrong_at` fails."""

    log: str
    num_rows: int = 10
    block_size: int = 4
    factor: int = 1
    wrong_at: int = -1
    name: str = "squares"
    unit: str = "numbers"

    def identity(self) -> dict[str, Any]:
        return {"factor": self.factor, "block_size": self.block_size}

    def maker(self, num_workers: int) -> SquaresMaker:
        return SquaresMaker(self)

    @property
    def made(self) -> list[str]:
        """The blocks that were made, in order."""
        return Path(self.log).read_text().splitlines() if Path(self.log).exists() else []


class SquaresMaker:
    """Makes squares."""

    def __init__(self, task: SquaresTask) -> None:
        self._task = task

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def make(self, start: int, stop: int, advance: Callable[[int], None]) -> Arrays:
        if start <= self._task.wrong_at < stop:
            message = f"row {self._task.wrong_at} cannot be squared"
            raise ConfigError(message)
        with open(self._task.log, "a") as log:
            log.write(f"{start}-{stop}\n")
        advance(stop - start)
        return {"squares": self._task.factor * np.arange(start, stop, dtype=np.int64) ** 2}
