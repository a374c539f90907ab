"""`tokenloom ledger`: where the tokens of a run went up to a position."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from tokenloom.cli.json_output import print_json
from tokenloom.cli.options import Either, UsageError
from tokenloom.cli.run_common import WIDTH, BatchSizes, RunPath, largest, print_row, stage_of
from tokenloom.rendering.words import counted, short
from tokenloom.run.audit.ledger import LEFT, NEVER, SLOTS, WITHOUT, LedgerRow, RunLedger, columns_of, summed
from tokenloom.run.run import Run
from tokenloom.setting_types import Number

_MOST_ROWS = 12
_NAME = 16
_HEADINGS = ("source", "samples", "in", "with loss", "without", "never", "left")
_WIDTHS = (_NAME, 9, 9, 9, 9, 9, 9)


@dataclass(frozen=True, kw_only=True)
class Options(RunPath, BatchSizes):
    """Where the tokens of a run went before a step: per stage and source how many its passes hold, which of them were
    seen with loss, which without and why, which are never seen, and which are left; and what filled the samples. All
    comes to a balance of 0; the exit status is 1 if it does not. Data are looked into only where they decide what has
    loss.

    Attributes:
        until_position: up to where, as samples from 0 on (default: the whole run).
        until_step: up to where, as steps from 0 on.
        no_reading: count nothing for which data would have to be looked into.
        all: all sources, not only the largest of a stage.
        json: print one JSON object: run, position, balance, total, sources and stages.
    """

    EITHER: ClassVar[Either] = (("until_position", "until_step"),)

    until_position: Number | None = None
    until_step: Number | None = None
    no_reading: bool = False
    all: bool = False
    json: bool = False


def run(options: Options) -> int:
    """Prints the ledger; returns 1 if it does not balance."""
    opened = Run.open(options.run_path)
    position = options.position_of(options.until_position, options.until_step, opened.lock)
    if position is None and opened.num_samples is None:
        message = "a run without an end needs --until-step or --until-position"
        raise UsageError(message)
    found = opened.ledger(until=position, reads_data=not options.no_reading)
    if options.json:
        print_json({"run": opened.identity, **found.as_json()})
    else:
        _print(options.run_path, found, None if options.all else _MOST_ROWS)
    return 1 if found.balance else 0


def _print(path: str, ledger: RunLedger, most: int | None) -> None:
    print(f"{path}: {counted(ledger.position, 'sample')} of {counted(len(ledger.sources), 'source')}; tokens:")
    for stage in ledger.stages:
        print(f"\n{stage_of(stage.stage)}, positions {stage.start:,} to {stage.stop:,}")
        print_row(_HEADINGS, _WIDTHS)
        _print_rows(stage.sources, most)
    print("\nthe whole run up to there")
    print_row(_HEADINGS, _WIDTHS)
    _print_rows(ledger.sources, most)
    total = ledger.total.as_json()
    tokens, slots = total["tokens"], total["slots"]
    print("\ntokens of the passes that were begun")
    _print_sum("in the passes", tokens["offered"], always=True)
    _print_sum("read by two samples, of long documents", tokens["read_twice"])
    _print_sum("seen with loss", -tokens["with_loss"], always=True)
    for words, name in (*WITHOUT, *NEVER, *LEFT):
        _print_sum(words, -tokens[name])
    print("slots of the samples")
    _print_sum(f"in {counted(total['samples'], 'sample')}", slots["all"], always=True)
    for words, name in SLOTS:
        _print_sum(words, -slots[name], always=name == "with_loss")
    print(f"balance {ledger.balance}")


def _print_rows(rows: Sequence[tuple[str, LedgerRow]], most: int | None) -> None:
    shown, rest = largest(rows, lambda each: each[1].seen, most)
    for name, row in shown:
        print_row(tuple(_cells(name, row)), _WIDTHS)
        _print_reasons(row)
    if rest:
        print_row(tuple(_cells(f"{len(rest):,} others", summed(row for _, row in rest))), _WIDTHS)


def _cells(name: str, row: LedgerRow) -> Iterator[str]:
    yield name
    yield short(row.counts.samples)
    yield from map(short, columns_of(row))


def _print_reasons(row: LedgerRow) -> None:
    tokens = row.as_json()["tokens"]
    words = [f"{words} {tokens[name]:,}" for words, name in (*WITHOUT, *NEVER, *LEFT) if tokens[name]]
    if words:
        print(textwrap.fill("; ".join(words), WIDTH, initial_indent="    ", subsequent_indent="    "))


def _print_sum(words: str, number: int, *, always: bool = False) -> None:
    if number or always:
        print(f"  {words:<42} {number:>+30,}")
