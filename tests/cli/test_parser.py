"""Options and values of all commands, mistakes, distributions, and starting the program."""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tomllib
from argparse import ArgumentTypeError
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from tests.cli.runs import output, run

import tokenloom
from tokenloom import cli
from tokenloom.cli.commands import COMMANDS, RUN_COMMANDS
from tokenloom.cli.options import CommandParser, option, shares, split_weights
from tokenloom.inputs.formats import FORMATS
from tokenloom.preprocess.schemas import SCHEMAS
from tokenloom.tokenizers.kinds import ENGINES, KINDS


@pytest.fixture(scope="module")
def parsers() -> dict[str, CommandParser]:
    """The parsers of all commands, by their whole names."""
    return {parser.prog: parser for parser in _and_subparsers(cli.build_parser())}


def _and_subparsers(parser: CommandParser) -> Iterator[CommandParser]:
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                yield from _and_subparsers(inner)


def test_no_parser_takes_abbreviations(parsers):
    names = [name for group in COMMANDS.values() for name in group]
    of_run = [f"run {name}" for group in RUN_COMMANDS.values() for name in group]
    of_retro = [f"retro {name}" for name in ("build", "show", "verify")]
    assert set(parsers) == {"tokenloom", *(f"tokenloom {name}" for name in names + of_run + of_retro)}
    assert not any(parser.allow_abbrev for parser in parsers.values())


MISTAKES = [
    ("", "", "no command given", ""),
    ("run", "lokc", "unknown command `lokc`", "did you mean `lock`? "),
    ("merge", "data --output-prefix x --overwrit", "unknown option `--overwrit`", "did you mean `--overwrite`? "),
    (
        *("preprocess", "--workrs 3 --tokeniser=t.json"),
        *("unknown options `--workrs`, `--tokeniser`", "did you mean `--workers`, `--tokenizer`? "),
    ),
    (
        *("preprocess", ""),
        *("missing: --output-prefix PREFIX, INPUT (or --input), --tokenizer PATH (or --tokenizer-type)", ""),
    ),
    ("plan", "", "missing: --sequence-length N, --data-path ENTRY… (or --data-args-path FILE)", ""),
    ("catalogue", "data --output-prefix", "`--output-prefix`: no value given", ""),
    ("show", "data --document 1 --sample 2", "`--sample`: cannot be combined with `--document`", ""),
    ("show", "data", "missing: --document, --sample or --position", ""),
    ("run init", "data --json=yes", "`--json`: takes no value, got 'yes'", ""),
    *(
        ("show", f"data --sample 0 --from {word}", f"`--from`: must be train, valid or test, got '{word}'", hint)
        for word, hint in (("trian", "did you mean `train`? "), ("some", ""))
    ),
    ("preprocess-chat", "a --input b --output-prefix o", "`--input`: cannot be combined with `INPUT`", ""),
    ("run id", "run.toml and more", "unexpected `and`, `more`", ""),
]


@pytest.mark.parametrize(("command", "more", "error", "hint"), MISTAKES)
def test_mistakes_are_named_with_what_was_meant(command, more, error, hint, capsys):
    program = f"tokenloom {command}".strip()
    what = "commands" if command in ("", "run") else "options"
    expected = f"error: {error}\nhint: {hint}`{program} --help` lists all {what}\n"
    assert run(capsys, *command.split(), *more.split()) == (2, "", expected)


def test_messages_contain_no_secret_and_no_control_character(capsys):
    status, _, err = run(capsys, "merge", "--ouput-prefix=http://host/a?token=word", "--\x1b[2J")
    assert (status, "word" in err, "\x1b" in err) == (2, False, False)
    assert err.startswith("error: unknown options `--ouput-prefix`, `--\\x1b[2J`\n")


