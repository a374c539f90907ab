"""The data settings of a run from the arguments of a Megatron run."""

from __future__ import annotations

import pytest

from tokenloom.errors import ConfigError
from tokenloom.megatron.run_arguments import parse_arguments, read_arguments, take_arguments


def test_steps_need_a_batch_size():
    assert take_arguments({"train-iters": ["10"], "global-batch-size": ["3"]}).samples == 30
    assert take_arguments({"train-samples": ["7"]}).samples == 7
    assert [name for name, _ in take_arguments({"train-iters": ["10"]}).not_taken] == ["train-iters"]
    ramped = take_arguments({"train-iters": ["10"], "global-batch-size": ["3"], "rampup-batch-size": ["1", "1", "9"]})
    assert [name for name, _ in ramped.not_taken] == ["train-iters", "rampup-batch-size"]


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
    with pytest.raises(ConfigError, match=r"`--tokenizer-model`: the file does not define the variable in '\$HOME/tok"):
        take_arguments(found)


def test_unreadable_files(tmp_path):
    path = tmp_path / "args"
    path.write_text("--seed 1\n--data-path 'web\n")
    with pytest.raises(ConfigError, match="args`: cannot split the line"):
        read_arguments(str(path))
    with pytest.raises(ConfigError, match="cannot read"):
        read_arguments(str(tmp_path / "none"))
