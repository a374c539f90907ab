"""`tokenloom run`: a run as two files, written, locked, planned, changed and checked; a module per command."""

from __future__ import annotations

from typing import Any

from tokenloom.cli.commands import RUN_COMMANDS


def add_parser(commands: Any) -> None:
    """Declares the commands."""
    parser = commands.add_parser(
        "run",
        description="A training run as two files: run.toml, which people write, and run.lock, which the program "
        "writes. The order of its samples is computed from these, and may change while it runs without moving a sample "
        "that was read. The exit status is 0 if all is well, 1 if something is refused or a problem is found, and 2 "
        "for wrong usage.",
    )
    parser.add_commands(RUN_COMMANDS, module="tokenloom.cli.run_{}")
