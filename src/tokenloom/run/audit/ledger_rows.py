"""The ledger of a run: rows per stage and source, which sum up and balance; their words, and a card of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from operator import add, attrgetter
from typing import Any

from tokenloom.datasets.slot_counts import NO_SLOTS, SlotCounts
from tokenloom.rendering.card import HasFacts
from tokenloom.run.audit.ledger_counts import NONE_DROPPED, Dropped


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerRow:
    """What became of the tokens of a source in a segment, and what filled its samples there; or sums of that.

    Tokens of passes, `brought` + `offered`, were read (`counts`), will never be (`first_of_passes`, `dropped_tail`,
    `dropped`, `given_up`), or are left (`handed_on`, `not_reached`).

    Attributes:
        brought: tokens that are left of passes begun in stages before.
        offered: tokens of the passes that begin here.
        counts: what is in the slots of the samples, and the tokens that they read.
        first_of_passes: first tokens of passes, which are no label of anything.
        dropped_tail: tokens outside the whole windows of a pass.
        dropped: conversations that no sample holds.
        handed_on: tokens that later stages go on with.
        given_up: tokens left of passes that nothing goes on with, since samples of another length follow.
        not_reached: tokens that are left of the passes when the ledger is closed.
        balance: tokens and slots that are not accounted for: 0, or a count is wrong.
    """

    brought: int = 0
    offered: int = 0
    counts: SlotCounts = NO_SLOTS
    first_of_passes: int = 0
    dropped_tail: int = 0
    dropped: Dropped = NONE_DROPPED
    handed_on: int = 0
    given_up: int = 0
    not_reached: int = 0

    def __add__(self, other: LedgerRow) -> LedgerRow:
        return LedgerRow(**dict(zip(_NAMES, map(add, _MEMBERS(self), _MEMBERS(other)), strict=True)))

    @property
    def seen(self) -> int:
        """Tokens of the samples, with or without loss."""
        return self.counts.tokens

    @property
    def balance(self) -> tuple[int, int]:
        """Tokens and slots that are not accounted for."""
        slots, tokens = self.counts.balance
        never = self.first_of_passes + self.dropped_tail + self.dropped.tokens + self.given_up
        tokens += self.brought + self.offered - self.seen - never - self.handed_on - self.not_reached
        return tokens, slots

    def as_json(self) -> dict[str, Any]:
        """Returns the row as `json` writes it: samples, tokens and slots by what became of them, and `balance`."""
        counts, (tokens, slots) = self.counts, self.balance
        return {
            "samples": counts.samples,
            "tokens": {
                "brought": self.brought,
                "offered": self.offered,
                "read_twice": counts.read_twice,
                "with_loss": counts.with_loss,
                "eod_masked": counts.eod_masked,
                "prompt": counts.prompt,
                "denied": counts.denied_tokens,
                "pad_id": counts.pad_id,
                "first_token": counts.first_tokens + self.first_of_passes,
                "rearranged": counts.rearranged,
                "truncated": counts.truncated,
                "not_counted": counts.not_counted_tokens,
                "dropped_tail": self.dropped_tail,
                "dropped_conversations": self.dropped.tokens,
                "handed_on": self.handed_on,
                "given_up": self.given_up,
                "not_reached": self.not_reached,
            },
            "dropped_conversations": self.dropped.as_json(),
            "slots": {
                "all": counts.slots,
                "with_loss": counts.with_loss,
                "eod_masked": counts.eod_masked,
                "prompt": counts.prompt,
                "denied": counts.denied_slots,
                "pad_id": counts.pad_id,
                "no_label": counts.no_label,
                "padding": counts.padding,
                "not_counted": counts.not_counted_slots,
            },
            "balance": abs(tokens) + abs(slots),
        }


_NAMES = tuple(field.name for field in fields(LedgerRow))
_MEMBERS = attrgetter(*_NAMES)


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerStage:
    """A segment of the lock, as far as it was read.

    Attributes:
        stage: name of its stage.
        start, stop: its positions; the end of the ledger cuts the last one.
        sequence_length: tokens of a sample.
        sources: name of each source that it reads, and what became of its tokens.
    """

    stage: str
    start: int
    stop: int
    sequence_length: int
    sources: tuple[tuple[str, LedgerRow], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLedger(HasFacts):
    """Where the tokens of a run went, up to a position.

    Attributes:
        position: the position: the ledger is over those before it.
        stages: what was read in each segment.
        sources: of each source of the lock its name, and the sum of its rows.
    """

    position: int
    stages: tuple[LedgerStage, ...]
    sources: tuple[tuple[str, LedgerRow], ...]

    @property
    def total(self) -> LedgerRow:
        """The sum of all rows."""
        return summed(row for _, row in self.sources)

    @property
    def balance(self) -> int:
        """Tokens and slots that are not accounted for, in any row, without signs: 0, or a count is wrong."""
        rows = [row for stage in self.stages for _, row in stage.sources] + [row for _, row in self.sources]
        return sum(abs(number) for row in rows for number in row.balance)

    def as_json(self) -> dict[str, Any]:
        """Returns the ledger as `json` writes it."""
        stages = [
            {
                "stage": stage.stage,
                "start": stage.start,
                "stop": stage.stop,
                "sequence_length": stage.sequence_length,
                "sources": [{"source": name, **row.as_json()} for name, row in stage.sources],
                "total": summed(row for _, row in stage.sources).as_json(),
            }
            for stage in self.stages
        ]
        return {
            "position": self.position,
            "balance": self.balance,
            "total": self.total.as_json(),
            "sources": [{"source": name, **row.as_json()} for name, row in self.sources],
            "stages": stages,
        }

    def facts(self) -> dict[str, Any]:
        """Returns the sum, and the sources; see `HasFacts`."""
        total, slots = self.total, self.total.as_json()["slots"]
        return {
            "problems": [f"{self.balance:,} tokens and slots are not accounted for"] if self.balance else [],
            "up to position": self.position,
            "samples": total.counts.samples,
            "tokens seen": total.seen,
            "tokens with loss": total.counts.with_loss,
            "sources": [
                {
                    "source": name,
                    "samples": row.counts.samples,
                    "tokens offered": row.brought + row.offered,
                    "seen": row.seen,
                    "with loss": row.counts.with_loss,
                    "not reached": row.not_reached,
                }
                for name, row in self.sources
            ],
            "slots": [
                {"slots": name.replace("_", " "), "share": f"{count / slots['all']:.2%}", "count": count}
                for name, count in slots.items()
                if name != "all" and count
            ],
        }


def summed(rows: Iterable[LedgerRow]) -> LedgerRow:
    """Returns the sum of rows."""
    return sum(rows, start=LedgerRow())


def summed_over_stages(rows: Iterable[LedgerRow]) -> LedgerRow:
    """Returns the sum of all rows of a source, in which what its stages hand on to each other is gone."""
    total = summed(rows)
    return replace(total, brought=0, handed_on=total.handed_on - total.brought)


WITHOUT = (
    ("EOD masked", "eod_masked"),
    ("prompt", "prompt"),
    ("denied", "denied"),
    ("padding id in the data", "pad_id"),
    ("first token of a pass or text", "first_token"),
    ("cut off by fill in the middle", "rearranged"),
    ("conversations truncated", "truncated"),
    ("with or without loss: not counted", "not_counted"),
)
"""Tokens in samples that have no loss, or of which nobody knows."""

NEVER = (
    ("dropped tail", "dropped_tail"),
    ("dropped conversations", "dropped_conversations"),
    ("given up at another sequence length", "given_up"),
)
"""Tokens of passes that are in no sample."""

LEFT = (("left to later stages", "handed_on"), ("not reached yet", "not_reached"))
"""Tokens of passes that are still to come."""

SLOTS = (
    ("with loss", "with_loss"),
    ("EOD masked", "eod_masked"),
    ("prompt", "prompt"),
    ("denied", "denied"),
    ("label is the padding id", "pad_id"),
    ("last token, without a label", "no_label"),
    ("padding", "padding"),
    ("not counted", "not_counted"),
)
"""What slots of samples hold."""


def columns_of(row: LedgerRow) -> tuple[int, int, int, int, int]:
    """Returns tokens of a row that came in, were seen with loss, without, are never seen, and are left."""
    tokens = row.as_json()["tokens"]
    came_in = tokens["brought"] + tokens["offered"] + tokens["read_twice"]
    without, never, left = (sum(tokens[name] for _, name in names) for names in (WITHOUT, NEVER, LEFT))
    return came_in, tokens["with_loss"], without, never, left
