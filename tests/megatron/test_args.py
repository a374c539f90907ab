"""`tokenloom.megatron.args`, and the data settings of a run from the arguments of a Megatron run."""

from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.megatron.arguments import arguments
from tests.support import MASKING, CharacterTokenizer, StandInWordPieces

from tokenloom.errors import ConfigError, IgnoredSettingWarning, StorageError
from tokenloom.megatron import args as megatron_args
from tokenloom.megatron.args import (
    batch_sizes_of,
    config_from_args,
    dataset_kind,
    get_blend_and_blend_per_split,
    sequences_from_args,
    step_batch_size_schedule,
    tokenizer_from_args,
    train_valid_test_num_samples,
)
from tokenloom.megatron.core.datasets.bert_dataset import BERTMaskedWordPieceDatasetConfig
from tokenloom.megatron.core.datasets.gpt_dataset import GPTDatasetConfig
from tokenloom.megatron.core.datasets.multimodal_dataset import MultimodalDatasetConfig
from tokenloom.megatron.core.datasets.t5_dataset import T5MaskedWordPieceDatasetConfig
from tokenloom.megatron.run_arguments import parse_arguments, read_arguments, take_arguments
from tokenloom.megatron.training.datasets.fim_dataset import GPTFIMDatasetConfig

DATA = {"data_path": ["0.3", "a", "0.7", "b"], "split": "98,1,1"}

GPT = {
    "random_seed": 1234,
    "sequence_length": 64,
    "blend": (["a", "b"], [0.3, 0.7]),
    "split": "98,1,1",
    "mid_level_dataset_surplus": 0.005,
    "sequence_parallel_size": 0,
    **dict.fromkeys(("num_dataset_builder_threads", "context_parallel_size", "data_parallel_size"), 1),
    **dict.fromkeys(("mmap_bin_files", "create_attention_mask"), True),
    **dict.fromkeys(("blend_per_split", "path_to_cache", "object_storage_cache_path", "sequences_per_dataset"), None),
    **dict.fromkeys(("multiple_validation_sets", "full_validation", "allow_ambiguous_pad_tokens"), False),
    **dict.fromkeys(("reset_position_ids", "reset_attention_mask", "eod_mask_loss", "fast_cache_load"), False),
    **dict.fromkeys(("defer_npy_index_mmap", "hybrid_context_parallel", "inter_document_masking"), False),
}
"""The settings of `pretrain_gpt.py` for these arguments."""

MASKED_NAMES = ("masking_probability", "short_sequence_probability", "masking_do_full_word", "masking_do_permutation")
MASKED = {name: MASKING[name] for name in (*MASKED_NAMES, "masking_use_longer_ngrams")}
CACHE = {"data_cache_path": "c"}


def settings_of(changes, names, **more):
    tokenizer = more.pop("tokenizer", None) or CharacterTokenizer()
    config = config_from_args(arguments(**DATA | changes), tokenizer=tokenizer, **more)
    return type(config), {name: getattr(config, name) for name in names}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, {}),
        ({"split": None}, {"split": "969, 30, 1"}),
        ({"encoder_seq_length": 32, "seq_length": None}, {"sequence_length": 32}),
        ({"seed": 5, "full_validation": True}, {"random_seed": 5, "full_validation": True}),
        ({**CACHE, "s3_cache_path": "o"}, {"path_to_cache": "c", "object_storage_cache_path": "o"}),
        ({**CACHE, "dataloader_defer_npy_index_mmap": True}, {"path_to_cache": "c", "defer_npy_index_mmap": True}),
        ({"eod_mask_loss": True, "reset_position_ids": True, "num_dataset_builder_threads": 3},) * 2,
        ({"create_attention_mask_in_dataloader": False}, {"create_attention_mask": False}),
        ({"dataloader_inter_document_masking": True}, {"inter_document_masking": True, "create_attention_mask": False}),
        (
            {"world_size": 8, "tensor_model_parallel_size": 2, "context_parallel_size": 2, "sequence_parallel": True},
            {"data_parallel_size": 2, "sequence_parallel_size": 2, "context_parallel_size": 2},
        ),
        (
            {"data_path": None, "split": None, "valid_data_path": ["b"]},
            {"blend": None, "blend_per_split": [None, (["b"], None), None], "split": None},
        ),
    ],
)
def test_settings_of_gpt_datasets(changes, expected):
    assert settings_of(changes, GPT) == (GPTDatasetConfig, GPT | expected)


