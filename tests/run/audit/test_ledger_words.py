"""Counts of a ledger in words: none has two, none is left out."""

from __future__ import annotations

from tests.run.folders import make_run

from tokenloom.run.audit.ledger_rows import LedgerRow
from tokenloom.run.audit.ledger_words import LEFT, NEVER, SLOTS, WITHOUT, columns_of


def test_every_count_of_a_row_has_its_words():
    row = LedgerRow().as_json()
    named = [name for _, name in (*WITHOUT, *NEVER, *LEFT)]
    assert sorted([*named, "brought", "offered", "read_twice", "with_loss"]) == sorted(row["tokens"])
    assert sorted([name for _, name in SLOTS]) == sorted(set(row["slots"]) - {"all"})


def test_columns_come_to_nothing(tmp_path):
    for _, row in make_run(tmp_path).ledger().sources:
        came_in, with_loss, without, never, left = columns_of(row)
        assert came_in == with_loss + without + never + left > 0
