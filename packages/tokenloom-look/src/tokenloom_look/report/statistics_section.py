"""The section "Training loop": charts, over steps, of the statistics in a file that `JsonLinesWriter` wrote."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import InputError
from tokenloom_look.html import element, facts, joined
from tokenloom_look.report.section import Chart, ReportOptions, Section, Series, share
from tokenloom_look.target import Target

_MOST_POINTS = 4000  # maximum lines to draw; longer files are thinned evenly
_MOST_BYTES = 1 << 22  # bytes to read from the end of a growing file
_MOST_SERIES = 12
_MUCH_WAITING = 0.05
_WAIT_KEYS = {"num_batches", "total_seconds"}
_NOT_DRAWN = {"step", "unix_seconds"}

Float64s = NDArray[np.float64]
Line = Mapping[str, Any]


def statistics_section(target: Target, options: ReportOptions) -> Section | None:
    """Returns charts of the statistics file in `options`; None without a file."""
    if options.statistics is None:
        return None
    lines = _read(options.statistics)
    return section_of_lines(options.statistics, lines[:: -(-len(lines) // _MOST_POINTS) or 1], num_lines=len(lines))


def section_of_lines(path: str, lines: Sequence[Line], *, num_lines: int) -> Section:
    """Returns the section with charts of the numbers in `lines`; the file `path` has `num_lines` lines in total.

    The x value of a line is its `step`; for a line without `step`, its place in `lines`, counted from 1. A mapping of
    numbers becomes one chart; a mapping of mappings becomes one chart per key of the inner mappings.
    """
    steps = np.array([_number(line.get("step", number)) for number, line in enumerate(lines, 1)], dtype=np.float64)
    order = np.argsort(steps, kind="stable")  # a resumed run may repeat steps
    order = order[np.isfinite(steps[order])]
    charts: list[Chart] = []
    findings: list[str] = []
    shares, whole = _waits(lines)
    if math.isfinite(whole):
        words = f"The training loop waited for data {share(whole, 1)} of the time."
        findings += [words] if whole > _MUCH_WAITING else []
        charts.append(_chart("Share of the time spent waiting for data", words, steps, order, {"waiting": shares}))
    for title, series in _columns(lines).items():
        known = {name: values for name, values in series.items() if np.isfinite(values[order]).any()}
        if known:
            ends = (f"{name} {values[np.isfinite(values)][-1]:.4g}" for name, values in list(known.items())[:3])
            charts.append(_chart(title, f"Last values: {', '.join(ends)}.", steps, order, known))
    html = [facts([("file", path), ("lines", num_lines), ("lines not shown", num_lines - len(lines) or None)])]
    if not charts:
        html.append(element("p", "The file has no numbers; write it with `JsonLinesWriter`.", class_="note"))
    charts = [replace(chart, id=f"training-{number}") for number, chart in enumerate(charts, 1)]
    return Section(id="statistics", title="Training loop", html=joined(html), charts=charts, findings=findings)


def _chart(
    title: str, summary: str, steps: Float64s, order: NDArray[np.int64], series: Mapping[str, Float64s]
) -> Chart:
    drawn = list(series.items())[:_MOST_SERIES]
    num_hidden = len(series) - len(drawn)
    is_share = list(series) == ["waiting"]
    return Chart(
        id="training",
        kind="lines",
        title=title,
        summary=summary,
        x_label="step",
        x=steps[order],
        y_label="share of the time" if is_share else title.rpartition("/")[2],
        y_format="share" if is_share else "number",
        series=[Series(name, values[order]) for name, values in drawn],
        note=f"{num_hidden:,} more are not shown." if num_hidden else "",
    )


def last_lines(path: str) -> tuple[list[Line], int]:
    """Reads the end of a growing file; returns JSON objects, oldest first, and the number of invalid lines."""
    with open(path, "rb") as stream:
        if (begin := os.fstat(stream.fileno()).st_size - _MOST_BYTES) > 0:
            stream.seek(begin)
            stream.readline()
        *whole, _ = stream.read(_MOST_BYTES).split(b"\n")
    found = [_parsed(line) for line in whole if line.strip()]
    return [line for line in found if line is not None][-_MOST_POINTS:], found.count(None)


def _read(path: str) -> list[Line]:
    lines: list[Line] = []
    try:
        with open(path, "rb") as stream:
            for number, text in enumerate(stream, 1):
                if not text.endswith(b"\n"):  # being written
                    break
                if (line := _parsed(text)) is None:
                    message = f"`{path}`: line {number} is not a JSON object"
                    raise InputError(message, hint="write the file with `JsonLinesWriter`")
                lines.append(line)
    except OSError as error:
        raise InputError(f"`{path}`: cannot read it: {error.strerror or error}") from error
    return lines


def _parsed(text: bytes) -> Line | None:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _columns(lines: Sequence[Line]) -> dict[str, dict[str, Float64s]]:
    """Returns {chart title: {series name: one number per line}}; NaN for a line without this number."""
    found: dict[str, dict[str, Float64s]] = {}
    for row, line in enumerate(lines):
        for title, name, value in _numbers(line):
            column = found.setdefault(title, {}).setdefault(name, np.full(len(lines), np.nan))
            column[row] = value
    return found


def _numbers(line: Line) -> Iterator[tuple[str, str, float]]:
    """Yields (chart, series, value) for each number of a line."""
    for name, value in line.items():
        if name in _NOT_DRAWN or _is_wait(value):
            continue
        if not isinstance(value, dict):
            yield name, name, _number(value)
            continue
        for key, inner in value.items():
            if isinstance(inner, dict):
                for last, number in inner.items():
                    yield f"{name}/{last}", key, _number(number)
            else:
                yield name, key, _number(inner)


def _number(value: Any) -> float:
    """Returns a value as float; NaN if it is not a number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or abs(value) > 1e300:
        return math.nan
    return float(value)


def _is_wait(value: Any) -> bool:
    return isinstance(value, dict) and value.keys() >= _WAIT_KEYS


def _waits(lines: Sequence[Line]) -> tuple[Float64s, float]:
    """Returns the share of time spent waiting for data, between each line and the line before, and in total; or NaN."""
    waits: list[Line] = [next((value for value in line.values() if _is_wait(value)), {}) for line in lines]
    waited = np.diff([_number(wait.get("total_seconds")) for wait in waits])
    seconds = np.diff([_number(line.get("unix_seconds")) for line in lines])
    shares = np.full(len(lines), np.nan)
    is_known = (seconds > 0) & (waited >= 0)  # a restarted process counts from 0
    shares[1:][is_known] = waited[is_known] / seconds[is_known]
    return shares, float(waited[is_known].sum() / seconds[is_known].sum()) if is_known.any() else math.nan
