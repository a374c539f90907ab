"""What scripts with tables of their own share: rates and plain tables. Rows of `make bench` use `harness`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any


def rate(fetch: Callable[[Any], Any], positions: Sequence[Any], repeats_per_call: int = 1) -> float:
    """Returns samples per second of calling `fetch` with each of `positions`."""
    started = time.perf_counter()
    for position in positions:
        fetch(position)
    return len(positions) * repeats_per_call / (time.perf_counter() - started)


def print_rows(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Prints a plain table; the same text reads well in a terminal and in a log."""
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
