"""Errors and warnings of the rooms below, in the words of the command line."""

from __future__ import annotations

import logging
import warnings

import pytest

from tokenloom import cli
from tokenloom.cli.hints import error_lines, hint_in_options, warnings_in_options
from tokenloom.cli.parser import CommandParser
from tokenloom.errors import ConfigError, IgnoredSettingWarning


def parser_of(*words: str) -> CommandParser:
    """Returns the parser of a command."""
    parser = cli.build_parser(())
    for word in words:
        parser.load([word])
        parser = parser._commands.choices[word]
    return parser


REPLACE = "choose another output, or replace it with `overwrite=True`"
USE = "use that one; `allow_tokenizer_mismatch=True` reads them"


@pytest.mark.parametrize(
    ("command", "hint", "told"),
    [
        ("preprocess", "leave out `restart=True` to share it", "leave out `--restart` to share it"),
        ("preprocess", "name it with `eod_token`", "name it with `--eod-token`"),
        ("preprocess", "allow more with `memory_bytes`", "allow more with `--memory-bytes`"),
        ("preprocess", "`data` or `./data_x.jsonl`", "`data` or `./data_x.jsonl`"),
        ("pack-report", "raise `max_seqlen_per_dp_cp_rank`", "raise `--max-seqlen-per-dp-cp-rank`"),
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


def test_an_error_says_where_more_stands():
    error = ConfigError("`window_policy` is 3", hint="such as `window_policy=concat`")
    assert error_lines(error, parser_of("plan")) == (
        "error: `--window-policy` is 3\nhint: such as `--window-policy concat`\n"
        "more: docs/troubleshooting.md#configerror"
    )


def test_warnings_have_no_file_and_no_source(capsys):
    with warnings_in_options(parser_of("plan")):
        warned = IgnoredSettingWarning("`window_policy` is\x1b[2J ignored")
        text = warnings.formatwarning(warned, IgnoredSettingWarning, "file.py", 3, "source")
        logging.getLogger("tokenloom.indexed").warning("`%s` is slow", "path_to_cache")
        logging.getLogger("tokenloom.indexed").info("not said")
    assert text == "warning: `--window-policy` is\\x1b[2J ignored\n"
    assert capsys.readouterr().err == "warning: `path_to_cache` is slow\n"
