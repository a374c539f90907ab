"""A task for tests that needs no data: squares of rows, and who made which block."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tokenloom.errors import ConfigError
from tokenloom_retro.block_job import Arrays, BlockTask, MakeBlock
from tokenloom_retro.output import Output


@dataclass(frozen=True, kw_only=True)
class SquaresTask(BlockTask):
    """Squares of the rows from 0; `log` gets a line for each block, a row `wrong_at` fails."""

    log: str
    wrong_at: int = -1
    unit: str = "numbers"

    def maker(self, num_threads: int) -> MakeBlock:
        return self._make

    def _make(self, start: int, stop: int, advance: Callable[[int], None]) -> Arrays:
        if start <= self.wrong_at < stop:
            message = f"row {self.wrong_at} cannot be squared"
            raise ConfigError(message)
        with open(self.log, "a") as log:
            log.write(f"{start}-{stop}\n")
        advance(stop - start)
        return {"squares": np.arange(start, stop, dtype=np.int64) ** 2}

    @property
    def made(self) -> list[str]:
        """The blocks that were made, in order."""
        return Path(self.log).read_text().splitlines() if Path(self.log).exists() else []


def squares_task(folder: Path) -> SquaresTask:
    """Returns ten squares in blocks of four."""
    output = Output(folder=os.fspath(folder / "out"), task="squares", identity={"power": 2}, pattern="*.hdf5")
    return SquaresTask(output=output, num_rows=10, block_size=4, log=os.fspath(folder / "log"))
