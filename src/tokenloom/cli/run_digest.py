"""`tokenloom run id` and `run digest`: what names a run, and all that stands before a position."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tokenloom.cli.json_output import print_json
from tokenloom.cli.options import Either
from tokenloom.cli.run_common import BatchSizes, RunPath, lock_at
from tokenloom.run.digest import order_digest, run_identity
from tokenloom.run.run import Run
from tokenloom.setting_types import Number


@dataclass(frozen=True, kw_only=True)
class IdOptions(RunPath, BatchSizes):
    """Print what names a run: a SHA-256 of its seed and of the data that it began with, which stays while the run
    changes and goes on, and stands in the state of loaders as `run`. And with a position, or where some were consumed,
    the digest of the order before it. A lock may be named instead of a run.toml.

    Attributes:
        position: a position, as samples from 0 on (default: what was consumed).
        at_step: a position, as steps from 0 on.
        json: print one JSON object: path, run, position, digest and num_samples.
    """

    EITHER: ClassVar[Either] = (("position", "at_step"),)

    position: Number | None = None
    at_step: Number | None = None
    json: bool = False


def run_id(options: IdOptions) -> int:
    """Prints the name."""
    lock = lock_at(options.run_path)
    position = options.position_of(options.position, options.at_step, lock)
    if position is None:
        position = lock.consumed or None
    digest = None if position is None else order_digest(lock, position)
    if options.json:
        head = {"path": options.run_path, "run": run_identity(lock)}
        print_json({**head, "position": position, "digest": digest, "num_samples": lock.num_samples})
        return 0
    print(f"{run_identity(lock)}  {options.run_path}")
    if position is not None:
        print(f"{digest}  order before position {position:,}")
    return 0


@dataclass(frozen=True, kw_only=True)
class DigestOptions(RunPath, BatchSizes):
    """Print a SHA-256 of all that decides which samples stand before a position, and of nothing else: two runs with one
    digest have read the same up to there.

    Attributes:
        position: the position, as samples from 0 on (default: what was consumed, or the end).
        at_step: the position, as steps from 0 on.
        json: print one JSON object: position, digest and run.
    """

    EITHER: ClassVar[Either] = (("position", "at_step"),)

    position: Number | None = None
    at_step: Number | None = None
    json: bool = False


def run_digest(options: DigestOptions) -> int:
    """Prints the digest."""
    opened = Run.open(options.run_path)
    position = options.position_of(options.position, options.at_step, opened.lock)
    if position is None:
        position = opened.lock.consumed or opened.num_samples or 0
    digest = opened.digest(position)
    if options.json:
        print_json({"position": position, "digest": digest, "run": opened.identity})
    else:
        print(f"{digest}  {options.run_path} before position {position:,}")
    return 0


COMMANDS = {"id": (IdOptions, run_id), "digest": (DigestOptions, run_digest)}
