"""`tokenloom run id`: what names a run for as long as it only goes on, and its order up to a position."""

from __future__ import annotations

import argparse
from typing import Any

from tokenloom.cli.json_output import print_json
from tokenloom.cli.run_common import add_position, add_run_path, lengths_of, lock_at, position_of
from tokenloom.run.digest import order_digest, run_identity


def add_parser(commands: Any) -> None:
    """Declares the command."""
    parser = commands.add_parser(
        "id",
        description="Print what names a run: a SHA-256 of its seed and of the data that it began with, which stays "
        "while the run changes and goes on, and stands in the state of loaders as `run`. And with a position, or "
        "where some were consumed, the digest of the order before it. A lock may be named instead of a run.toml. "
        "--json prints path, run, position, digest and num_samples.",
    )
    add_run_path(parser)
    add_position(parser, prefix="at", samples="position", what="a position (default: what was consumed)")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Prints the name."""
    lock = lock_at(options.run_path)
    position = position_of(options, lengths_of(lock))
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
