"""`tokenloom run`: what its commands share."""

from __future__ import annotations

import json

import pytest
from tests.cli.runs import run, write_run

from tokenloom import cli
from tokenloom.cli.commands import RUN_COMMANDS

COMMANDS = [name for group in RUN_COMMANDS.values() for name in group]


@pytest.fixture
def path(tmp_path, capsys):
    path = write_run(tmp_path, manifests=True)
    assert run(capsys, "run", "lock", path)[0] == 0
    return path


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_explains_itself(command, capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["run", command, "--help"])
    assert stopped.value.code == 0
    assert "--json" in capsys.readouterr().out


@pytest.mark.parametrize("command", [[], ["lokc"], ["lock", "--consumed-step", "1"], ["digest", "--at-step", "3"]])
def test_wrong_usage_has_status_2(command, path, capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["run", *command, *([str(path)] if len(command) > 1 else [])])
    assert stopped.value.code == 2
    message = capsys.readouterr().err
    assert message.startswith("error: ")
    assert "\nhint: " in message
    assert "`tokenloom run" in message


@pytest.mark.parametrize("command", ["lock", "digest", "check", "stream", "amend"])
def test_a_run_that_is_not_there_is_named_without_usage(command, tmp_path, capsys):
    more = ["--at-position", "5", "--weights", "web=1"] if command == "amend" else []
    status, out, err = run(capsys, "run", command, tmp_path / "none.toml", *more)
    assert (status, out) == (1, "")
    assert err.startswith("error: ")
    assert "none." in err
    assert "usage" not in err


def test_each_prints_one_json_object(path, capsys):
    for command in (["lock", "--dry-run"], ["digest"], ["check"], ["stream", "--batches", "2"], ["plan"]):
        if command[0] not in COMMANDS:
            continue
        status, out, err = run(capsys, "run", command[0], path, *command[1:], "--json")
        assert (status, err) == (0, ""), command
        assert isinstance(json.loads(out), dict)
