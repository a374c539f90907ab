"""Plots for each row how many times as fast, or as small, tokenloom is as each peer."""

from __future__ import annotations

from pathlib import Path

from harness.results import Results

COLOURS = {
    "megatron-core": "#4c78a8",
    "mosaicml-streaming": "#f58518",
    "litdata": "#54a24b",
    "grain": "#b279a2",
    "datatrove": "#e45756",
    "tokenizers": "#9d755d",
}
_OTHER = "#777777"


def ratios(results: Results) -> list[tuple[str, str, float]]:
    """Returns (row, library, ratio) for the best side of each peer in each row, in table order."""
    found: list[tuple[str, str, float]] = []
    for row in results.rows:
        best: dict[str, float] = {}
        for side in row.peers:
            if (times := row.times_better(side)) is not None:
                best[side.library] = min(times, best.get(side.library, times))
        found += [(row.name, library, times) for library, times in best.items()]
    return found


def plot_results(results: Results, path: Path) -> None:
    """Writes the plot in the format of the path's suffix.

    Equal results give equal files: no dates, no random identifiers.
    """
    import matplotlib as mpl

    mpl.use("agg")
    mpl.rcParams["svg.hashsalt"] = "tokenloom"
    from matplotlib import pyplot

    bars = ratios(results)
    figure, axes = pyplot.subplots(figsize=(10, 1.2 + 0.24 * len(bars)), layout="constrained")
    try:
        labels, last = [], None
        for number, (row, library, times) in enumerate(bars):
            axes.barh(number, times - 1, left=1, color=COLOURS.get(library, _OTHER), label=library)
            axes.annotate(f" {times:.3g}x", (max(times, 1), number), va="center", fontsize=7)
            labels.append(row if row != last else "")
            last = row
        axes.set_yticks(range(len(bars)), labels, fontsize=7)
        axes.set_xscale("log")
        axes.margins(y=0.01)
        axes.invert_yaxis()
        axes.axvline(1, color="black", linewidth=0.8)
        axes.set_xlabel("times as fast (or as small) as the best side of each peer; at 1 they are equal")
        handles = dict(zip((library for _, library, _ in bars), axes.containers, strict=True))
        figure.legend(handles.values(), handles.keys(), loc="outside upper center", ncols=len(handles) or 1, fontsize=8)
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    finally:
        pyplot.close(figure)
