"""Errors and warnings of the rooms below, in the words of the command line."""

from __future__ import annotations

import ast
import logging
import re
import warnings
from pathlib import Path

import pytest

import tokenloom
from tokenloom import cli
from tokenloom.cli.hints import error_lines, hint_in_options, in_options, warnings_in_options
from tokenloom.cli.parser import CommandParser
from tokenloom.errors import ConfigError, IgnoredSettingWarning, OutputExistsError

PACKAGE = Path(tokenloom.__file__).parent


def parser_of(*words: str) -> CommandParser:
    """Returns the parser of a command."""
    parser = cli.build_parser(())
    for word in words:
        parser = parser.command(word)
    return parser


REPLACE = "choose another output, or replace it with `overwrite=True`"
USE = "use that one; `allow_tokenizer_mismatch=True` reads them"


@pytest.mark.parametrize(
    ("command", "hint", "told"),
    [
        ("preprocess", "leave out `restart=True` to share it", "leave out `--restart` to share it"),
        ("preprocess", "name it with `eod_token`", "name it with `--eod-token`"),
        ("preprocess", "allow more with `memory_bytes`", "allow more with `--memory`"),
        ("preprocess", "`data` or `./data_x.jsonl`", "`data` or `./data_x.jsonl`"),
        ("pack-report", "raise `max_seqlen_per_dp_cp_rank`", "raise `--max-tokens`"),
        ("info", "open it with `multimodal=True`", "open it with `--multimodal`"),
        ("info", "read them with `IndexedDataset(prefix, multimodal=True)`", "read them with `--multimodal`"),
        ("info", "open it with `multimodal=False`", "open it without `--multimodal`"),
        ("plan", 'such as `split="99,1,0"`', "such as `--split 99,1,0`"),
        ("plan", "made without `append_eod`", "made without `tokenloom preprocess --append-eod`"),
        ("prepare-cache", "`mmap_bin_files=False` reads it", "`--no-mmap-bin-files` reads it"),
        ("merge", REPLACE, "choose another output, or replace it with `--overwrite`"),
        ("stream", REPLACE, "choose another output"),
        ("show", f"tokenize again, or {USE}", "tokenize again, or use that one"),
        ("prepare-cache", USE, "use that one; `--set allow_tokenizer_mismatch=true` reads them"),
        ("show", "`allow_tokenizer_mismatch=True` reads them", None),
    ],
)
def test_settings_become_options_of_the_command(command, hint, told):
    assert hint_in_options(hint, parser_of(command)) == told


def test_keys_of_a_run_stay_what_they_are():
    """What lies above these commands is run.toml."""
    hint = "give it `tokens`, or `sequence_length`"
    assert hint_in_options(hint, parser_of("run", "amend")) == hint
    assert in_options("`sequence_length`", parser_of("plan")) == "`--sequence-length`"


def test_an_error_says_where_more_stands():
    error = ConfigError("`window_policy` is 3", hint="such as `window_policy=concat`")
    assert error_lines(error, parser_of("plan")) == (
        "error: `--window-policy` is 3\nhint: such as `--window-policy concat`\nmore: tokenloom explain ConfigError"
    )


def test_an_error_of_a_user_is_explained_by_the_class_above():
    class Mine(OutputExistsError):
        pass

    assert error_lines(Mine("no"), parser_of("info")).endswith("\nmore: tokenloom explain OutputExistsError")


def test_an_error_ends_a_command_with_status_1(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["info", "nothing"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert re.fullmatch(r"error: .+\n(hint: .+\n)?more: tokenloom explain DatasetNotFoundError\n", err)


def test_warnings_have_no_file_and_no_source(capsys):
    with warnings_in_options(parser_of("plan")):
        warned = IgnoredSettingWarning("`window_policy` is\x1b[2J ignored")
        text = warnings.formatwarning(warned, IgnoredSettingWarning, "file.py", 3, "source")
        logging.getLogger("tokenloom.indexed").warning("`%s` is slow", "path_to_cache")
        logging.getLogger("tokenloom.indexed").info("not said")
    assert text == "warning: `--window-policy` is\\x1b[2J ignored\n"
    assert capsys.readouterr().err == "warning: `path_to_cache` is slow\n"


FOR_PROGRAMS_ONLY = {
    "checksums=True",  # of an `IndexedDatasetBuilder`
    "count=True",  # of loaders
    "digest=True",
    "in_process=True",  # of `verify_resume` as a function
    "mixing_block=1024",  # a key of run.toml
    "multiprocessing_context='forkserver'",  # of torch's loaders
    "name=value&…",  # an address of the explorer
}
"""What hints and messages name that no command reaches; a command would leave it out."""


GIVEN = re.compile(r"`([a-z_]+=[^`\n]+)`")


def settings_named() -> set[str]:
    """Returns all settings with a value that texts of the rooms below the command line name."""
    found: set[str] = set()
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text()
        if path.parent.name == "cli" or "megatron" in path.parts or not GIVEN.search(text):
            continue
        tree = ast.parse(text)
        prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
                found.update(GIVEN.findall(node.value))
    return found


def test_every_setting_that_a_hint_gives_a_value_is_an_option_somewhere():
    names = ["preprocess", "preprocess-chat", "merge", "info", "plan", "prepare-cache"]
    parsers = [parser_of(name) for name in names]
    named = settings_named()
    unknown = {each for each in named if all(f"`{each}`" in in_options(f"`{each}`", parser) for parser in parsers)}
    assert len(named) > 5
    assert unknown <= FOR_PROGRAMS_ONLY
