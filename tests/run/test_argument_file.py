"""Arguments of a Megatron run, read from files."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenloom.errors import ConfigError
from tokenloom.run.argument_file import check_plain, options_of, parse_arguments, read_arguments

SCRIPT = r"""
#!/bin/bash
# pretrain
SEQ_LENGTH=4096
DATA_PATH="0.8 web_text_document 0.2 code_text_document"
export SEED=42
DATA_ARGS=(
    --data-path $DATA_PATH   # the blend
    # --split 1,0,0
    --seq-length "${SEQ_LENGTH}"
)
torchrun pretrain_gpt.py ${DATA_ARGS[@]} --seed=$SEED \
    --train-iters 100 --bf16 --tokenizer-model "$HOME/tokenizer.json"
"""


def test_a_shell_script():
    found = parse_arguments(SCRIPT, where="`train.sh`")
    assert found["data-path"] == ["0.8", "web_text_document", "0.2", "code_text_document"]
    assert found["seq-length"] == ["4096"]
    assert (found["seed"], found["train-iters"], found["bf16"]) == (["42"], ["100"], [])
    assert "split" not in found
    with pytest.raises(ConfigError, match=r"expected plain words for `--tokenizer-model`, found '\$HOME/tok"):
        check_plain("tokenizer-model", found["tokenizer-model"])


def test_lines_of_yaml():
    text = "MODEL_ARGS:\n  --seq-length: 4096  # tokens\n  seed: 42\n  data_path:\n    - 0.8\n    - web\n  bf16: true\n"
    found = parse_arguments(text + "  split: [98, 1,\n    1]\n", where="")
    assert found == {
        "MODEL-ARGS": [],
        "seq-length": ["4096"],
        "seed": ["42"],
        "data-path": ["0.8", "web"],
        "bf16": [],
        "split": ["98", "1", "1"],
    }


def test_a_list_of_arguments_and_the_last_of_an_option():
    assert parse_arguments("--seed 1\n--data-path\n  a\n", where="")["seed"] == ["1"]
    assert options_of(["--seed=1", "--seed", "2", "--data_path", "a", "b"]) == {"seed": ["2"], "data-path": ["a", "b"]}


def test_a_word_without_an_end_is_quoted_with_its_line(tmp_path):
    path = tmp_path / "args"
    path.write_text("--seed 1\n--data-path 'web\n")
    with pytest.raises(ConfigError, match=r"args`, line 2: expected words as a shell takes them"):
        read_arguments(str(path))
    with pytest.raises(ConfigError, match="cannot be read"):
        read_arguments(str(tmp_path / "none"))


def test_variables_that_name_themselves_end():
    assert parse_arguments("A=$B\nB=$A\n--seed $A", where="")["seed"]


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(text):
    with suppress(ConfigError):
        parse_arguments(text, where="text")
