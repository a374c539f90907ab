"""Measures rows: sides prepare, then alternate, so that disturbances of the machine affect all sides."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from harness.child import Child, SideError
from harness.environments import EnvironmentMissingError, python_of
from harness.results import DIFFERENT, EQUAL, UNCHECKED, ProfileResult, RowResult, SideResult
from harness.row import Profile, Row, Side

Outcome = dict[str, Any]
Run = Callable[[], Outcome]


def measure_row(row: Row, folder: Path) -> RowResult:
    """Prepares the data and all sides; returns the results of `row.rounds` rounds of each side.

    A side that cannot be installed or fails is reported with its reason; the other sides continue.
    """
    folder = folder / row.part
    folder.mkdir(exist_ok=True)
    row.prepare(folder)
    children: dict[str, Child] = {}
    failures: dict[str, str] = {}
    try:
        for side, python in _interpreters(row, failures):
            try:
                children[side.name] = Child(side, folder, python)
                if not side.fresh:
                    children[side.name].run_round()  # the first fills caches and is not counted
            except SideError as error:
                failures[side.name] = str(error)
        runs = {name: child.run_round for name, child in children.items() if name not in failures}
        outcomes = take_turns(runs, row.rounds, failures)
    finally:
        for child in children.values():
            child.close()
    return summarise(row, outcomes, failures)


def _interpreters(row: Row, failures: dict[str, str]) -> list[tuple[Side, Path]]:
    """Returns the interpreter of each side, installed before any side starts; adds reasons to `failures`."""
    found = []
    for side in row.sides:
        try:
            found.append((side, python_of(side.environment, side.checkout)))
        except EnvironmentMissingError as error:
            failures[side.name] = str(error)
    return found


def take_turns(runs: dict[str, Run], rounds: int, failures: dict[str, str]) -> dict[str, list[Outcome]]:
    """Returns the outcomes of all sides, which run in the order A B C, A B C, …; a side that fails stops."""
    outcomes: dict[str, list[Outcome]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            if name in failures:
                continue
            try:
                outcomes[name].append(run())
            except SideError as error:
                failures[name] = str(error)
    return outcomes


def summarise(row: Row, outcomes: dict[str, list[Outcome]], failures: dict[str, str]) -> RowResult:
    """Returns the result of a row from its outcomes."""
    return RowResult(
        job=row.job,
        name=row.name,
        compares=row.compares,
        fairness=row.fairness,
        limit=row.limit,
        unit=row.unit,
        quantity=row.quantity,
        agreement=agreement(row.same, outcomes, failures),
        sides=tuple(_side_result(side, row.quantity, outcomes, failures) for side in row.sides),
    )


def _side_result(side: Side, quantity: str, outcomes: dict[str, list[Outcome]], failures: dict[str, str]) -> SideResult:
    failure = failures.get(side.name, "")
    mine = [] if failure else outcomes[side.name]
    memory = statistics.median(outcome["memory_bytes"] for outcome in mine) if mine else None
    values = tuple(value_of(outcome, quantity) for outcome in mine)
    return SideResult(name=side.name, library=side.library, values=values, memory_bytes=memory, failure=failure)


def value_of(outcome: Outcome, quantity: str) -> float:
    """Returns the measured number of an outcome: work per second, seconds, bytes, or a ratio."""
    if quantity == "rate":
        return outcome["work"] / outcome["seconds"]
    return outcome["memory_bytes" if quantity == "bytes" else quantity]


def agreement(names: Sequence[str], outcomes: dict[str, list[Outcome]], failures: dict[str, str]) -> str:
    """Returns whether all named sides that did not fail had the same digest in every round."""
    present = [name for name in names if name not in failures]
    if len(present) < 2:
        return UNCHECKED
    digests = {outcome.get("digest") for name in present for outcome in outcomes[name]}
    return EQUAL if len(digests) == 1 and None not in digests else DIFFERENT


def measure_profile(profile: Profile, folder: Path) -> ProfileResult:
    """Returns the time shares of one path, or the reason why there are none."""
    profile.prepare(folder)
    side = Side(name=profile.name, library="tokenloom", script="profile_path.py", arguments=profile.arguments)
    try:
        child = Child(side, folder, python_of(None))
        try:
            outcome = child.run_round()
        finally:
            child.close()
    except SideError as error:
        return ProfileResult(name=profile.name, method=profile.method, seconds=0.0, shares=(), failure=str(error))
    shares: Iterable[tuple[str, float]] = outcome["shares"]
    return ProfileResult(
        name=profile.name,
        method=profile.method,
        seconds=outcome["seconds"],
        shares=tuple((where, share) for where, share in shares),
    )
