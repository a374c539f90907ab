"""Sections, charts and options of a report, shared by the page, the explorer and notebooks.

A chart is data; this module defines the JSON of a chart, which `web/charts.js` draws.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tokenloom.numbers import check_count, checked_integer
from tokenloom.storage.publishing import write_report

Kind = Literal["lines", "stacked", "bars"]
Scale = Literal["linear", "log"]
Format = Literal["count", "share", "number", "tokens", "seconds"]

KINDS: tuple[Kind, ...] = ("lines", "stacked", "bars")

MOST_POINTS = 2000
"""Maximum number of points in a chart; a screen is about as many pixels wide."""

_DIGITS = 7  # significant digits of a fraction in JSON


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportOptions:
    """Options of a report.

    Attributes:
        num_samples_shown: number of samples to show; also the number of random documents to show.
        global_batch_size: samples per step, to show steps instead of positions; None if unknown.
        statistics: statistics file written by `JsonLinesWriter`, or None.
        contamination: file with the output of `tokenloom contamination --json`, or None.
        seed: seed for choosing samples and documents.
        now: current time in seconds since 1970, for the state of a job; None reads the clock.
    """

    num_samples_shown: int = 4
    global_batch_size: int | None = None
    statistics: str | None = None
    contamination: str | None = None
    seed: int = 1234
    now: float | None = None

    def __post_init__(self) -> None:
        check_count("num_samples_shown of a report", self.num_samples_shown)
        check_count("the seed of a report", self.seed)
        if self.global_batch_size is not None:
            checked_integer("global_batch_size", self.global_batch_size, at_least=1)


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """One line, layer or set of bars in a chart.

    Attributes:
        name: name in the legend.
        values: numbers[num_points], one per x value, NaN for a gap; for bars, one value per bar.
        colour: index of the colour; None for the index of the series in the chart.
    """

    name: str
    values: ArrayLike
    colour: int | None = None


@dataclass(frozen=True, slots=True)
class Mark:
    """A labelled place on the x axis, such as the start of a stage."""

    x: float
    label: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Chart:
    """A chart as data: axes, numbers, and a summary in words.

    Attributes:
        id: identifier in a page, of letters, digits and hyphens.
        kind: "lines", "stacked" layers, or "bars" of a histogram.
        title: the heading.
        summary: a sentence that describes the chart, for readers who cannot see it.
        x_label, x_scale: name and scale of the x axis.
        x: finite numbers[num_points] in ascending order, repeats allowed; for n bars, their n + 1 edges.
        x_unit: unit of x values, such as "tokens".
        y_label, y_scale: name and scale of the y axis; on "log", values of 0 or less become gaps.
        y_format: format of values: "count", "share" of 1, "number", "tokens" or "seconds".
        series: the lines, layers or bars.
        marks: labelled places on the x axis.
        note: a remark below the chart.
    """

    id: str
    kind: Kind
    title: str
    summary: str
    x_label: str
    x: ArrayLike
    y_label: str
    series: Sequence[Series]
    x_scale: Scale = "linear"
    x_unit: str = ""
    y_scale: Scale = "linear"
    y_format: Format = "number"
    marks: Sequence[Mark] = ()
    note: str = ""

    def __post_init__(self) -> None:
        assert self.kind in KINDS, self.kind
        size = len(np.asarray(self.x)) - (self.kind == "bars")
        for series in self.series:
            assert len(np.asarray(series.values)) == size, f"{self.id}: {series.name} must have {size} values"

    def as_json(self, *, most: int = MOST_POINTS) -> dict[str, Any]:
        """Returns the chart as JSON values with at most `most` points (but all bars); gaps are None.

        Numbers are doubles, as in JavaScript: positions beyond 2^53 are rounded.
        """
        chart = self if self.kind == "bars" else self.thinned(most=most)
        x = {"label": chart.x_label, "scale": chart.x_scale, "values": _numbers(chart.x, "linear")}
        return {
            "id": chart.id,
            "kind": chart.kind,
            "title": chart.title,
            "summary": chart.summary,
            "x": x | ({"unit": chart.x_unit} if chart.x_unit else {}),
            "y": {"label": chart.y_label, "scale": chart.y_scale, "format": chart.y_format},
            "series": [
                {"name": each.name, "values": _numbers(each.values, chart.y_scale)}
                | ({} if each.colour is None else {"colour": each.colour})
                for each in chart.series
            ],
            "marks": [{"x": mark.x, "label": mark.label} for mark in chart.marks],
            "note": chart.note,
        }

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Writes the chart as a picture with reproducible bytes.

        Args:
            path: path of the picture, ending in .png, .svg or .pdf.
            overwrite: replace an existing file that has other content.

        Raises:
            ConfigError: the suffix is not supported.
            OutputExistsError: a file that has other content exists, and `overwrite` is False.
            MissingExtraError: matplotlib is not installed.
        """
        from tokenloom_look.pictures import check_picture_path, picture

        write_report(os.fspath(path), picture(self, check_picture_path(os.fspath(path))), overwrite=overwrite)

    def _repr_png_(self) -> bytes:
        from tokenloom_look.pictures import picture

        return picture(self)

    def thinned(self, *, most: int = MOST_POINTS) -> Chart:
        """Returns the chart, thinned to `most` points unless it has bars; a note then says how many are drawn."""
        xs = np.asarray(self.x)
        if len(xs) <= most or self.kind == "bars":
            return self
        values = np.stack([np.asarray(each.values) for each in self.series])
        kept = kept_points(values, most=most)
        note = f"{len(kept):,} of {len(xs):,} points are drawn, including minima and maxima."
        series = [replace(each, values=row[kept]) for each, row in zip(self.series, values, strict=True)]
        return replace(self, x=xs[kept], series=series, note=f"{self.note} {note}".strip())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Section:
    """A part of a report.

    Attributes:
        id: identifier in a page and URL, of letters, digits and hyphens.
        title: the heading.
        html: text and tables, escaped.
        charts: the charts.
        findings: sentences about anomalies, as plain text; the report lists them at the top.
    """

    id: str
    title: str
    html: str
    charts: Sequence[Chart] = ()
    findings: Sequence[str] = ()

    def as_json(self) -> dict[str, Any]:
        charts = [chart.as_json() for chart in self.charts]
        findings = list(self.findings)
        return {"id": self.id, "title": self.title, "html": self.html, "charts": charts, "findings": findings}


