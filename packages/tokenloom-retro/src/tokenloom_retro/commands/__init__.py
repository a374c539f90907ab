"""`tokenloom retro`: build, verify and show projects; each command has a module."""

from __future__ import annotations

from typing import Any

from tokenloom.cli.commands import Groups

RETRO_COMMANDS: Groups = {
    "commands": {
        "build": ("tokenloom_retro.commands.build", "cut documents into chunks, index the chunks and find neighbors"),
        "verify": ("tokenloom_retro.commands.verify", "compare files with checksums, and recompute some blocks"),
        "show": ("tokenloom_retro.commands.show", "decode a sample with the neighbors of its chunks"),
    },
}


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "retro",
        description="Projects of retrieval-augmented training (RETRO): a folder with chunks of documents, a vector "
        "index of these chunks, and for each chunk of the training samples the most similar chunks of other documents. "
        "The exit status is 0 for success, 1 for an error or a problem that was found, and 2 for wrong usage.",
    )
    parser.add_commands(RETRO_COMMANDS)
