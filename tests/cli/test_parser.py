"""What all commands share: how words become options, what is said of mistakes, and the ways to start the program."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator

import pytest

import tokenloom
from tokenloom import cli
from tokenloom.cli.commands import COMMANDS, RUN_COMMANDS
from tokenloom.cli.options import CommandParser


@pytest.fixture(scope="module")
def parsers() -> dict[str, CommandParser]:
    """Those of all commands, by what is typed to reach them."""
    return {parser.prog: parser for parser in _with_all_below(cli.build_parser())}


def _with_all_below(parser: CommandParser) -> Iterator[CommandParser]:
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from _with_all_below(below)


def refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Returns what is said of words that are wrong usage."""
    with pytest.raises(SystemExit) as stopped:
        cli.main(words)
    assert stopped.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    return err


def test_no_parser_takes_abbreviations(parsers):
    names = [name for group in COMMANDS.values() for name in group]
    of_run = [f"run {name}" for group in RUN_COMMANDS.values() for name in group]
    of_retro = [f"retro {name}" for name in ("build", "show", "verify")]
    assert set(parsers) == {"tokenloom", *(f"tokenloom {name}" for name in names + of_run + of_retro)}
    assert not any(parser.allow_abbrev for parser in parsers.values())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "error: expected a command, found none\nhint: `tokenloom --help` shows all commands\n"),
        (
            ["run", "lokc"],
            "error: unknown command `lokc`\nhint: did you mean `lock`? `tokenloom run --help` shows all commands\n",
        ),
        (
            ["merge", "data", "--output-prefix", "merged", "--overwrit"],
            "error: unknown option `--overwrit`\n"
            "hint: did you mean `--overwrite`? `tokenloom merge --help` shows all options\n",
        ),
        (
            ["preprocess", "--workrs", "3", "--tokeniser=t.json"],
            "error: unknown options `--workrs`, `--tokeniser`\n"
            "hint: did you mean `--workers`, `--tokenizer`? `tokenloom preprocess --help` shows all options\n",
        ),
        (
            ["preprocess"],
            "error: missing: --output-prefix PREFIX, INPUT (or --input), --tokenizer PATH (or --tokenizer-type)\n"
            "hint: `tokenloom preprocess --help` shows all options\n",
        ),
        (
            ["plan"],
            "error: missing: --sequence-length N, --data-path ENTRY… (or a file of them)\n"
            "hint: `tokenloom plan --help` shows all options\n",
        ),
        (
            ["catalogue", "data", "--output-prefix"],
            "error: `--output-prefix`: expected a value, found none\n"
            "hint: `tokenloom catalogue --help` shows all options\n",
        ),
        (
            ["show", "data", "--document", "1", "--sample", "2"],
            "error: `--sample`: cannot stand beside `--document`\nhint: `tokenloom show --help` shows all options\n",
        ),
        (
            ["show", "data"],
            "error: missing: --document, --sample or --position\nhint: `tokenloom show --help` shows all options\n",
        ),
        (
            ["run", "init", "data", "--json=yes"],
            "error: `--json`: takes no value, found 'yes'\nhint: `tokenloom run init --help` shows all options\n",
        ),
        (
            ["show", "data", "--sample", "0", "--from", "trian"],
            "error: `--from`: expected train, valid or test, found 'trian'\n"
            "hint: did you mean `train`? `tokenloom show --help` shows all options\n",
        ),
        (
            ["verify-resume", "a.py:f", "--arguments", "'x"],
            'error: `--arguments`: expected words as a shell takes them, found "\'x": no closing quotation\n'
            "hint: `tokenloom verify-resume --help` shows all options\n",
        ),
        (
            ["preprocess-chat", "a", "--input", "b", "--output-prefix", "out", "--tokenizer", "byte"],
            "error: `--input`: cannot stand beside `INPUT`\n"
            "hint: `tokenloom preprocess-chat --help` shows all options\n",
        ),
        (
            ["run", "id", "run.toml", "and", "more"],
            "error: expected no further value, found `and`, `more`\n"
            "hint: `tokenloom run id --help` shows all options\n",
        ),
    ],
)
def test_mistakes_are_named_with_what_was_meant(words, said, capsys):
    assert refused(words, capsys) == said


def test_what_is_said_has_no_secret_and_drives_no_terminal(capsys):
    err = refused(["merge", "--ouput-prefix=http://host/a?token=word", "--\x1b[2J"], capsys)
    assert "word" not in err
    assert "\x1b" not in err
    assert err.startswith("error: unknown options `--ouput-prefix`, `--\\x1b[2J`\n")


def test_the_package_runs_the_command_line():
    done = subprocess.run([sys.executable, "-m", "tokenloom", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"tokenloom {tokenloom.__version__}\n"
    assert done.stderr == ""


@pytest.mark.parametrize(("command", "groups"), [([], COMMANDS), (["run"], RUN_COMMANDS)])
def test_help_names_every_command_in_its_group(command, groups, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as stopped:
        cli.main([*command, "--help"])
    assert stopped.value.code == 0
    lines = capsys.readouterr().out.splitlines()
    for title, commands in groups.items():
        start = lines.index(f"{title}:") + 1
        told = [line.split(maxsplit=1) for line in lines[start : start + len(commands)]]
        assert told == [[name, text] for name, (_, text) in commands.items()]
    assert any("--help" in line for line in lines)
    assert all(len(line) < 80 for line in lines)


IMPORTED = """
import json, sys
from tokenloom import cli
try:
    cli.main(sys.argv[1:])
except SystemExit:
    pass
print(json.dumps(sorted(sys.modules)), file=sys.stderr)
"""


@pytest.mark.parametrize("words", [["--help"], ["run", "lokc"]])
def test_what_runs_no_command_imports_none(words):
    """Each takes a second of imports otherwise."""
    done = subprocess.run([sys.executable, "-c", IMPORTED, *words], capture_output=True, text=True, check=True)
    modules = set(json.loads(done.stderr.splitlines()[-1]))
    assert not modules & {"numpy", "torch", "rich", "multiprocessing", "pyarrow"}
