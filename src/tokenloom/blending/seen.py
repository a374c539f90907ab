"""What of a blend is looked at: a picture of its documents, and its card in a notebook."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from tokenloom.datasets.protocols import KnowsSequenceLengths
from tokenloom.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from tokenloom.datasets.splits import Split


class SeenBlend:
    """What a `BlendedDataset` shows of itself."""

    datasets: list[Any]
    split: Split
    weights: list[float]

    def plot_lengths(self, *, path: str | os.PathLike[str] | None = None, overwrite: bool = False) -> Figure:
        """Returns a picture of how long the sequences are that the datasets expose, by dataset; a notebook shows it.

        Each dataset counts once, whatever its weight.

        Args:
            path: path of a file to write it to; its suffix says the format: .png, .svg or .pdf.
            overwrite: replace a file that shows something else.

        Raises:
            ConfigError: a dataset does not know how long its sequences are, there are none, or the suffix is another
                one.
            MissingExtraError: matplotlib is not installed.
        """
        from tokenloom.indexed.plot import plot_lengths

        histograms = {}
        for number, dataset in enumerate(self.datasets):
            if not isinstance(dataset, KnowsSequenceLengths):
                message = f"expected datasets that know how long their sequences are, found {type(dataset).__name__}"
                raise ConfigError(message, hint="give the class a method `length_histogram`")
            name = str(dataset.dataset_path)  # type: ignore[attr-defined]  # datasets of a blend have one
            histograms[name if name not in histograms else f"{name} ({number})"] = dataset.length_histogram()
        return plot_lengths(histograms, what="sequence", path=path, overwrite=overwrite)

    def _repr_html_(self) -> str:
        from tokenloom.blending.card import blend_card

        return blend_card(self)
