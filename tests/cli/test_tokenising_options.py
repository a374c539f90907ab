"""Choices that commands repeat, because asking for help must not import what has them."""

from __future__ import annotations

import pytest

from tokenloom import cli
from tokenloom.inputs.formats import FORMATS
from tokenloom.preprocess.schemas import SCHEMAS
from tokenloom.tokenizers.kinds import ENGINES, KINDS


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
    with pytest.raises(SystemExit):
        cli.main([command, "in", "--output-prefix", "out", "--tokenizer", "byte", option, "none-of-them"])
    choices = capsys.readouterr().err.partition("expected ")[2].partition(", found ")[0]
    assert choices.replace(" or ", ", ").split(", ") == list(expected)
