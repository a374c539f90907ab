"""What a report is made of: sections with words, tables and charts. A chart is data; who draws it decides nothing.

Section and chart are the same for the page, the explorer and a notebook. What they look like as JSON, which
`web/charts.js` reads, is said here alone.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tokenloom.storage.publishing import write_report
from tokenloom_look.report.thinning import MOST_POINTS, kept_points

Kind = Literal["lines", "stacked", "bars"]
Scale = Literal["linear", "log"]
Format = Literal["count", "share", "number", "tokens", "seconds"]

KINDS: tuple[Kind, ...] = ("lines", "stacked", "bars")

_DIGITS = 7
"""Significant digits of a fraction in JSON: a screen shows four, and each costs a byte a point."""


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """One line, layer, row of bars or cloud of a chart.

    Attributes:
        name: what it is, as the legend says it.
        values: numbers[num_points], by x; NaN for a gap. Of bars one less than there are edges.
        colour: its colour, from 0; by its place in the chart if None.
    """

    name: str
    values: ArrayLike
    colour: int | None = None


@dataclass(frozen=True, slots=True)
class Mark:
    """A place on the x axis with a name, such as where a stage begins.

    Attributes:
        x: the place.
        label: its name.
    """

    x: float
    label: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Chart:
    """A picture as data: what it says in words, axes, and numbers.

    Attributes:
        id: its name in a page, of letters, digits and hyphens.
        kind: "lines", "stacked" layers, or "bars" of a histogram.
        title: what is seen.
        summary: what it shows, in a sentence, for those who cannot see it.
        x_label, x_scale: name and scale of the x axis.
        x: finite numbers[num_points], rising or equal; of bars their n + 1 edges.
        x_unit: a word after values of x, such as "tokens".
        y_label, y_scale: name and scale of the y axis. Where that is "log", what is not positive becomes a gap.
        y_format: how a value is written: "count", "share" of 1, "number", "tokens" or "seconds".
        series: what is drawn.
        marks: places on the x axis.
        note: a remark below; what was left out, for example.
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
        """Checks that there is a value for every x."""
        assert self.kind in KINDS, self.kind
        size = len(np.asarray(self.x)) - (self.kind == "bars")
        for series in self.series:
            assert len(np.asarray(series.values)) == size, f"{self.id}: {series.name} has not {size} values"

    def as_json(self, *, most: int = MOST_POINTS) -> dict[str, Any]:
        """Returns the chart as `json` writes it, with at most so many points; gaps are None.

        Numbers are those of JavaScript, doubles: positions beyond 2^53 are rounded, which no screen shows.

        Args:
            most: points to keep of lines, layers and clouds; bars stay as they are.
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
        """Returns the chart with at most so many points, see `thinning.py`; then its note says so."""
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
        html: words and tables, ready for a page: every text in it is escaped.
        charts: pictures that follow.
        findings: sentences on what is odd and worth a look, as texts; a report lists those of all sections on top.
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
    """Returns numbers as JSON has them: None for what is none, or has no place on the scale."""
    array: NDArray[Any] = np.asarray(values)
    if array.dtype.kind in "iub":
        whole: list[int] = array.astype(np.int64).tolist()
        return [None if scale == "log" and value <= 0 else value for value in whole]
    doubles = array.astype(np.float64)
    shown = np.isfinite(doubles) & ((doubles > 0) if scale == "log" else True)
    return [_short(value) if good else None for value, good in zip(doubles.tolist(), shown.tolist(), strict=True)]


def _short(value: float) -> float | int:
    """Returns a number in few digits; whole ones as such."""
    return int(value) if value.is_integer() and abs(value) < 2**53 else float(f"{value:.{_DIGITS}g}")
