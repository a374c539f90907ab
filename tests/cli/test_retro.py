"""`tokenloom retro`: what its commands share."""

from __future__ import annotations

import pytest

from tokenloom import cli
from tokenloom.cli.commands import RETRO_COMMANDS

COMMANDS = [name for group in RETRO_COMMANDS.values() for name in group]


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_explains_itself_in_80_columns(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as stopped:
        cli.main(["retro", command, "--help"])
    assert stopped.value.code == 0
    out = capsys.readouterr().out
    assert "--json" in out
    assert "PROJECT" in out


@pytest.mark.parametrize(
    "command", [[], ["biuld"], ["show", "project"], ["verify"], ["show", "project", "--smaple", "1"]]
)
def test_wrong_usage_has_status_2(command, capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["retro", *command])
    assert stopped.value.code == 2
    message = capsys.readouterr().err
    assert message.startswith("error: ")
    assert "`tokenloom retro" in message
