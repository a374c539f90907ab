"""What all commands share: how words become options, and the ways to start the program."""

from __future__ import annotations

import argparse
import subprocess
import sys

import pytest

import tokenloom
from tokenloom import cli


def test_options_are_never_abbreviated(capsys):
    with pytest.raises(SystemExit):
        cli.build_parser().parse_args(["merge", "data", "--output-prefix", "merged", "--overwrit"])
    assert "unrecognized arguments: --overwrit" in capsys.readouterr().err


def test_no_parser_takes_abbreviations():
    (commands,) = [a for a in cli.build_parser()._actions if isinstance(a, argparse._SubParsersAction)]
    assert set(commands.choices) == set(cli.COMMANDS)
    assert not any(parser.allow_abbrev for parser in commands.choices.values())


@pytest.mark.parametrize("module", ["tokenloom", "tokenloom.cli"])
def test_modules_run_the_command_line(module):
    done = subprocess.run([sys.executable, "-m", module, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"tokenloom {tokenloom.__version__}\n"
    assert done.stderr == ""


def test_help_names_the_version(capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["--help"])
    assert stopped.value.code == 0
    assert "--version" in capsys.readouterr().out