def _numbers(values: ArrayLike, scale: Scale) -> list[float | int | None]:
    """Returns numbers for JSON; None for values that are not finite, or not above 0 on a log scale."""
    array: NDArray[Any] = np.asarray(values)
    if array.dtype.kind in "iub":
        whole: list[int] = array.astype(np.int64).tolist()
        return [None if scale == "log" and value <= 0 else value for value in whole]
    doubles = array.astype(np.float64)
    shown = np.isfinite(doubles) & ((doubles > 0) if scale == "log" else True)
    return [_short(value) if good else None for value, good in zip(doubles.tolist(), shown.tolist(), strict=True)]


def _short(value: float) -> float | int:
    """Returns a number rounded to 7 significant digits; a number without fraction becomes an int, not rounded."""
    return int(value) if value.is_integer() and abs(value) < 2**53 else float(f"{value:.{_DIGITS}g}")


def kept_points(ys: NDArray[Any], *, most: int = MOST_POINTS) -> NDArray[np.int64]:
    """Returns the indices of the points to draw: int64[num_kept], ascending.

    Keeps the first and last point, and the minimum and maximum of each line in each of several equal intervals.
    `ys` is numbers[num_points] or [num_lines, num_points]; NaN for a gap.
    """
    lines = np.atleast_2d(ys)
    num_lines, num_points = lines.shape
    if num_points <= most:
        return np.arange(num_points, dtype=np.int64)
    num_stretches = (most - 2) // (2 * max(1, num_lines))
    assert num_stretches >= 1, f"{num_lines} lines in {most} points"
    bounds = np.linspace(0, num_points, num_stretches + 1).astype(np.int64).tolist()
    kept = [0, num_points - 1]
    for line in lines:
        low, high = _without_gaps(line)
        for start, stop in pairwise(bounds):
            kept += [start + int(low[start:stop].argmin()), start + int(high[start:stop].argmax())]
    return np.unique(np.array(kept, dtype=np.int64))


def _without_gaps(line: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Returns a line twice: with gaps replaced by infinity, to find minima, and by minus infinity, to find maxima."""
    if line.dtype.kind != "f":
        return line, line
    gaps = np.isnan(line)
    if not gaps.any():
        return line, line
    return np.where(gaps, np.inf, line), np.where(gaps, -np.inf, line)


_HOURS = 3600
_DAYS = 48 * _HOURS


def share(part: float, whole: float) -> str:
    """Returns a share in percent; only exact zeros and ones are shown as 0% and 100%.

    Example:
        >>> share(1, 3), share(1, 10**6), share(999_999, 10**6), share(0, 0)
        ('33.3%', '<0.1%', '>99.9%', '0%')
    """
    if not whole or not part:
        return "0%"
    percent = 100 * part / whole
    if percent < 0.1:
        return "<0.1%"
    if 99.9 < percent < 100:
        return ">99.9%"
    return f"{percent:.3g}%"


def duration(seconds: float) -> str:
    """Formats a duration in milliseconds, seconds, minutes, hours or days.

    Example:
        >>> duration(0.0123), duration(0.25), duration(90), duration(7300), duration(10**6)
        ('12.3 ms', '0.2 s', '2 min', '2.0 h', '11.6 days')
    """
    if 0 < seconds < 0.1:
        return f"{1000 * seconds:.3g} ms"
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    if seconds < _HOURS:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / _HOURS:.1f} h" if seconds < _DAYS else f"{seconds / 86400:.1f} days"
