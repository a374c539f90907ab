"""Sections, charts and options of a report, the same for the page, the explorer and a notebook.

A chart is data; this module alone defines its JSON, which `web/charts.js` reads.
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
"""Points of a chart: a screen is about so many pixels wide."""

_DIGITS = 7
"""Significant digits of a fraction in JSON: a screen shows four, and each costs a byte a point."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportOptions:
    """Options of a report.

    Attributes:
        num_samples_shown: number of samples, and of documents.
        global_batch_size: samples of a step, or None.
        statistics: file of `JsonLinesWriter`, or None.
        contamination: file of `tokenloom contamination --json`, or None.
        seed: seed of random samples and documents.
        now: seconds since 1970, for the state of a job; None for the clock.
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
    """One line, layer or row of bars of a chart.

    Attributes:
        name: its name in the legend.
        values: numbers[num_points], by x; NaN for a gap. Of bars one less than there are edges.
        colour: its colour, from 0; by its place in the chart if None.
    """

    name: str
    values: ArrayLike
    colour: int | None = None


@dataclass(frozen=True, slots=True)
class Mark:
    """A place on the x axis with a name, such as where a stage begins."""

    x: float
    label: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Chart:
    """A picture as data: what it says in words, axes, and numbers.

    Attributes:
        id: its name in a page, of letters, digits and hyphens.
        kind: "lines", "stacked" layers, or "bars" of a histogram.
        title: its heading.
        summary: a sentence for those who cannot see it.
        x_label, x_scale: name and scale of the x axis.
        x: finite numbers[num_points], rising or equal; of bars their n + 1 edges.
        x_unit: a word after values of x, such as "tokens".
        y_label, y_scale: name and scale of the y axis; on "log", values of 0 or less become gaps.
        y_format: format of values: "count", "share" of 1, "number", "tokens" or "seconds".
        series, marks: the drawn values, and named places on the x axis.
        note: a remark below.
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
            assert len(np.asarray(series.values)) == size, f"{self.id}: {series.name} has not {size} values"

    def as_json(self, *, most: int = MOST_POINTS) -> dict[str, Any]:
        """Returns the chart as `json` writes it, with at most so many points; gaps are None.

        Numbers are those of JavaScript, doubles: positions beyond 2^53 are rounded, which no screen shows.
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
        """Writes the chart as a picture; the same bytes whenever it is written.

        Args:
            path: path of the file; its suffix says the format: .png, .svg or .pdf.
            overwrite: replace a file that shows something else.

        Raises:
            ConfigError: the suffix is another one.
            OutputExistsError: another file is there, and no `overwrite`.
            MissingExtraError: matplotlib is not installed.
        """
        from tokenloom_look.pictures import check_picture_path, picture

        write_report(os.fspath(path), picture(self, check_picture_path(os.fspath(path))), overwrite=overwrite)

    def _repr_png_(self) -> bytes:
        from tokenloom_look.pictures import picture

        return picture(self)

    def thinned(self, *, most: int = MOST_POINTS) -> Chart:
        """Returns the chart with at most so many points; its note says so."""
        xs = np.asarray(self.x)
        if len(xs) <= most or self.kind == "bars":
            return self
        values = np.stack([np.asarray(each.values) for each in self.series])
        kept = kept_points(values, most=most)
        note = f"{len(kept):,} of {len(xs):,} points are drawn, the least and the greatest values among them."
        series = [replace(each, values=row[kept]) for each, row in zip(self.series, values, strict=True)]
        return replace(self, x=xs[kept], series=series, note=f"{self.note} {note}".strip())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Section:
    """A part of a report.

    Attributes:
        id: its name in a page and an address, of letters, digits and hyphens.
        title: its heading.
        html: words and tables, escaped.
        charts: pictures that follow.
        findings: sentences on odd facts, as texts; a report lists those of all sections on top.
    """

    id: str
    title: str
    html: str
    charts: Sequence[Chart] = ()
    findings: Sequence[str] = ()

    def as_json(self) -> dict[str, Any]:
        """Returns the section as `json` writes it."""
        charts = [chart.as_json() for chart in self.charts]
        findings = list(self.findings)
        return {"id": self.id, "title": self.title, "html": self.html, "charts": charts, "findings": findings}


def _numbers(values: ArrayLike, scale: Scale) -> list[float | int | None]:
    """Returns numbers for JSON; None for non-finite ones, and off a log scale."""
    array: NDArray[Any] = np.asarray(values)
    if array.dtype.kind in "iub":
        whole: list[int] = array.astype(np.int64).tolist()
        return [None if scale == "log" and value <= 0 else value for value in whole]
    doubles = array.astype(np.float64)
    shown = np.isfinite(doubles) & ((doubles > 0) if scale == "log" else True)
    return [_short(value) if good else None for value, good in zip(doubles.tolist(), shown.tolist(), strict=True)]


def _short(value: float) -> float | int:
    """Returns a number with few digits; whole ones as int."""
    return int(value) if value.is_integer() and abs(value) < 2**53 else float(f"{value:.{_DIGITS}g}")


def kept_points(ys: NDArray[Any], *, most: int = MOST_POINTS) -> NDArray[np.int64]:
    """Returns the points to draw: int64[num_kept], rising; the least and the greatest value of every stretch of a line.

    So a spike of one point stays, as do the first and the last point. `ys` is numbers[num_points], or [num_lines,
    num_points]; NaN for a gap.
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
    """Returns a line with gaps replaced, for minima and for maxima."""
    if line.dtype.kind != "f":
        return line, line
    gaps = np.isnan(line)
    if not gaps.any():
        return line, line
    return np.where(gaps, np.inf, line), np.where(gaps, -np.inf, line)


_HOURS = 3600
_DAYS = 48 * _HOURS


def share(part: float, whole: float) -> str:
    """Returns a share in percent; what is not quite nothing or all does not look so.

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
    """Returns a time in milliseconds, seconds, minutes, hours or days.

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
