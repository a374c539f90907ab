"""The table of commands: what it says is there, and what is there it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tokenloom import cli
from tokenloom.cli.commands import COMMANDS, RETRO_COMMANDS, RUN_COMMANDS, Groups

ROOM = Path(cli.__file__).parent
COLUMNS = 80 - 2 - 25
"""Of a terminal of 80, those that are left for the help of a command."""


def names(groups: Groups) -> list[str]:
    return [name for commands in groups.values() for name in commands]


def declaring_modules() -> set[str]:
    texts = {path.stem: path.read_text() for path in ROOM.glob("*.py")}
    return {stem for stem, text in texts.items() if "\ndef add_parser(commands: Any)" in text}


def test_every_command_is_said_once_and_has_a_module():
    modules = [*names(COMMANDS), *(f"run-{name}" for name in names(RUN_COMMANDS))]
    modules += [f"retro-{name}" for name in names(RETRO_COMMANDS)]
    assert len(modules) == len(set(modules))
    assert {module.replace("-", "_") for module in modules} == declaring_modules()


@pytest.mark.parametrize("groups", [COMMANDS, RUN_COMMANDS, RETRO_COMMANDS], ids=["tokenloom", "run", "retro"])
def test_help_of_a_command_fits_a_line(groups):
    texts = [text for commands in groups.values() for text in commands.values()]
    assert not [text for text in texts if not 0 < len(text) <= COLUMNS]
