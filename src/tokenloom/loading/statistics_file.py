"""What a training loop wrote of itself, a line of JSON at a time: reports of sources and of loaders, in any order."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from tokenloom.errors import InputError
from tokenloom.loading.thread_loader import DataWait
from tokenloom.storage.statistics import SourceStatistics

_MOST_BYTES = 1 << 26
"""Of a larger file some lines are left out, evenly: counts go on from line to line, so nothing of them is lost."""

_LONGEST_LINE = 1 << 26
_LARGEST = 1 << 63
"""No step, byte or second of a training run is beyond it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderLine:
    """A report of a loader; see `LoaderReport`.

    Attributes:
        step: of training; the number of the line where it was not told.
        unix_seconds: when it was written; NaN if that is not known.
        wait: how long the loop waited; None if that is not known.
        storage: what was read of object storage, by address.
    """

    step: int
    unix_seconds: float
    wait: DataWait | None
    storage: Mapping[str, SourceStatistics]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceLine:
    """A report of sources; see `SourceReport`.

    Attributes:
        step: of training; the number of the line where it was not told.
        losses: by name of the source; NaN where there is none.
        passes: by name of the source, where they are known.
    """

    step: int
    losses: Mapping[str, float]
    passes: Mapping[str, float]


@dataclass(slots=True, kw_only=True)
class StatisticsFile:
    """What was found in a file.

    Attributes:
        loaders: reports of loaders, in their order.
        sources: reports of sources, in their order.
        num_lines: lines that there are.
        num_unread: lines that were left out, since there are very many, or since the last one is not whole.
    """

    loaders: list[LoaderLine] = field(default_factory=list)
    sources: list[SourceLine] = field(default_factory=list)
    num_lines: int = 0
    num_unread: int = 0


def read_statistics(path: str | os.PathLike[str]) -> StatisticsFile:
    """Returns what a training loop wrote with `JsonLinesWriter`; one that still writes may do so.

    Raises:
        InputError: there is no such file, or a line is no report.
    """
    name = os.fspath(path)
    found = StatisticsFile()
    try:
        every = -(-os.path.getsize(name) // _MOST_BYTES) or 1
        with open(name, "rb") as stream:
            for number, line in enumerate(_lines(stream, name), 1):
                found.num_lines += 1
                if not line.endswith(b"\n") or (number - 1) % every:
                    found.num_unread += 1  # a line that is being written has no end yet
                else:
                    add_line(found, _parsed(line, f"line {number} of `{name}`"), number, f"line {number} of `{name}`")
    except OSError as error:
        message = f"cannot read `{name}`: {error.strerror or error}"
        raise InputError(message) from error
    return found


def _lines(stream: Any, name: str) -> Iterator[bytes]:
    while line := stream.readline(_LONGEST_LINE):
        if len(line) == _LONGEST_LINE:
            message = f"expected lines of at most {_LONGEST_LINE} bytes in `{name}`, found a longer one"
            raise InputError(message)
        yield line


def _parsed(line: bytes, where: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        message = f"expected a report as JSON in {where}: {error}"
        raise InputError(message, hint="write it with `JsonLinesWriter`") from error
    if not isinstance(found, dict):
        message = f"expected a report as a JSON object in {where}, found {type(found).__name__}"
        raise InputError(message, hint="write it with `JsonLinesWriter`")
    return found


def add_line(found: StatisticsFile, line: Mapping[str, Any], number: int, where: str) -> None:
    """Adds a line to what was found; one with other members, of a program of the user's own, says nothing here.

    Args:
        found: what it is added to.
        line: the line, as JSON has it.
        number: which it is, from 1.
        where: what it is called in messages.

    Raises:
        InputError: it is no report.
    """
    step = line.get("step")
    step = step if type(step) is int and abs(step) < _LARGEST else number
    if "storage" in line or "wait" in line:
        wait, storage = line.get("wait"), _members(line.get("storage") or {}, f"`storage` in {where}")
        found.loaders.append(
            LoaderLine(
                step=step,
                unix_seconds=_number(line.get("unix_seconds", math.nan), f"`unix_seconds` in {where}"),
                wait=None if wait is None else DataWait(**_numbers(DataWait, wait, f"`wait` in {where}")),
                storage={
                    str(path): SourceStatistics(**_numbers(SourceStatistics, entry, f"`storage` in {where}"))
                    for path, entry in storage.items()
                },
            )
        )
    if isinstance(sources := line.get("sources"), list):
        measures = [_members(source, f"`sources` in {where}") for source in sources]
        losses = {str(each.get("name")): _number(each.get("loss"), f"a loss in {where}") for each in measures}
        passes = {
            str(each.get("name")): _number(each["passes"], f"passes in {where}")
            for each in measures
            if each.get("passes") is not None
        }
        found.sources.append(SourceLine(step=step, losses=losses, passes=passes))


def _members(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        message = f"expected members by name as {where}, found {type(value).__name__}"
        raise InputError(message)
    return value


def _numbers(kind: type[DataWait] | type[SourceStatistics], value: Any, where: str) -> dict[str, Any]:
    """Returns the numbers of a dataclass; of a later version with more of them, those that are known."""
    members = _members(value, where)
    names = [each.name for each in fields(kind) if each.name in members]
    return {name: _number(members[name], f"{name} of {where}") for name in names}


def _number(value: Any, where: str) -> Any:
    if value in ("nan", "inf", "-inf"):
        return float(value)
    if type(value) not in (int, float) or abs(value) >= _LARGEST:
        message = f"expected a number as {where}, found {value!r}"
        raise InputError(message)
    return value
