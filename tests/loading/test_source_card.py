"""What a notebook shows of a report on sources."""

from __future__ import annotations

import math

from tests.rendering.cards import tables_of, tags_of

from tokenloom.loading.source_report import SourceMeasure, SourceReport


def measure(name: str, loss: float, tokens: int, passes: float | None = None) -> SourceMeasure:
    counts = {"tokens": tokens, "slots": 8, "samples": 2, "total_tokens": 10 * tokens}
    return SourceMeasure(name=name, loss=loss, passes=passes, total_slots=80, total_samples=20, **counts)


def test_a_report_shows_each_source():
    sources = (measure("<b>web", 2.5, 6, 1.25), measure("code", math.nan, 4), measure("books", math.nan, 0))
    shown = SourceReport(step=3, consumed_samples=None, sources=sources)._repr_html_()
    facts, measured = tables_of(shown)
    assert facts == [
        ["step", "3"],
        ["sources", "3"],
        ["samples since the last report", "6"],
        ["tokens with loss", "10"],
    ]
    assert measured == [
        ["source", "loss", "tokens", "samples", "tokens so far", "passes"],
        ["<b>web", "2.5000", "6", "2", "60", "1.25"],
        ["code", "nan", "4", "2", "40", ""],
        ["books", "", "0", "2", "0", ""],
    ]
    assert "b" not in tags_of(shown)


def test_of_many_sources_the_largest_are_shown():
    sources = tuple(measure(f"s{number}", 1.0, number) for number in range(30))
    measured = tables_of(SourceReport(step=None, consumed_samples=None, sources=sources)._repr_html_())[1]
    assert [row[0] for row in measured[1:]] == [*(f"s{number}" for number in range(19, 30)), "19 others"]
    assert measured[-1][1:] == ["", str(sum(range(19))), "38", f"{10 * sum(range(19)):,}", ""]


def test_a_report_on_nothing_is_shown():
    assert tables_of(SourceReport(step=1, consumed_samples=None, sources=())._repr_html_())[0][0] == ["step", "1"]
