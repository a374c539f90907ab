"""`tokenloom retro`: projects of retrieval-augmented training, built, checked and looked at; a module per command."""

from __future__ import annotations

from typing import Any

from tokenloom.cli.commands import Groups

RETRO_COMMANDS: Groups = {
    "commands": {
        "build": ("tokenloom_retro.commands.build", "cut documents, index chunks and find their neighbors"),
        "verify": ("tokenloom_retro.commands.verify", "make a part of a project again, and compare"),
        "show": ("tokenloom_retro.commands.show", "decode a sample with the neighbors of its chunks"),
    },
}


def add_parser(commands: Any) -> None:
    """Declares the commands."""
    parser = commands.add_parser(
        "retro",
        description="A project of retrieval-augmented training (RETRO): a folder with chunks of documents, a vector "
        "index of them, and for each chunk of the training samples the chunks of other documents that are most like "
        "it. The exit status is 0 if all is well, 1 if something is refused or a problem is found, and 2 for wrong "
        "usage.",
    )
    parser.add_commands(RETRO_COMMANDS)
