"""`tokenloom run digest`: what names all that stands before a position."""

from __future__ import annotations

import argparse
from typing import Any

from tokenloom.cli.json_output import print_json
from tokenloom.cli.run_common import add_position, add_run_path, lengths_of, position_of
from tokenloom.run.run import Run


def add_parser(commands: Any) -> None:
    """Declares the command."""
    parser = commands.add_parser(
        "digest",
        description="Print a SHA-256 of all that decides which samples stand before a position, and of nothing else: "
        "two runs with one digest have read the same up to there. --json prints position, digest and run.",
    )
    add_run_path(parser)
    add_position(parser, prefix="at", samples="position", what="the position (default: what was consumed, or the end)")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Prints the digest."""
    opened = Run.open(options.run_path)
    position = position_of(options, lengths_of(opened.lock))
    if position is None:
        position = opened.lock.consumed or opened.num_samples or 0
    digest = opened.digest(position)
    if options.json:
        print_json({"position": position, "digest": digest, "run": opened.identity})
    else:
        print(f"{digest}  {options.run_path} before position {position:,}")
    return 0
