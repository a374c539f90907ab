"""The first `run.toml`."""

from __future__ import annotations

from contextlib import suppress
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.run.data import write_source

from tokenloom.errors import ConfigError
from tokenloom.run.init import (
    RunDraft,
    check_plain,
    draft_text,
    parse_arguments,
    read_arguments,
    take_arguments,
    weighted_entries,
)
from tokenloom.run.settings import parse_run


def stage_of(text: str):
    return parse_run(text, path="run.toml").stages[0]


def test_data_without_weights_are_read_once():
    stage = stage_of(draft_text(RunDraft(data=("data/web/*", "code"), sequence_length=8), path="run.toml"))
    assert stage.passes == (("web", Fraction(1)), ("code", Fraction(1)))


def test_data_without_weights_share_a_size_by_their_tokens(tmp_path):
    data = (write_source(str(tmp_path / "a"), 30, 30), write_source(str(tmp_path / "b"), 20))
    stage = stage_of(draft_text(RunDraft(data=data, sequence_length=8, samples=5), path=str(tmp_path / "run.toml")))
    assert stage.weights == (("a", Fraction(3)), ("b", Fraction(1)))


@pytest.mark.parametrize(
    ("entry", "name"),
    [
        ("data/web_text_document", "web"),
        ("data/web/*_document", "web"),
        ("data/web_*", "web"),
        ("web.bin", "web"),
        ("data/books/", "books"),
        ("*", "data"),
        ("a b", "a b"),
    ],
)
def test_sources_are_named_by_what_their_paths_say(entry, name):
    text = draft_text(RunDraft(data=(entry,), sequence_length=8), path="run.toml")
    assert [source.name for source in parse_run(text, path="run.toml").sources] == [name]


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        (["0.8", "web", "code"], r"weights and prefixes by turns, or prefixes alone, found entry 3 'code' of 3"),
        (["web", "0.2"], r"found entry 1 'web' of 2"),
        (["0", "web"], r"expected a weight above 0 for `web`, found 0"),
        (["-1", "web"], r"expected the weight of `web` to be a finite number from 0 on, found -1"),
        (["nan", "web"], r"expected the weight of `web` to be a finite number"),
    ],
)
def test_blends_that_are_none(entries, message):
    with pytest.raises(ConfigError, match=message):
        weighted_entries(entries)


def test_steps_need_a_batch_size():
    assert take_arguments({"train-iters": ["10"], "global-batch-size": ["3"]}).samples == 30
    assert take_arguments({"train-samples": ["7"]}).samples == 7
    taken = take_arguments({"train-iters": ["10"]})
    assert taken.samples is None
    assert [name for name, _ in taken.not_taken] == ["train-iters"]
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
    with pytest.raises(ConfigError, match=r"expected plain words for `--tokenizer-model`, found '\$HOME/tok"):
        check_plain("tokenizer-model", found["tokenizer-model"])


def test_a_word_without_an_end_is_quoted_with_its_line(tmp_path):
    path = tmp_path / "args"
    path.write_text("--seed 1\n--data-path 'web\n")
    with pytest.raises(ConfigError, match=r"args`, line 2: expected words as a shell takes them"):
        read_arguments(str(path))
    with pytest.raises(ConfigError, match="cannot be read"):
        read_arguments(str(tmp_path / "none"))


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(text):
    with suppress(ConfigError):
        parse_arguments(text, where="text")
