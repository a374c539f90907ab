"""What the commands of `tokenloom run` share: the file, steps as positions, and the words for a run."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Sequence
from typing import Any, NoReturn

from tokenloom.cli.json_output import add_json
from tokenloom.cli.values import count, whole_number
from tokenloom.loading.batch_sizes import BatchSizeSchedule
from tokenloom.rendering.words import name_of
from tokenloom.run.lock import LockedSegment, RunLock, read_lock
from tokenloom.run.run import Run

WIDTH = 80
"""Columns that texts and tables for people keep to."""

_MOST_NAMED = 4


def add_run_path(parser: argparse.ArgumentParser) -> None:
    """Declares which run, and the form of the output."""
    parser.add_argument(
        "run_path", nargs="?", default="run.toml", metavar="RUN", help="its run.toml (default run.toml)"
    )
    add_json(parser)


def lock_at(path: str) -> RunLock:
    """Returns the lock of a run, named by its run.toml, or by a lock of any name.

    Raises:
        TokenloomError: there is none, or it cannot be used.
    """
    return Run.open(path).lock if path.endswith(".toml") else read_lock(path)


def add_batch_sizes(group: Any) -> None:
    """Declares what makes positions of steps."""
    group.add_argument("--global-batch-size", type=count, metavar="G", help="samples of a step, of all ranks")
    group.add_argument(
        "--batch-size-schedule",
        "--step-batch-size-schedule",
        metavar="SCHEDULE",
        help='sizes that change, such as "0:768 250B:1536": tokens, and samples of a step from there on',
    )


def add_position(parser: argparse.ArgumentParser, *, prefix: str, samples: str, what: str) -> None:
    """Declares a position of the run: as such, or as a step.

    Args:
        parser: parser of the command.
        prefix: what options begin with: "at" or "consumed".
        samples: name of the option that takes a position.
        what: what it is, for the help.
    """
    group = parser.add_argument_group(what)
    either = group.add_mutually_exclusive_group()
    either.add_argument(f"--{samples}", dest="position", type=whole_number, metavar="N", help="as samples from 0 on")
    either.add_argument(f"--{prefix}-step", dest="step", type=whole_number, metavar="N", help="as steps from 0 on")
    add_batch_sizes(group)


def batch_sizes_of(options: argparse.Namespace, lengths: Sequence[tuple[int, int]]) -> BatchSizeSchedule | None:
    """Returns the batch sizes that the options tell; None if they tell none.

    Args:
        options: the options.
        lengths: (position, tokens per sample from there on) of the run; empty if that is not known.

    Raises:
        ConfigError: the schedule is none.
    """
    if options.batch_size_schedule is not None and options.global_batch_size is not None:
        refuse_usage(options, "--global-batch-size and --batch-size-schedule exclude each other")
    if options.batch_size_schedule is not None:
        return BatchSizeSchedule.parse(options.batch_size_schedule, sequence_length=lengths or None)
    if options.global_batch_size is not None:
        return BatchSizeSchedule.constant(options.global_batch_size)
    return None


def position_of(options: argparse.Namespace, lengths: Sequence[tuple[int, int]]) -> int | None:
    """Returns the position that the options name; None if they name none. A step without batch sizes is wrong usage.

    Raises:
        ConfigError: the schedule of batch sizes is none.
    """
    sizes = batch_sizes_of(options, lengths)
    if options.step is None:
        position: int | None = options.position
        return position
    if sizes is None:
        refuse_usage(options, "a step needs --global-batch-size or --batch-size-schedule")
    return sizes.position_of_step(options.step)


def lengths_of(lock: RunLock | None) -> list[tuple[int, int]]:
    """Returns (position, tokens per sample from there on) of a lock."""
    return [] if lock is None else [(segment.start, segment.sequence_length) for segment in lock.segments]


def refuse_usage(options: argparse.Namespace, message: str) -> NoReturn:
    """Prints how the command is used, and what is wrong; ends with status 2."""
    parser: argparse.ArgumentParser = options.parser
    parser.error(message)


def stage_of(name: str) -> str:
    """Returns a stage in words."""
    return name_of(name) if name.startswith("stage ") else f"stage {name_of(name)}"


def shares_of(lock: RunLock, segment: LockedSegment) -> str:
    """Returns the shares of a segment in indented lines, the largest first."""
    total = sum(weight for _, weight in segment.weights)
    ranked = sorted(segment.weights, key=lambda each: (-each[1], each[0]))
    named = ranked if len(ranked) <= _MOST_NAMED else ranked[: _MOST_NAMED - 1]
    words = [f"{name_of(lock.sources[source].name)} {weight / total:.3%}" for source, weight in named]
    if len(named) < len(ranked):
        rest = sum(weight for _, weight in ranked[len(named) :])
        words.append(f"{len(ranked) - len(named):,} others {rest / total:.3%}")
    joined = ", ".join(word.replace(".000%", "%") for word in words)
    return textwrap.fill(joined, WIDTH, initial_indent="    ", subsequent_indent="    ")
