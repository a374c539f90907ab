"""Rows of ledgers, and what they sum up to."""

from __future__ import annotations

import json

from tokenloom.datasets.slot_counts import count_windows
from tokenloom.run.audit.ledger_rows import LedgerRow, LedgerStage, RunLedger, summed, summed_over_stages

FIRST = LedgerRow(offered=101, counts=count_windows(6, sequence_length=10, extra=1), first_of_passes=1, handed_on=40)
SECOND = LedgerRow(brought=40, counts=count_windows(3, sequence_length=10, extra=1), not_reached=10)


def test_rows_balance_and_sum_up():
    assert FIRST.balance == SECOND.balance == (0, 0)
    assert summed([FIRST, SECOND]) == FIRST + SECOND
    over = summed_over_stages([FIRST, SECOND])
    assert (over.brought, over.handed_on, over.offered, over.seen, over.not_reached) == (0, 0, 101, 90, 10)
    assert over.balance == (0, 0)


def test_what_is_not_accounted_for_shows():
    wrong = LedgerRow(offered=5, counts=count_windows(1, sequence_length=4, extra=1))
    stage = LedgerStage(stage="main", start=0, stop=1, sequence_length=4, sources=(("web", wrong),))
    ledger = RunLedger(position=1, stages=(stage,), sources=(("web", wrong),))
    told = ledger.as_json()
    assert (wrong.balance, ledger.balance) == ((1, 0), 2)
    assert (told["balance"], told["total"]["balance"], told["stages"][0]["sources"][0]["balance"]) == (2, 1, 1)
    assert json.loads(json.dumps(told)) == told