TOKENS = {role: f"<{role}>" for role in ("prefix", "middle", "suffix", "pad", "eod")}
T5 = {"masking_max_ngram": 10, "masking_use_geometric_distribution": True, "sequence_length_decoder": 16}
PIECES = {"tokenizer": StandInWordPieces(num_sentinels=90, vocab_size=200)}


@pytest.mark.parametrize(
    ("changes", "more", "kind", "expected"),
    [
        (
            {"fim_data": True, "fim_no_prefix": "x", **{f"fim_{role}_token": text for role, text in TOKENS.items()}},
            *({}, GPTFIMDatasetConfig),
            {"fim_rate": 0.5, "fim_spm_rate": 0.5, "fim_extra_tokens": TOKENS, "fim_no_prefix": "x"},
        ),
        ({"sft": True}, {}, GPTDatasetConfig, {"create_attention_mask": True}),
        ({"use_varlen_dataset": True}, {}, GPTDatasetConfig, {"sequence_length": 64}),
        (
            {"tokenizer_type": "BertWordPieceLowerCase", "mask_prob": 0.2},
            *(PIECES, BERTMaskedWordPieceDatasetConfig),
            MASKED | {"masking_probability": 0.2, "masking_max_ngram": 3, "classification_head": True},
        ),
        ({}, PIECES | {"kind": "bert"}, BERTMaskedWordPieceDatasetConfig, MASKED),
        (
            {"tokenizer_type": "BertWordPieceCase", "decoder_seq_length": 16, "seq_length": 24},
            *(PIECES, T5MaskedWordPieceDatasetConfig),
            MASKED | T5,
        ),
        (
            {"data_path": None, "mock_data": True, "dataloader_seq_length": 48},
            *({"preprocess_func": str}, MultimodalDatasetConfig),
            {"sequence_length": 48, "image_h": 224, "image_w": 224, "preprocess_func": str, "mock": True},
        ),
    ],
)
def test_settings_of_other_kinds(changes, more, kind, expected):
    assert settings_of(changes, expected, **more) == (kind, expected)


@pytest.mark.parametrize(
    ("changes", "more", "words"),
    [
        ({"fim_data": True, "sft": True}, {}, "--fim-data and --sft exclude each other"),
        ({"fim_data": True, "fim_middle_token": None}, {}, "`fim_extra_tokens`: no .*middle"),
        ({"encoder_seq_length": 32}, {}, "--seq-length 64 and --encoder-seq-length 32"),
        ({"seq_length": None}, {}, "no --seq-length given"),
        ({"data_args_path": "x"}, {}, "--data-path and --data-args-path exclude each other"),
        ({"dataloader_fast_cache_load": True}, {}, "path_to_cache"),
        ({"dataloader_inter_document_masking": True, "reset_position_ids": True}, {}, "exclude each other"),
        ({"sft": True}, {"kind": "bert"}, "`kind`: --sft selects 'sft', got 'bert'"),
        ({}, {"kind": "rnn"}, "unknown kind of dataset 'rnn'"),
        ({"tokenizer_type": None}, {"tokenizer": None}, "no --tokenizer-type given"),
    ],
)
def test_contradictions_are_errors(changes, more, words):
    with pytest.raises(ConfigError, match=words):
        config_from_args(arguments(**DATA | changes), **{"tokenizer": CharacterTokenizer(), **more})


def test_ignored_arguments_are_warned_of():
    with pytest.warns(IgnoredSettingWarning, match="unknown data arguments are ignored: --dataloader-speed 9"):
        config_from_args(arguments(**DATA, dataloader_speed=9, dataloader_off=False), tokenizer=CharacterTokenizer())
    changes = DATA | {"tokenizer_type": "BertWordPieceCase", "reset_position_ids": True}
    with pytest.warns(IgnoredSettingWarning, match="bert datasets ignore --reset-position-ids"):
        config_from_args(arguments(**changes), tokenizer=StandInWordPieces())


def test_missing_arguments_and_mappings():
    few = {"seed": 1, "seq_length": 8, "data_path": ["a"], "split": "1,1,1"}
    resets = {"reset_position_ids": False, "reset_attention_mask": False, "eod_mask_loss": False}
    config = config_from_args(few | resets, tokenizer=CharacterTokenizer())
    same = config_from_args(Namespace(**few, **resets), tokenizer=config.tokenizer)
    assert vars(config) == vars(same)
    assert (config.create_attention_mask, config.data_parallel_size) == (True, 1)
    assert dataset_kind({}) == "gpt"


