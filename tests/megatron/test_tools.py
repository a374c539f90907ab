"""`python -m tokenloom.megatron TOOL`: the commands that replace Megatron's tools."""

from __future__ import annotations

import pytest

from tokenloom.cli import build_parser
from tokenloom.errors import ConfigError
from tokenloom.megatron.__main__ import _CACHE_FLAGS, tool_command

COMMON = "--input a.jsonl --output-prefix p"
GPT2 = f"{COMMON} --tokenizer-type GPT2BPETokenizer --vocab-file v --merge-file m"
CASES = [
    ("tools/preprocess_data.py", f"{GPT2} --workers 4", f"preprocess {GPT2} --partitions 1 --workers 4"),
    ("preprocess_data.py", f"{COMMON} --workers=64", f"preprocess {COMMON} --partitions 8 --workers 64"),
    ("preprocess_data.py", f"--workers 4 {COMMON} --partitions 4", f"preprocess {COMMON} --partitions 4 --workers 4"),
    ("preprocess_data.py", COMMON, f"preprocess {COMMON}"),
    ("preprocess_data_fast.py", f"{COMMON} --use-gigatoken", f"preprocess {COMMON} --use-gigatoken"),
    (
        "preprocess_data_for_megatron.py",
        f"{COMMON} --tokenizer-library=sentencepiece --tokenizer-model t --dataset-impl mmap",
        f"preprocess {COMMON} --tokenizer-model t --dataset-impl mmap --tokenizer-type SentencePieceTokenizer",
    ),
    (
        "preprocess_data_for_megatron.py",
        f"{COMMON} --tokenizer-library huggingface --tokenizer-type folder",
        f"preprocess {COMMON} --tokenizer-type HuggingFaceTokenizer --tokenizer-model folder",
    ),
    (
        "build_indexed_dataset.py",
        "--in my.txt --out=my_gpt_data --tokenizer t",
        "preprocess --input my.txt --output-prefix=my_gpt_data --tokenizer t --input-format text-lines --exact-prefix",
    ),
    (
        "preprocess_mmdata.py",
        f"{COMMON} --input-image i --pad-length 9 --append-eod",
        f"preprocess-multimodal {COMMON} --input-image i --pad-length 9 --append-eod",
    ),
    ("preprocess_mmdata.py", f"{COMMON} --pad-length 9", f"preprocess-multimodal {COMMON}"),
    ("merge_datasets.py", "--input d --output-prefix p --multimodal", "merge --input d --output-prefix p --multimodal"),
    ("build_sequences_per_dataset.py", "--train-data-path 1 a", "sequences-per-dataset --train-data-path 1 a"),
    (
        "prepare_cache.py",
        "--num-layers 12 --data-path 1 a --seq-length 8 --bf16 --lr 1e-4 --data-cache-path c --tokenizer t --seed 3",
        "prepare-cache --data-path 1 a --seq-length 8 --data-cache-path c --tokenizer t --seed 3",
    ),
]


@pytest.mark.parametrize(("script", "argv", "expected"), CASES)
def test_commands_of_tools(script, argv, expected):
    found = tool_command(script, argv.split())
    assert found == expected.split()
    needed = ["--tokenizer", "byte"] if found[0].startswith("preprocess") else []
    assert build_parser(found[:1]).parse_args([*found, *needed]).run is not None


def test_other_programs():
    assert tool_command("pretrain_gpt.py", ["--data-path", "a"]) is None
    assert tool_command("tools/preprocess_data_nmt.py", []) is None
    assert tool_command("tools/prepare_cache.py", [], has_trainer=True) is None


def test_notes():
    notes: list[str] = []
    tool_command("prepare_cache.py", ["--num-layers", "12", "--seed", "3", "--bf16"], note=notes.append)
    tool_command("preprocess_mmdata.py", ["--pad-length", "3"], note=notes.append)
    assert notes[0] == "arguments without effect on the index cache: --num-layers 12 --bf16"
    assert notes[1].startswith("a run uses this cache only with the same tokenizer class")
    assert notes[2] == "--pad-length has no effect without --append-eod, as in Megatron's tool"


@pytest.mark.parametrize(
    ("script", "argv", "words"),
    [
        ("preprocess_data.py", "--workers 6 --partitions 4", "--workers: must be a multiple of --partitions 4, got 6"),
        ("preprocess_data_for_megatron.py", "--tokenizer-library tabular", "unknown --tokenizer-library 'tabular'"),
    ],
)
def test_wrong_arguments(script, argv, words):
    with pytest.raises(ConfigError, match=words):
        tool_command(script, argv.split())


def test_prepare_cache_has_all_options():
    commands = next(each for each in build_parser(["prepare-cache"])._actions if isinstance(each.choices, dict))
    known = {name for action in commands.choices["prepare-cache"]._actions for name in action.option_strings}
    assert {*_CACHE_FLAGS} <= known
