"""What the commands about runs share: the file, steps as positions, and the words for a run."""

from __future__ import annotations

import difflib
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, TypeVar

from tokenloom.cli.options import Either, UsageError, Written
from tokenloom.loading.batch_sizes import BatchSizeSchedule, Topology
from tokenloom.rendering.words import name_of
from tokenloom.run.amend import Amended
from tokenloom.run.lock import LockedSegment, RunLock, read_lock
from tokenloom.run.run import Run
from tokenloom.setting_types import Count

RowT = TypeVar("RowT")

WIDTH = 80
"""Columns that texts and tables for people keep to."""

_MOST_NAMED = 4
EXHAUSTED = {"stop": "the run stops there", "renormalise": "others are read on", "repeat": "it is read on"}
"""What follows where a source has been read `max_passes` times."""

NO_STEPS = "a step needs --global-batch-size or --batch-size-schedule"


@dataclass(frozen=True, kw_only=True)
class RunPath:
    """Which run.

    Attributes:
        run_path: its run.toml.
    """

    run_path: Annotated[str, Written(metavar="RUN", is_positional=True)] = "run.toml"


@dataclass(frozen=True, kw_only=True)
class BatchSizes:
    """How positions were dealt to steps.

    Attributes:
        global_batch_size: samples of a step, of all ranks.
        batch_size_schedule: sizes that change, such as "0:768 250B:1536": tokens, and samples of a step from there on.
    """

    GROUP: ClassVar[str] = "how positions were dealt (as in the training run)"
    EITHER: ClassVar[Either] = (("global_batch_size", "batch_size_schedule"),)

    global_batch_size: Annotated[Count | None, Written(metavar="G")] = None
    batch_size_schedule: Annotated[
        str | None, Written(names=("--batch-size-schedule", "--step-batch-size-schedule"), metavar="SCHEDULE")
    ] = None

    @property
    def has_batch_sizes(self) -> bool:
        """Whether the options tell batch sizes."""
        return self.global_batch_size is not None or self.batch_size_schedule is not None

    def batch_sizes(self, lock: RunLock | None) -> BatchSizeSchedule | None:
        """Returns the batch sizes that the options tell; None if they tell none.

        Args:
            lock: of the run; None where nothing is known of its lengths.

        Raises:
            ConfigError: the schedule is none.
        """
        if self.batch_size_schedule is not None:
            lengths = [(segment.start, segment.sequence_length) for segment in lock.segments] if lock else []
            return BatchSizeSchedule.parse(self.batch_size_schedule, sequence_length=lengths or None)
        return None if self.global_batch_size is None else BatchSizeSchedule.constant(self.global_batch_size)

    def position_of(self, position: int | None, step: int | None, lock: RunLock | None) -> int | None:
        """Returns a position, or the first one of a step; None where neither is given.

        Raises:
            UsageError: a step is given without batch sizes.
            ConfigError: their schedule is none.
        """
        if step is None:
            return position
        if (sizes := self.batch_sizes(lock)) is None:
            raise UsageError(NO_STEPS)
        return sizes.position_of_step(step)


@dataclass(frozen=True, kw_only=True)
class Dealing(BatchSizes):
    """How positions were dealt to steps and ranks.

    Attributes:
        micro_batch_size: samples of a rank and micro-batch.
        data_parallel_size: data-parallel ranks.
    """

    GROUP: ClassVar[str] = BatchSizes.GROUP

    micro_batch_size: Annotated[Count | None, Written(metavar="B")] = None
    data_parallel_size: Annotated[Count | None, Written(metavar="D")] = None

    def __post_init__(self) -> None:
        """Refuses ranks that are told by half, or without batch sizes."""
        if (self.micro_batch_size is None) != (self.data_parallel_size is None):
            message = "--micro-batch-size and --data-parallel-size belong together"
            raise UsageError(message)
        if self.micro_batch_size is not None and not self.has_batch_sizes:
            message = "ranks need --global-batch-size or --batch-size-schedule"
            raise UsageError(message)

    def topology(self, lock: RunLock) -> Topology | None:
        """Returns how positions are dealt; None if the options do not tell.

        Raises:
            ConfigError: the schedule of batch sizes is none.
        """
        if (sizes := self.batch_sizes(lock)) is None:
            return None
        ranks = {"micro_batch_size": self.micro_batch_size, "data_parallel_size": self.data_parallel_size}
        return Topology(batch_sizes=sizes, **ranks)


def lock_at(path: str) -> RunLock:
    """Returns the lock of a run, named by its run.toml, or by a lock of any name.

    Raises:
        TokenloomError: there is none, or it cannot be used.
    """
    return Run.open(path).lock if path.endswith(".toml") else read_lock(path)


def stage_of(name: str) -> str:
    """Returns a stage in words."""
    return name_of(name) if name.startswith("stage ") else f"stage {name_of(name)}"


def largest(rows: Iterable[RowT], size: Callable[[RowT], Any], most: int | None) -> tuple[list[RowT], list[RowT]]:
    """Returns rows, the largest first, as those to show, at most so many with a line for the rest; and the rest."""
    ranked = sorted(rows, key=size, reverse=True)
    shown = ranked if most is None or len(ranked) <= most else ranked[: most - 1]
    return shown, ranked[len(shown) :]


def difference(path: str, amended: Amended, *, after: str = "after") -> list[str]:
    """Returns how `run.toml` was edited, as a unified diff."""
    texts = amended.before.splitlines(), amended.after.splitlines()
    return list(difflib.unified_diff(*texts, f"{path} before", f"{path} {after}", n=1, lineterm=""))


def row_line(cells: Sequence[str], widths: Sequence[int], *, indent: str = "  ") -> str:
    """Returns a row: the first cell to the left and cut off, the others to the right."""
    first = f"{name_of(cells[0], width=widths[0]):<{widths[0]}}"
    others = (f" {cell:>{width}}" for cell, width in zip(cells[1:], widths[1:], strict=True))
    return f"{indent}{first}{''.join(others)}".rstrip()


def folded(text: str, first: str = "", others: str = "  ") -> str:
    """Returns a text as lines of `WIDTH` columns, the first and the others behind an indent."""
    return textwrap.fill(text, WIDTH, initial_indent=first, subsequent_indent=others)


def shares_of(lock: RunLock, segment: LockedSegment) -> str:
    """Returns the shares of a segment in indented lines, the largest first."""
    total = sum(weight for _, weight in segment.weights)
    named, others = largest(segment.weights, lambda each: (each[1], -each[0]), _MOST_NAMED)
    words = [f"{name_of(lock.sources[source].name)} {weight / total:.3%}" for source, weight in named]
    if others:
        words.append(f"{len(others):,} others {sum(weight for _, weight in others) / total:.3%}")
    return folded(", ".join(word.replace(".000%", "%") for word in words), "    ", "    ")
