"""`tokenloom run digest`: what names all that stands before a position."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tokenloom.cli.json_output import print_json
from tokenloom.cli.options import Either
from tokenloom.cli.run_common import BatchSizes, RunPath
from tokenloom.run.run import Run
from tokenloom.setting_types import Number


@dataclass(frozen=True, kw_only=True)
class Options(RunPath, BatchSizes):
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


def run(options: Options) -> int:
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
