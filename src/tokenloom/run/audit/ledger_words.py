"""The counts of a ledger in words: with the names that `LedgerRow.as_json` has for them, in the order of telling."""

from __future__ import annotations

from tokenloom.run.audit.ledger_rows import LedgerRow

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
