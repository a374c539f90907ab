"""Rates and plain tables for scripts with their own tables; rows of `make bench` use `harness`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any


def rate(fetch: Callable[[Any], Any], positions: Sequence[Any], repeats_per_call: int = 1) -> float:
    """Returns samples per second of `fetch(position)` for all `positions`."""
    started = time.perf_counter()
    for position in positions:
        fetch(position)
    return len(positions) * repeats_per_call / (time.perf_counter() - started)


def print_rows(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Prints a plain table for terminals and logs."""
    cells = [[str(cell) for cell in row] for row in (columns, *rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(columns))]
    print(f"\n{title}")
    for number, row in enumerate(cells):
        print(
            "  ".join(
                cell.ljust(width) if i == 0 else cell.rjust(width)
                for i, (cell, width) in enumerate(zip(row, widths, strict=True))
            )
        )
        if number == 0:
            print("  ".join("-" * width for width in widths))
