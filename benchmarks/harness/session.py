"""One run: measures rows and profiles, reports each one, and writes the results at the end."""

from __future__ import annotations

import datetime
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from harness.environments import versions
from harness.machine import describe_machine
from harness.measure import measure_profile, measure_row
from harness.page import results_page
from harness.plot import plot_results
from harness.results import DIFFERENT, ProfileResult, Results, RowResult, write_results
from harness.row import OURS, Profile, Row
from harness.tables import text_profiles, text_table


def measure_all(mode: str, rows: Sequence[Row], profiles: Sequence[Profile]) -> Results:
    """Measures all rows in one temporary folder; prints progress to stderr.

    An interrupt ends the run early and keeps the completed rows.
    """
    started = time.perf_counter()
    found: list[RowResult] = []
    shares: list[ProfileResult] = []
    with tempfile.TemporaryDirectory(prefix="tokenloom-bench-") as name:
        folder = Path(name)
        try:
            for number, row in enumerate(rows, 1):
                _tell(f"[{number}/{len(rows)}] {row.name}", started)
                found.append(measure_row(row, folder))
            for profile in profiles:
                _tell(f"profile of {profile.name}", started)
                shares.append(measure_profile(profile, folder))
        except KeyboardInterrupt:
            _tell("interrupted: only what was measured until now is told", started)
    names = [job.name for job in (*rows, *profiles)]
    environments = {side.environment for row in rows for side in row.sides if side.environment}
    return Results(
        mode=mode,
        date=datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        seconds=time.perf_counter() - started,
        machine=describe_machine(),
        libraries=versions(sorted(environments)),
        rows=tuple(found),
        profiles=tuple(shares),
        unmeasured=tuple(names[len(found) + len(shares) :]),
    )


def _tell(text: str, started: float) -> None:
    print(f"{time.perf_counter() - started:6.0f} s  {text}", file=sys.stderr, flush=True)


def report(results: Results) -> None:
    """Prints the table and the profiles."""
    print(text_table(results.rows))
    if results.profiles:
        print(f"\n{text_profiles(results.profiles)}")


def write_all(results: Results, folder: Path) -> None:
    """Writes `benchmarks.json`, `benchmarks.svg` and the results page."""
    folder.mkdir(parents=True, exist_ok=True)
    write_results(folder / "benchmarks.json", results)
    plot_results(results, folder / "benchmarks.svg")
    (folder / "benchmarks.md").write_text(results_page(results), encoding="utf-8")


def exit_status(results: Results) -> int:
    """Returns 1 if a tokenloom side failed or digests of sides differ, since the numbers are then meaningless."""
    failed = [side.failure for row in results.rows for side in row.sides if side.library == OURS]
    failed += [profile.failure for profile in results.profiles]
    return int(any(failed) or any(row.agreement == DIFFERENT for row in results.rows))


def run_script(rows: Sequence[Row]) -> int:
    """Measures the rows of one script and prints them; returns the exit status."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    results = measure_all("script", rows, ())
    report(results)
    return exit_status(results)
