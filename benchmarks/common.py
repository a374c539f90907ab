"""What all benchmarks share: fresh processes, alternating sides, medians, peak memory."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def measure(prepare: Callable[[], Callable[[], Any]]) -> None:
    """Runs what `prepare` returns once, and prints seconds and the growth of peak memory in bytes as JSON.

    Called in a process of its own, so that the peak belongs to this work alone; preparation is not counted.
    """
    work = prepare()
    before = _memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak of the preparation
    started = time.perf_counter()
    result = work()
    seconds = time.perf_counter() - started
    growth = _memory("VmHWM") - before
    print(json.dumps({"seconds": seconds, "growth_bytes": growth, "result": result}))


def _memory(field: str) -> int:
    """Returns a field of this process's memory in bytes; mapped file pages that were touched count."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise KeyError(field)


def run_child(script: str, *arguments: object) -> dict[str, Any]:
    """Runs a benchmark script as a child and returns the JSON of its last line."""
    command = [sys.executable, str(HERE / script), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def alternate(sides: Sequence[str], rounds: int, run: Callable[[str], dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Runs the sides in turn, `rounds` times, and returns the medians (and the range of seconds) per side."""
    results: dict[str, list[dict[str, Any]]] = {side: [] for side in sides}
    for _ in range(rounds):
        for side in sides:
            results[side].append(run(side))
    return {side: summarise(rows) for side, rows in results.items()}


def summarise(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the median of each number, and the fastest and slowest time."""
    seconds = [row["seconds"] for row in rows]
    return {
        "seconds": statistics.median(seconds),
        "fastest": min(seconds),
        "slowest": max(seconds),
        "growth_bytes": statistics.median(row["growth_bytes"] for row in rows),
        "result": rows[-1].get("result"),
    }


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
