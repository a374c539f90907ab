"""What of a run is looked at: a picture of its mixture, and its card in a notebook."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.run.lock import RunLock

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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

    def plot_mixture(
        self, *, until: int | None = None, path: str | os.PathLike[str] | None = None, overwrite: bool = False
    ) -> Figure:
        """Returns a picture of what is read: shares and passes of the sources over positions; a notebook shows it.

        Shares are counted, not estimated, in up to some 200 parts of the run, and stages are marked where they begin.

        Example:
            >>> import tempfile
            >>> from tokenloom import IndexedDatasetBuilder, Run
            >>> folder = tempfile.mkdtemp()
            >>> with IndexedDatasetBuilder(f"{folder}/web.bin") as builder:
            ...     builder.add_document(list(range(100)), [100])
            ...     builder.finalize(f"{folder}/web.idx")
            >>> with open(f"{folder}/run.toml", "w") as stream:
            ...     _ = stream.write('''
            ... order = 1
            ... seed = 1
            ... sources = { web = "web" }
            ... [[stages]]
            ... sequence_length = 16
            ... samples = 8
            ... weights = { web = 1 }
            ... ''')
            >>> figure = Run.open(f"{folder}/run.toml").plot_mixture(path=f"{folder}/mixture.png")
            >>> [axes.get_ylabel() for axes in figure.axes]
            ['share of samples', 'passes']

        Args:
            until: one past the last position; None for the end of the run.
            path: path of a file to write it to; its suffix says the format: .png, .svg or .pdf.
            overwrite: replace a file that shows something else.

        Raises:
            ConfigError: the run has no such position, or no end and none is named; or the suffix is another one.
            MissingExtraError: matplotlib is not installed.
        """
        from tokenloom.run.plot import plot_history

        return plot_history(self.history(until=until), path=path, overwrite=overwrite)

    def _repr_html_(self) -> str:
        from tokenloom.run.card import run_card

        return run_card(self)
