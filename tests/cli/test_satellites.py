"""Commands of other distributions."""

from __future__ import annotations

import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

import tokenloom
from tokenloom import cli
from tokenloom.cli.commands import COMMANDS

SATELLITES = {
    name: module.strip("[]") for group in COMMANDS.values() for name, (module, _) in group.items() if module[0] == "["
}
ROOT = Path(__file__).parents[2]
PROJECTS = {path.parent.name: tomllib.loads(path.read_text()) for path in ROOT.glob("packages/*/pyproject.toml")}


@pytest.mark.parametrize("name", SATELLITES)
def test_a_command_that_is_missing_names_its_distribution(name, monkeypatch, capsys):
    monkeypatch.setattr(metadata, "entry_points", lambda **_: ())
    assert cli.main([name]) == 1
    out, err = capsys.readouterr()
    error, hint, _ = err.splitlines()
    assert (out, error) == ("", f"error: `tokenloom {name}` is in tokenloom-{SATELLITES[name]}, which is not installed")
    assert hint == f"hint: run `pip install 'tokenloom[{SATELLITES[name]}]'`"


def test_satellites_have_the_commands_and_the_version_of_the_core():
    found = {}
    for name, project in PROJECTS.items():
        assert project["project"]["version"] == tokenloom.__version__
        core = [each for each in project["project"]["dependencies"] if each.startswith("tokenloom")]
        assert [each.partition("==")[2] for each in core] == [tokenloom.__version__]
        commands = project["project"]["entry-points"]["tokenloom.commands"]
        found |= dict.fromkeys(commands, name.removeprefix("tokenloom-"))
    assert found == SATELLITES


def test_nothing_imports_a_satellite_but_itself():
    faults = []
    for path in [*ROOT.glob("src/**/*.py"), *ROOT.glob("packages/*/src/**/*.py")]:
        own = path.relative_to(ROOT).parts[3] if path.parts[len(ROOT.parts)] == "packages" else ""
        named = re.findall(r"^\s*(?:from|import) (tokenloom_\w+)", path.read_text(), re.MULTILINE)
        faults += [f"{path}: {name}" for name in named if name != own]
    assert faults == []
