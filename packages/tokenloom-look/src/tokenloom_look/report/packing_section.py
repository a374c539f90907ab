"""The section "Packing": fill of packs, and documents cut by packs and windows, for several sequence lengths."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tokenloom.order.packs import best_fit_report
from tokenloom_look.html import Cell, Markup, element, joined, table
from tokenloom_look.report.section import Chart, ReportOptions, Section, Series, share
from tokenloom_look.target import Target

_MOST_DOCUMENTS = 1 << 23  # maximum number of lengths to read; more give the same result
_CHUNK = 1 << 16  # documents per chunk when only some chunks are read
_MOST_PAIRS = 256  # maximum number of pairs to open, at 1 ms each
_LENGTHS = (-2, -1, 0, 1, 2)  # the sequence length is multiplied by 2 to the power of each of these numbers
_WASTED = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fit:
    """The fill of packs, and the shares of documents that packs and windows cut, for one sequence length."""

    length: int
    fill: float
    cut_by_packs: float
    cut_by_windows: float
    per_pack: float


def packing_section(target: Target, options: ReportOptions) -> Section | None:
    """Returns the fill of packs and the documents that are cut; reads at most 8 million lengths from 256 pairs."""
    lengths, num_documents = _lengths(target)
    if not len(lengths):
        return None
    sequence_length = target.settings.sequence_length
    uses_packs = target.settings.window_policy == "best_fit"
    if target.run is not None:
        sequence_length = target.run.lock.segments[0].sequence_length
        uses_packs = target.run.lock.windows == "best_fit"
    fits = [
        _fit(lengths, max(1, sequence_length << power if power > 0 else sequence_length >> -power))
        for power in _LENGTHS
    ]
    html: list[Cell] = [_fits(fits, sequence_length)]
    if len(lengths) < num_documents:
        note = f"Measured on {len(lengths):,} of {num_documents:,} documents, at regular intervals."
        html.append(element("p", note, class_="note"))
    findings = list(_findings(next(fit for fit in fits if fit.length == sequence_length), uses_packs=uses_packs))
    return Section(id="packing", title="Packing", html=joined(html), charts=[_fit_chart(fits)], findings=findings)


def _lengths(target: Target) -> tuple[NDArray[np.int32], int]:
    """Returns lengths of non-empty documents, read in evenly spaced chunks, and the total number of documents."""
    prefixes = [prefix for source in target.sources for prefix in source.prefixes]
    total = sum(source.num_documents for source in target.sources)
    every = -(-total // _MOST_DOCUMENTS)
    found = [np.empty(0, dtype=np.int32)]
    chunk = 0
    for prefix in prefixes[:: -(-len(prefixes) // _MOST_PAIRS) or 1]:
        data = target.pairs.get(prefix).data
        if data.multimodal:
            continue
        for first in range(0, len(data), _CHUNK):
            if chunk % every == 0:
                found.append(np.array(data.sequence_lengths[first : first + _CHUNK]))
            chunk += 1
    lengths = np.concatenate(found)
    return lengths[lengths > 0], total


def _fit(lengths: NDArray[np.int32], sequence_length: int) -> _Fit:
    report = best_fit_report(lengths, sequence_length=sequence_length)
    inner = np.minimum(lengths - np.int32(1), np.int32(min(sequence_length, 2**31 - 1)))
    return _Fit(
        length=sequence_length,
        fill=report.fill,
        cut_by_packs=report.num_split_documents / len(lengths),
        cut_by_windows=float(inner.sum(dtype=np.int64)) / sequence_length / len(lengths),
        per_pack=report.documents_per_pack,
    )


def _fits(fits: list[_Fit], sequence_length: int) -> Markup:
    rows: list[list[Cell]] = [
        [
            f"{fit.length:,}{' (current)' if fit.length == sequence_length else ''}",
            share(fit.fill, 1),
            share(1 - fit.fill, 1),
            f"{fit.per_pack:,.1f}",
            share(fit.cut_by_packs, 1),
            share(fit.cut_by_windows, 1),
        ]
        for fit in fits
    ]
    columns = [
        *("tokens per sample", "fill of best-fit packs", "padding", "documents per pack"),
        *("documents cut by packs", "documents cut by windows"),
    ]
    note = "Windows have no padding; the share of documents that windows cut is the mean over all shuffles."
    return table(columns, rows, caption="Packs and windows by sequence length", note=note)


def _fit_chart(fits: list[_Fit]) -> Chart:
    best = max(fits, key=lambda fit: fit.fill)
    return Chart(
        id="fill-by-length",
        kind="lines",
        title="Fill and cut documents by sequence length",
        summary=f"Best-fit packs are fullest, {share(best.fill, 1)}, at {best.length:,} tokens.",
        x_label="tokens per sample",
        x_scale="log",
        x=[fit.length for fit in fits],
        y_label="share",
        y_format="share",
        series=[
            Series("fill of best-fit packs", [fit.fill for fit in fits]),
            Series("documents cut by packs", [fit.cut_by_packs for fit in fits]),
            Series("documents cut by windows", [fit.cut_by_windows for fit in fits]),
        ],
    )


def _findings(fit: _Fit, *, uses_packs: bool) -> Iterator[str]:
    if uses_packs and 1 - fit.fill > _WASTED:
        yield f"Packs of {fit.length:,} tokens are {share(1 - fit.fill, 1)} padding."
