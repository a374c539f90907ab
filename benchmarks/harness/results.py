"""Results as dataclasses, and their JSON format, which has a version and is validated on reading."""

from __future__ import annotations

import json
import statistics
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness.row import LIMIT, OURS

SCHEMA, VERSION = "tokenloom-benchmarks", 1
EQUAL, DIFFERENT, UNCHECKED = "equal", "different", ""


class ResultsError(ValueError):
    """A file does not have the format of this version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SideResult:
    """The measurements of one side.

    Attributes:
        name: name of the side.
        library: library of the side.
        values: one value per round, in the row's quantity.
        memory_bytes: median over the rounds; None if it is not measured.
        failure: the reason if there are no values, else empty.
    """

    name: str
    library: str
    values: tuple[float, ...]
    memory_bytes: float | None
    failure: str

    @property
    def median(self) -> float | None:
        """The median of the rounds; None if the side failed."""
        return statistics.median(self.values) if self.values else None


@dataclass(frozen=True, slots=True, kw_only=True)
class RowResult:
    """The description of a row and the results of its sides; `agreement` is whether their digests are equal."""

    job: str
    name: str
    compares: str
    fairness: str
    limit: str
    unit: str
    quantity: str
    agreement: str
    sides: tuple[SideResult, ...]

    @property
    def ours(self) -> SideResult:
        """The tokenloom side with which others are compared."""
        return self.sides[0]

    @property
    def floor(self) -> SideResult | None:
        """The side that measures the limit."""
        return next((side for side in self.sides if side.library == LIMIT), None)

    @property
    def peers(self) -> list[SideResult]:
        """The sides of other libraries."""
        return [side for side in self.sides if side.library not in (OURS, LIMIT)]

    def times_better(self, side: SideResult) -> float | None:
        """Returns how many times faster or smaller our side is; None if either side failed."""
        return self._ratio(self.ours, side)

    def share_of_limit(self, side: SideResult) -> float | None:
        """Returns the share of the limit that a side reaches: 0.5 at half its speed or twice its size."""
        return None if self.floor is None else self._ratio(side, self.floor)

    def _ratio(self, better: SideResult, worse: SideResult) -> float | None:
        one, other = better.median, worse.median
        if not one or not other:
            return None
        return one / other if self.quantity == "rate" else other / one


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileResult:
    """Time shares of one path, by part; `failure` is the reason if there are none."""

    name: str
    method: str
    seconds: float
    shares: tuple[tuple[str, float], ...]
    failure: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """All results of a run, and its machine; `unmeasured` are the rows that an interrupted run lacks."""

    mode: str
    date: str
    seconds: float
    machine: dict[str, str | int]
    libraries: dict[str, str]
    rows: tuple[RowResult, ...]
    profiles: tuple[ProfileResult, ...]
    unmeasured: tuple[str, ...] = ()


def write_results(path: Path, results: Results) -> None:
    """Writes JSON with readable diffs."""
    content = {"schema": SCHEMA, "version": VERSION, **asdict(results)}
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def read_results(path: Path) -> Results:
    """Reads the output of `write_results`.

    Raises:
        ResultsError: the file has another format or version.
    """
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    found = content.pop("schema", None), content.pop("version", None)
    if found != (SCHEMA, VERSION):
        raise ResultsError(f"expected schema {SCHEMA!r}, version {VERSION}, in `{path.name}`, found {found}")
    rows = tuple(
        RowResult(
            **row | {"sides": tuple(SideResult(**side | {"values": tuple(side["values"])}) for side in row["sides"])}
        )
        for row in content["rows"]
    )
    profiles = tuple(
        ProfileResult(**profile | {"shares": tuple((where, share) for where, share in profile["shares"])})
        for profile in content["profiles"]
    )
    unmeasured = tuple(content.get("unmeasured", ()))
    return Results(**content | {"rows": rows, "profiles": profiles, "unmeasured": unmeasured})