def test_megatrons_tokenizer_is_preferred(monkeypatch: pytest.MonkeyPatch):
    module = SimpleNamespace(build_tokenizer=lambda args: ("Megatron's", args.tokenizer_type))
    args = arguments(tokenizer_type="NullTokenizer", vocab_size=50)
    monkeypatch.setattr(megatron_args, "_is_importable", lambda name: True)
    monkeypatch.setattr(megatron_args, "import_module", lambda name: module)
    assert tokenizer_from_args(args) == ("Megatron's", "NullTokenizer")
    monkeypatch.setattr(megatron_args, "_is_importable", lambda name: False)
    assert tokenizer_from_args(args).vocab_size == 50


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    contents = {
        "args": "30 a\n70\tb\n",
        "split": '{"train": ["1", "a", "2", "b"], "valid": "c d e", "test": null}',
        "missing": '{"train": ["a"], "valid": ["b"]}',
    }
    contents |= {"list": "[1]", "broken": "{", "sequences": '{"a": [3, 4], "b": [1, 2]}', "counts": '{"a": 3}'}
    for name, text in contents.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "latin").write_bytes(b"\xff")
    return {name: str(tmp_path / name) for name in (*contents, "latin", "nowhere")}


def test_blends(files):
    split = [(["a", "b"], [1.0, 2.0]), (["c", "d", "e"], None), None]
    for changes, expected in (
        ({"mock_data": True}, (None, None)),
        ({"data_path": ["0.3", "a", "0.7", "b"]}, ((["a", "b"], [0.3, 0.7]), None)),
        ({"data_args_path": files["args"]}, ((["a", "b"], [30.0, 70.0]), None)),
        ({"per_split_data_args_path": files["split"]}, (None, split)),
        ({"train_data_path": ["a"], "test_data_path": ["1", "b"]}, (None, [(["a"], None), None, (["b"], [1.0])])),
    ):
        assert get_blend_and_blend_per_split(arguments(**changes)) == expected


def test_wrong_blends(files):
    for changes, words in (
        ({"data_path": ["a"], "valid_data_path": ["b"]}, "--train-data-path, --valid-data-path, --test-data-path"),
        ({"data_path": ["a"], "mock_data": True}, "--data-path and --mock-data exclude each other"),
        ({"per_split_data_args_path": files["missing"]}, "missing key 'test'"),
        ({"per_split_data_args_path": files["list"]}, "must be a JSON object, got list"),
        ({"per_split_data_args_path": files["broken"]}, "is not JSON"),
        ({"data_args_path": files["latin"]}, "is not UTF-8"),
    ):
        with pytest.raises(ConfigError, match=words):
            get_blend_and_blend_per_split(arguments(**changes))
    with pytest.raises(StorageError, match="nowhere"):
        get_blend_and_blend_per_split(arguments(data_args_path=files["nowhere"]))


def test_counts_of_sequences(files):
    assert sequences_from_args(arguments()) is None
    assert sequences_from_args(arguments(per_dataset_sequences_path=files["sequences"])) == {"a": [3, 4], "b": [1, 2]}
    with pytest.raises(ConfigError, match="'a' must have two integers, got 3"):
        sequences_from_args(arguments(per_dataset_sequences_path=files["counts"]))


ITERATIONS = {"global_batch_size": 8, "train_iters": 1000, "eval_interval": 100, "eval_iters": 5}
SAMPLES = ITERATIONS | {"train_iters": None, "train_samples": 8100}


@pytest.mark.parametrize(
    ("changes", "sizes"),
    [
        (ITERATIONS, (8000, 440, 40)),
        (ITERATIONS | {"full_validation": True, "eval_interval": None}, (8000, None, 40)),
        (ITERATIONS | {"skip_train": True}, (8000, 40, 40)),
        (ITERATIONS | {"start_eval_at_iter": 250}, (8000, 360, 40)),
        (ITERATIONS | {"start_eval_at_iter": 9000}, (8000, 0, 40)),
        (ITERATIONS | {"eval_global_batch_size": 2}, (8000, 110, 10)),
        (SAMPLES, (8100, 440, 40)),  # 1012 steps, as the trainer rounds them
        (SAMPLES | {"phase_transition_iterations": "600, 250"}, (2000, 440, 40)),
        (SAMPLES | {"phase_transition_iterations": [250, 600], "iteration": 250}, (2800, 440, 40)),
        (SAMPLES | {"phase_transition_iterations": "600", "iteration": 900}, (3300, 440, 40)),
        (SAMPLES | {"global_batch_size": None, "world_size": 4}, (8100, 440, 40)),
        (SAMPLES | {"rampup_batch_size": ["4", "4", "800"]}, (8100, 480, 40)),  # 200 steps of 4, and 912 of 8
    ],
)
def test_sample_counts(changes, sizes):
    assert train_valid_test_num_samples(arguments(**changes)) == sizes


