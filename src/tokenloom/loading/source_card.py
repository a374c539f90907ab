"""What a notebook shows of a report on sources."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenloom.rendering.card import Fact, card, top_table
from tokenloom.rendering.html import Cell, Markup
from tokenloom.rendering.words import short

if TYPE_CHECKING:
    from tokenloom.loading.source_report import SourceReport


def source_card(report: SourceReport) -> Markup:
    """Returns the card of a report."""
    sources = report.sources
    facts: list[Fact] = [
        ("step", report.step),
        ("consumed samples", report.consumed_samples),
        ("sources", len(sources)),
        ("samples since the last report", sum(source.samples for source in sources)),
        ("tokens with loss", sum(source.tokens for source in sources)),
    ]

    def others(rest: list[int]) -> list[Cell]:
        left = [sources[number] for number in rest]
        tokens, total = sum(source.tokens for source in left), sum(source.total_tokens for source in left)
        return [None, short(tokens), sum(source.samples for source in left), short(total), None]

    rows = [
        (
            source.name,
            f"{source.loss:.4f}" if source.tokens else None,
            short(source.tokens),
            source.samples,
            short(source.total_tokens),
            None if source.passes is None else f"{source.passes:,.2f}",
        )
        for source in sources
    ]
    columns = ["source", "loss", "tokens", "samples", "tokens so far", "passes"]
    measured = top_table(columns, rows, sizes=[source.total_tokens for source in sources], others=others)
    return card("SourceReport", facts, tables=[measured])
