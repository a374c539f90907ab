"""Two runs beside each other: from where on they differ, in what, and what stands at each position of both."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import ConfigError
from tokenloom.inspect.target import Target
from tokenloom.run.audit.differences import RunDifferences, differences
from tokenloom.run.audit.span_table import SpanTable
from tokenloom.run.dataset import Place
from tokenloom.run.run import Run
from tokenloom_look.explorer.looking import Looking
from tokenloom_look.explorer.positions import position_rows, traced
from tokenloom_look.explorer.queries import Query
from tokenloom_look.html import table
from tokenloom_look.report.options import ReportOptions
from tokenloom_look.report.run_sections import stages_section
from tokenloom_look.report.section import Chart

_ROWS, _MOST_ROWS = 50, 200
_MOST_SOURCES = 200
_ENDLESS = 1 << 60


def compare(looking: Looking, query: Query) -> dict[str, Any]:
    """Returns how the two runs differ, in words and charts; worked out once."""
    query.check_read()
    left, right = _runs(looking)
    with looking.making:
        if "compare" not in looking.made:
            looking.made["compare"] = _compared(looking, differences(left.lock, right.lock))
        return looking.made["compare"]


def compared_positions(looking: Looking, query: Query) -> dict[str, Any]:
    """Returns what stands at positions of both, and whether it is the same."""
    left, right = _runs(looking)
    assert looking.compared is not None
    first, count = query.page(default=_ROWS, most=_MOST_ROWS)
    query.check_read()
    ends = [_ENDLESS if run.num_samples is None else run.num_samples for run in (left, right)]
    asked = np.arange(min(first, max(ends)), min(first + count, max(ends)), dtype=np.int64)
    sides, spans = [], []
    for target, end in zip((looking.target, looking.compared), ends, strict=True):
        own = asked[asked < end]
        rows = position_rows(target, own) if len(own) else []
        sides.append([*rows, *[None] * (len(asked) - len(rows))])
        spans.append(_spans_by_position(target, own))
    return {
        "total": None if max(ends) == _ENDLESS else max(ends),
        "first": first,
        "rows": [
            {"position": number, "same": spans[0].get(number) == spans[1].get(number), "left": one, "right": other}
            for number, one, other in zip(asked.tolist(), *sides, strict=True)
        ],
    }


def _runs(looking: Looking) -> tuple[Run, Run]:
    left = looking.target.run
    right = None if looking.compared is None else looking.compared.run
    if left is None or right is None:
        message = "expected a second run to compare with, found none"
        raise ConfigError(message, hint="start `tokenloom explore run.toml --compare OTHER`")
    return left, right


def _spans_by_position(target: Target, asked: NDArray[np.int64]) -> dict[int, list[tuple[object, ...]]]:
    """Returns the pieces of documents at positions, as they are the same in any run."""
    found: dict[int, list[tuple[object, ...]]] = {number: [] for number in asked.tolist()}
    if len(asked):
        spans: SpanTable = traced(target, asked)
        for row in spans.rows():
            piece = tuple(row[name] for name in ("pair", "row", "start", "length", "slot", "denied"))
            found[row["position"]].append(piece)
    return found


def _compared(looking: Looking, found: RunDifferences) -> dict[str, Any]:
    return {
        "summary": list(_words(found)),
        "settings": [asdict(changed) for changed in found.settings],
        "first_difference": None
        if found.position is None
        else {
            "position": found.position,
            "left": None if found.before is None else asdict(found.before),
            "right": None if found.after is None else asdict(found.after),
            "reason": found.reason,
        },
        "html": _sources(found),
        "charts": [chart.as_json() for chart in _charts(looking)],
        "runs": found.runs,
        "ends": found.ends,
    }


def _words(found: RunDifferences) -> Iterator[str]:
    if found.position is None:
        everything = "All positions" if found.stop is None or found.stop in found.ends else f"{found.stop:,} positions"
        yield f"{everything} are the same in both runs."
        return
    same = "no position is the same from the first on" if not found.position else ""
    yield f"The runs differ from position {found.position:,} on" + (f": {same}." if same else ".")
    for name, place, end in zip(("the first run", "the second"), (found.before, found.after), found.ends, strict=True):
        yield f"There, {name} {_place(place, found.position, end)}."
    if found.reason is not None and found.before == found.after:
        yield f"What stands there differs: {found.reason}."


def _place(place: Place | None, position: int, end: int | None) -> str:
    if place is None:
        return "has ended" if end is not None and position >= end else "has another sample"
    return f"reads {place.source}, pass {place.pass_number}: sample {place.window:,} of walk {place.walk}"


def _sources(found: RunDifferences) -> str:
    """Returns a table of what both read of each source."""
    if found.sources is None:
        return ""
    ranked = sorted(found.sources, key=lambda source: -(source.tokens_before + source.tokens_after))
    rows = [
        (source.name, source.tokens_before, source.tokens_after, source.common_tokens, source.common_data)
        for source in ranked[:_MOST_SOURCES]
    ]
    left_out = len(ranked) - len(rows)
    columns = ("source", "tokens in the first", "tokens in the second", "in samples of both", "in data of both")
    return table(columns, rows, note=f"{left_out:,} sources more" if left_out else None)


def _charts(looking: Looking) -> Iterator[Chart]:
    """Yields the blends of both runs over their positions."""
    assert looking.compared is not None
    for side, target in (("left", looking.target), ("right", looking.compared)):
        section = stages_section(target, ReportOptions())
        for chart in () if section is None else section.charts:
            yield replace(chart, id=f"{side}-{chart.id}", title=f"{chart.title}: {target.name}")