def test_schedule_counts_steps_of_every_size_and_warns_of_iterations():
    args = arguments(train_samples=8100, eval_interval=100, eval_iters=1, step_batch_size_schedule="0:4 128000:8")
    # 2000 samples in steps of 4, then 6100 in steps of 8: 500 + 763 steps
    assert train_valid_test_num_samples(args) == (8100, 13 * 2, 2)
    assert batch_sizes_of(args).batch_size(2000) == 8
    args = arguments(**ITERATIONS | {"global_batch_size": None, "step_batch_size_schedule": "0:4 128000:8"})
    with pytest.warns(IgnoredSettingWarning, match="1000 steps of 2 samples; pass --train-samples instead"):
        assert train_valid_test_num_samples(args)[0] == 2000


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"global_batch_size": 8}, "no --train-iters and no --train-samples"),
        (ITERATIONS | {"eval_interval": None}, "--eval-interval"),
        (ITERATIONS | {"phase_transition_iterations": "250"}, "no --train-samples given"),
        (SAMPLES | {"phase_transition_iterations": "250,x"}, "item 2 'x'"),
        (SAMPLES | {"phase_transition_iterations": "250", "iteration": 2000}, "past the end of the run"),
        (SAMPLES | {"phase_transition_iterations": "9", "rampup_batch_size": [4, 4, 8]}, "constant batch size"),
        (SAMPLES | {"step_batch_size_schedule": "0:4", "rampup_batch_size": [4, 4, 8]}, "--rampup-batch-size"),
        (SAMPLES | {"global_batch_size": None, "micro_batch_size": None}, "--micro-batch-size"),
        (SAMPLES | {"global_batch_size": None, "world_size": 3, "tensor_model_parallel_size": 2}, "world size"),
    ],
)
def test_wrong_counts(changes, words):
    with pytest.raises(ConfigError, match=words):
        train_valid_test_num_samples(arguments(**changes))


@pytest.mark.parametrize(
    ("text", "seq_length", "sizes"),
    [
        ("0:768 250B:1536 500B:3072", 4096, ((0, 768), (61035156, 1536), (122070312, 3072))),
        ("0:768, 61035156250:1536", None, ((0, 768), (61035156250, 1536))),
        ("1k:8,0:4", None, ((0, 4), (1000, 8))),  # any order, suffixes of samples
        ("0:1K 1e3:1.5K", None, ((0, 1000), (1000, 1500))),
        ("0:4 1_000:8 .5M:16", 10, ((0, 4), (100, 8), (50000, 16))),
        ("0:4 0.00435K:8", None, ((0, 4), (4, 8))),
        ("0:4 2.3B:8 4.35B:16 0.57T:32", 1, ((0, 4), (2_300_000_000, 8), (4_350_000_000, 16), (570_000_000_000, 32))),
    ],
)
def test_step_schedules(text, seq_length, sizes):
    assert step_batch_size_schedule(text, seq_length).sizes == sizes


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "`sizes` is empty"),
        ("5:4", "the consumed samples of .*: must be in .0, 1., got 5"),
        ("0:4 8", "'8'"),
        ("0:4 nan:8", "'nan:8'"),
        ("0:4 0:8", "the consumed samples of .*: must be 1 or more, got 0"),
        ("0:4 10:0", "batch size"),
    ],
)
def test_wrong_step_schedules(text, words):
    with pytest.raises(ConfigError, match=words):
        step_batch_size_schedule(text)


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


def test_a_shell_script_and_unreadable_files(tmp_path):
    found = parse_arguments(SCRIPT, where="`train.sh`")
    assert found["data-path"] == ["0.8", "web_text_document", "0.2", "code_text_document"]
    assert found["seq-length"] == ["4096"]
    assert (found["seed"], found["train-iters"], found["bf16"]) == (["42"], ["100"], [])
    assert "split" not in found
    with pytest.raises(ConfigError, match=r"`--tokenizer-model`: the file does not define the variable in '\$HOME/tok"):
        take_arguments(found)
    (tmp_path / "args").write_text("--seed 1\n--data-path 'web\n")
    with pytest.raises(ConfigError, match="args`: cannot split the line"):
        read_arguments(str(tmp_path / "args"))
    with pytest.raises(ConfigError, match="cannot read"):
        read_arguments(str(tmp_path / "none"))
