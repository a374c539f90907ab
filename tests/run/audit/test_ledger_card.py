"""What a notebook shows of a ledger."""

from __future__ import annotations

import re
from dataclasses import replace

from tests.rendering.cards import tables_of
from tests.run.small_runs import lock, pair, segment

from tokenloom.run.audit.ledger_rows import LedgerRow, RunLedger
from tokenloom.run.lock import LockedSource
from tokenloom.run.run import Run
from tokenloom.run.sample_settings import DEFAULTS


def ledger() -> RunLedger:
    found = lock([LockedSource(name="<web>", pairs=(pair(47),))], [segment(0, 9, [1])])
    return Run("run.toml", replace(found, samples=dict(DEFAULTS))).ledger(until=6)


def test_a_ledger_shows_its_sum_its_sources_and_its_slots():
    facts, sources, slots = tables_of(ledger()._repr_html_())
    assert facts == [
        ["up to position", "6"],
        ["samples", "6"],
        ["tokens seen", "60"],
        ["tokens with loss", "60"],
        ["balance", "0"],
    ]
    assert sources == [
        ["source", "samples", "tokens offered", "seen", "with loss", "not reached"],
        ["<web>", "6", "94", "60", "60", "20"],
    ]
    assert slots == [["slots", "share", "count"], ["with loss", "100.00%", "60"]]


def test_what_is_not_accounted_for_is_said_first():
    wrong = RunLedger(position=6, stages=(), sources=(("web", LedgerRow(offered=7)),))
    assert re.findall(r'role="alert">(.*?)</p>', wrong._repr_html_()) == ["7 tokens and slots are not accounted for"]


def test_of_many_sources_the_most_read_are_shown():
    (name, row), *_ = ledger().sources
    many = RunLedger(position=6, stages=(), sources=((name, row),) * 40)
    sources = tables_of(many._repr_html_())[1]
    assert len(sources) == 13
    assert sources[-1] == ["29 others", str(29 * 6), "2,726", "1,740", "1,740", "580"]


def test_an_empty_ledger_is_shown():
    assert tables_of(RunLedger(position=0, stages=(), sources=())._repr_html_())[0][0] == ["up to position", "0"]
