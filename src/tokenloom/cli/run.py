"""`tokenloom run`: a run as two files, written, locked, planned, changed and checked; a module per command."""

from __future__ import annotations

from importlib import import_module
from typing import Any

COMMANDS = ("init", "lock", "plan", "amend", "check", "digest", "id", "diff", "commit", "stream")


def add_parser(commands: Any) -> None:
    """Declares the commands."""
    parser = commands.add_parser(
        "run",
        help="a training run as two files: run.toml, which people write, and run.lock",
        description="A training run as two files: run.toml, which people write, and run.lock, which the program "
        "writes. The order of its samples is computed from these, and may change while it runs without moving a sample "
        "that was read. The exit status is 0 if all is well, 1 if something is refused or a problem is found, and 2 "
        "for wrong usage.",
    )
    of_run = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name in COMMANDS:
        import_module(f"tokenloom.cli.run_{name}").add_parser(of_run)
