"""How long the sequences of datasets are, as a picture."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from tokenloom.errors import ConfigError
from tokenloom.indexed.length_histogram import BINS_PER_DOUBLING, LengthHistogram
from tokenloom.rendering.figures import MOST_ROWS, legend_beside, new_figure, percent_ticks, short_ticks, with_others
from tokenloom.rendering.largest import largest
from tokenloom.rendering.words import counted, short
from tokenloom.storage.saved_figure import saved

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot_lengths(
    histograms: Mapping[str, LengthHistogram],
    *,
    what: str,
    path: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
) -> Figure:
    """Returns a picture of how many sequences there are of each length, and of where the tokens are.

    A bar goes over a quarter of a doubling of the length; where lengths are too short for that, areas count.

    Args:
        histograms: lengths of the sequences of each dataset, by its name.
        what: what a sequence is: "document", for example.
        path: path of a file to write it to; its suffix says the format: .png, .svg or .pdf.
        overwrite: replace a file that shows something else.

    Raises:
        ConfigError: there is no sequence, or the suffix is another one.
        OutputExistsError: another file is there, and no `overwrite`.
        MissingExtraError: matplotlib is not installed.
    """
    each = list(histograms.values())
    total = sum(each[1:], start=each[0])
    if not total.num_sequences:
        message = f"expected {what}s to draw the lengths of, found none"
        raise ConfigError(message)
    shown, rest = largest([histogram.num_sequences for histogram in each], MOST_ROWS)
    parts = [each[number] for number in shown]
    if rest:
        parts.append(sum((each[number] for number in rest[1:]), start=each[rest[0]]))
    rows = with_others([list(histograms)[number] for number in shown], len(rest))
    used = np.flatnonzero(total.counts[1:]) + 1  # without empty ones, which have no place on this scale
    bins = slice(int(used[0]) if len(used) else 1, int(used[-1]) + 1 if len(used) else 2)
    edges = total.edges[bins.start : bins.stop + 1].astype(np.float64)
    widths = np.diff(np.log2(edges)) * BINS_PER_DOUBLING
    with new_figure(8 if len(parts) == 1 else 10, 3.8) as figure:
        axes = figure.subplots()
        below = np.zeros(len(widths))
        for part, (name, colour) in zip(parts, rows, strict=True):
            height = below + part.counts[bins] / total.num_sequences / widths
            axes.stairs(
                height, edges, baseline=below, fill=True, color=colour, label=f"{what}s" if len(parts) == 1 else name
            )
            below = height
        tokens = total.tokens[bins] / max(total.num_tokens, 1) / widths
        axes.stairs(tokens, edges, baseline=None, color="black", linewidth=1.4, label="tokens")
        mean = total.num_tokens / total.num_sequences
        if mean >= 1:
            axes.axvline(mean, color="black", linestyle=":", linewidth=1)
        axes.set(xscale="log", xlabel="tokens (dotted: the mean)", ylabel="share, per quarter doubling")
        axes.set_ylim(bottom=0)
        short_ticks(axes.xaxis)
        percent_ticks(axes.yaxis)
        empty = f", {short(int(total.counts[0]))} of them empty" if total.counts[0] else ""
        axes.set_title(
            f"{short(total.num_sequences)} {counted(total.num_sequences, what).partition(' ')[2]}{empty}, "
            f"{short(total.num_tokens)} tokens, {mean:,.0f} on average"
        )
        legend_beside(axes)
    return saved(figure, path, overwrite=overwrite)
