"""Comparison of each tokenloom side with the same side in another, usually older, checkout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from harness.results import RowResult
from harness.row import OURS, Row

BEFORE = "before"
LEAST_RATIO = 0.95
"""A side slower than this share of what it was is reported; the machine's noise is below it."""


def rows_beside(rows: Sequence[Row], checkout: Path) -> list[Row]:
    """Returns a row per tokenloom side: this checkout and the other one, each in its own environment."""
    found = []
    for row in rows:
        for side in row.sides:
            if side.library == OURS:
                other = replace(side, name=BEFORE, library=BEFORE, checkout=checkout)
                same = (side.name, BEFORE) if side.name in row.same else ()
                found.append(replace(row, name=f"{row.name}: {side.name}", sides=(side, other), same=same))
    return found


def slower_rows(rows: Sequence[RowResult]) -> list[str]:
    """Returns a line for each row whose ratio is below `LEAST_RATIO`."""
    ratios = [(row.name, row.times_better(row.sides[1])) for row in rows]
    return [f"{ratio:.2f} of before: {name}" for name, ratio in ratios if ratio is not None and ratio < LEAST_RATIO]