def test_the_package_runs_the_command_line():
    done = subprocess.run([sys.executable, "-m", "tokenloom", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"tokenloom {tokenloom.__version__}\n"
    assert done.stderr == ""


@pytest.mark.parametrize(("command", "groups"), [([], COMMANDS), (["run"], RUN_COMMANDS)])
def test_help_names_every_command_in_its_group(command, groups, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    lines = output(capsys, *command, "--help").splitlines()
    for title, commands in groups.items():
        start = lines.index(f"{title}:") + 1
        found = [line.split(maxsplit=1) for line in lines[start : start + len(commands)]]
        assert found == [[name, text] for name, (_, text) in commands.items()]
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
    done = subprocess.run([sys.executable, "-c", IMPORTED, *words], capture_output=True, text=True, check=True)
    modules = set(json.loads(done.stderr.splitlines()[-1]))
    assert not modules & {"numpy", "torch", "rich", "multiprocessing", "pyarrow"}


@pytest.mark.parametrize(
    ("text", "weights", "by_name"),
    [
        ("98,1,1", "98,1,1", {"train": 0.98, "valid": 0.01, "test": 0.01}),
        ("3,1", "3,1", {"train": 0.75, "valid": 0.25}),
        ("1", "1", {"train": 1.0}),
        ("train=0.99,valid=0.01", "0.99,0.01,0.0", {"train": 0.99, "valid": 0.01}),
        ("test=0.25,train=0.75", "0.75,0.0,0.25", {"train": 0.75, "test": 0.25}),
    ],
)
def test_splits_have_one_grammar(text, weights, by_name):
    assert split_weights(text) == weights
    assert shares(text) == by_name


@pytest.mark.parametrize("parse", [split_weights, shares])
@pytest.mark.parametrize(
    "text", ["90,abc,5", "1,-1", "1,2,3,4", "0,0", "train=0.9,train=0.1", "train", "train=2", "=1", "train=0.5,98", ""]
)
def test_a_split_that_is_none_shows_both_forms(parse, text):
    with pytest.raises(ArgumentTypeError, match=r"; write weights such as 98,1,1, or shares such as train=0\.98"):
        option(parse)(text)


@pytest.mark.parametrize("text", ["train=0.9", "train=0.9,dev=0.1"])
def test_shares_of_a_run_are_of_train_valid_and_test(text):
    with pytest.raises(ArgumentTypeError, match="shares of train, valid and test must add up to 1, got"):
        option(split_weights)(text)


@pytest.mark.parametrize(
    ("command", "option", "expected"),
    [
        ("preprocess", "--engine", ENGINES),
        ("preprocess", "--tokenizer-kind", ("auto", *KINDS)),
        ("preprocess", "--input-format", FORMATS),
        ("preprocess-chat", "--engine", ENGINES),
        ("preprocess-chat", "--schema", SCHEMAS),
    ],
)
def test_choices_are_those_of_the_library(capsys, command, option, expected):
    words = (command, "in", "--output-prefix", "out", "--tokenizer", "byte", option, "none-of-them")
    choices = run(capsys, *words)[2].partition(": must be ")[2].partition(", got ")[0]
    assert choices.replace(" or ", ", ").split(", ") == list(expected)


SATELLITES = {
    name: module.strip("[]") for group in COMMANDS.values() for name, (module, _) in group.items() if module[0] == "["
}


ROOT = Path(__file__).parents[2]
PROJECTS = {path.parent.name: tomllib.loads(path.read_text()) for path in ROOT.glob("packages/*/pyproject.toml")}


@pytest.mark.parametrize("name", SATELLITES)
def test_a_command_that_is_missing_names_its_distribution(name, monkeypatch, capsys):
    monkeypatch.setattr(metadata, "entry_points", lambda **_: ())
    status, out, err = run(capsys, name)
    error, hint, _ = err.splitlines()
    assert (status, out) == (1, "")
    assert error == f"error: `tokenloom {name}` is in tokenloom-{SATELLITES[name]}, which is not installed"
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
