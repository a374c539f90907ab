"""What became of a loader that was killed and resumed, for people and programs."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tokenloom_check.resume_streams import Differences

if TYPE_CHECKING:
    from tokenloom_check.resume import ResumeSettings

_WIDTH = 80
_MOST_DETAIL_LINES = 6
_MOST_PROBLEMS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeCase:
    """One case.

    Attributes:
        kind: "resumed"; "between epochs", with a state taken after an iteration has ended; "resumed twice"; "state
            kept", with a state looked at once the loader has read on; "loaded twice", with a state that another loader
            has gone on from before; "read again", without a kill.
        kills: batches read before each kill, since the one before.
        world_sizes: ranks before, between and after the kills.
        differences: between what was read and an unbroken reading.
        error: how it failed, if it did.
        detail: further lines on that.
        remark: what may be wrong.
    """

    kind: str
    kills: tuple[int, ...]
    world_sizes: tuple[int, ...]
    differences: Differences
    error: str | None = None
    detail: str | None = None
    remark: str | None = None

    @property
    def ok(self) -> bool:
        """Whether all is as in an unbroken reading."""
        return self.error is None and not self.differences.any

    @property
    def ranks(self) -> str:
        """The world sizes in words."""
        return ":".join(map(str, self.world_sizes))

    @property
    def kill_words(self) -> str:
        """The kills in words."""
        return "+".join(map(str, self.kills)) or "-"

    @property
    def likeness(self) -> tuple[object, ...]:
        """What cases share that fail alike."""
        return self.world_sizes[:2], re.sub(r"\d+", "", self.error or self.remark or "")

    def as_json(self) -> dict[str, Any]:
        """Returns plain values."""
        found, first = self.differences, self.differences.first
        return {
            "kind": self.kind, "ok": self.ok, "kills": self.kills, "world_sizes": self.world_sizes,
            "num_samples": found.num_samples, "repeated": found.repeated, "missing": found.missing,
            "unknown": found.unknown, "reordered": found.reordered, "first": None if first is None else first.as_json(),
            "error": self.error, "detail": self.detail, "remark": self.remark,
        }  # fmt: skip

    def problem(self) -> str:
        """Returns what is wrong, in lines of 80 columns."""
        lines = [f"{self.kind}, world size {self.ranks}, killed after {self.kill_words}:"]
        lines[0] = lines[0].replace(", killed after -", "")
        if self.error is not None:
            lines.append(_indented(self.error))
            lines += [f"    {line}" for line in (self.detail or "").splitlines()[-_MOST_DETAIL_LINES:]]
            return "\n".join(lines)
        found, first = self.differences, self.differences.first
        counts = {
            "repeated": found.repeated, "missing": found.missing, "unknown": found.unknown,
            "in another order": found.reordered,
        }  # fmt: skip
        told = ", ".join(f"{count:,} {word}" for word, count in counts.items() if count)
        lines.append(_indented(f"of {found.num_samples:,} samples, {told}"))
        if self.remark is not None:
            lines.append(_indented(self.remark))
        assert first is not None
        where = f"batch {first.batch}, rank {first.rank}"
        if first.kind == "missing":
            said = f"first missing: that of the unbroken reading in {where}"
        elif first.kind == "unknown":
            said = f"first unknown: in {where}, not in the unbroken reading"
        else:
            said = f"first {first.kind}: in {where}, of batch {first.expected_batch} of the unbroken reading"
        lines.append(_indented(said))
        lines.append(f"    {first.sample.words}"[:_WIDTH])
        return "\n".join(lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeReport:
    """What became of all cases. Printed, it is a table, and what is wrong below it.

    Attributes:
        name: what was checked.
        settings: what was tried.
        cases: in the order of trying.
        left_out: columns without a row per sample, which were not compared.
    """

    name: str
    settings: ResumeSettings
    cases: tuple[ResumeCase, ...]
    left_out: tuple[str, ...] = field(default=())

    @property
    def ok(self) -> bool:
        """Whether every case gave what an unbroken reading gives."""
        return all(case.ok for case in self.cases)

    def as_json(self) -> dict[str, Any]:
        """Returns plain values."""
        return {
            "name": self.name, "ok": self.ok, "seed": self.settings.seed, "num_batches": self.settings.num_batches,
            "order": self.settings.order, "epochs": self.settings.epochs, "left_out": self.left_out,
            "cases": [case.as_json() for case in self.cases],
        }  # fmt: skip

    def __str__(self) -> str:
        failed = [case for case in self.cases if not case.ok]
        head = f"{len(self.cases)} cases, {len(failed)} failed; {self.settings.num_batches} batches, "
        head += f"order {self.settings.order}, seed {self.settings.seed}"
        rows = [_ROW.format("case", "ranks", "killed", "repeated", "missing", "unknown", "reordered")]
        for case in self.cases:
            found = case.differences
            counts = [found.repeated, found.missing, found.unknown, found.reordered]
            words = ["error", "", "", ""] if case.error is not None else [f"{count:,}" for count in counts]
            rows.append(_ROW.format(case.kind, case.ranks, case.kill_words, *words).rstrip())
        lines = [self.name, head, "", *rows]
        told = {case.likeness: case for case in reversed(failed)}
        shown = [case for case in failed if told[case.likeness] is case][:_MOST_PROBLEMS]
        for case in shown:
            lines += ["", case.problem()]
        if len(failed) > len(shown):
            lines += ["", f"{len(failed) - len(shown)} more failed, most of them alike"]
        if self.left_out:
            names = ", ".join(self.left_out)
            lines += ["", textwrap.fill(f"not compared, since without a row per sample: {names}", _WIDTH)]
        return "\n".join(lines)


_ROW = "{:<15}{:>8}{:>9}{:>12}{:>12}{:>12}{:>12}"


def _indented(text: str) -> str:
    return textwrap.fill(text, _WIDTH, initial_indent="    ", subsequent_indent="    ", break_long_words=False)
