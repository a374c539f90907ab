"""What a notebook shows of a ledger."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenloom.rendering.card import Fact, card, top_table
from tokenloom.rendering.html import Cell, Markup, table
from tokenloom.rendering.words import short

if TYPE_CHECKING:
    from tokenloom.run.audit.ledger_rows import LedgerRow, RunLedger


def ledger_card(ledger: RunLedger) -> Markup:
    """Returns the card of a ledger: its sum, and its sources."""
    total = ledger.total
    counted = total.as_json()
    facts: list[Fact] = [
        ("up to position", ledger.position),
        ("samples", total.counts.samples),
        ("tokens seen", total.seen),
        ("tokens with loss", total.counts.with_loss),
        ("balance", ledger.balance),
    ]
    alarms = [f"{ledger.balance:,} tokens and slots are not accounted for"] if ledger.balance else []
    rows = [row for _, row in ledger.sources]
    sources = top_table(
        ["source", "samples", "tokens offered", "seen", "with loss", "not reached"],
        [[name, *_counts(row)] for name, row in ledger.sources],
        sizes=[row.seen for row in rows],
        others=lambda rest: _counts(sum((rows[number] for number in rest[1:]), start=rows[rest[0]])),
    )
    slots = [
        (name.replace("_", " "), f"{count / counted['slots']['all']:.2%}", count)
        for name, count in counted["slots"].items()
        if name != "all" and count
    ]
    return card("RunLedger", facts, tables=[sources, table(["slots", "share", "count"], slots)], alarms=alarms)


def _counts(row: LedgerRow) -> list[Cell]:
    counts = (row.brought + row.offered, row.seen, row.counts.with_loss, row.not_reached)
    return [row.counts.samples, *map(short, counts)]
