"""`tokenloom.megatron.args`."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from types import ModuleType

import pytest
from tests.megatron.arguments import arguments
from tests.support import CharacterTokenizer, StandInWordPieces

from tokenloom.errors import ConfigError, IgnoredSettingWarning
from tokenloom.megatron import args as megatron_args
from tokenloom.megatron.args import config_from_args, dataset_class_from_args, dataset_kind, tokenizer_from_args
from tokenloom.megatron.core.datasets.bert_dataset import BERTMaskedWordPieceDataset, BERTMaskedWordPieceDatasetConfig
from tokenloom.megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig, MockGPTDataset
from tokenloom.megatron.core.datasets.multimodal_dataset import MockMultimodalDataset, MultimodalDatasetConfig
from tokenloom.megatron.core.datasets.t5_dataset import T5MaskedWordPieceDataset, T5MaskedWordPieceDatasetConfig
from tokenloom.megatron.training.datasets.fim_dataset import GPTFIMDataset, GPTFIMDatasetConfig
from tokenloom.megatron.training.datasets.sft_dataset import MockSFTDataset, SFTDataset
from tokenloom.megatron.training.datasets.varlen_dataset import MockVarlenDataset, VarlenDataset

DATA = {"data_path": ["0.3", "a", "0.7", "b"], "split": "98,1,1"}

GPT = {
    "random_seed": 1234,
    "sequence_length": 64,
    "blend": (["a", "b"], [0.3, 0.7]),
    "blend_per_split": None,
    "split": "98,1,1",
    "multiple_validation_sets": False,
    "full_validation": False,
    "num_dataset_builder_threads": 1,
    "path_to_cache": None,
    "mmap_bin_files": True,
    "reset_position_ids": False,
    "reset_attention_mask": False,
    "eod_mask_loss": False,
    "create_attention_mask": True,
    "object_storage_cache_path": None,
    "mid_level_dataset_surplus": 0.005,
    "allow_ambiguous_pad_tokens": False,
    "fast_cache_load": False,
    "sequences_per_dataset": None,
    "defer_npy_index_mmap": False,
    "context_parallel_size": 1,
    "data_parallel_size": 1,
    "sequence_parallel_size": 0,
    "hybrid_context_parallel": False,
    "inter_document_masking": False,
}
"""What `pretrain_gpt.py` makes of these arguments."""

MASKED = {
    "masking_probability": 0.15,
    "short_sequence_probability": 0.1,
    "masking_do_full_word": True,
    "masking_do_permutation": False,
    "masking_use_longer_ngrams": False,
}


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
        ({"multiple_validation_sets": True}, {"multiple_validation_sets": True}),
        (
            {"data_cache_path": "c", "dataloader_defer_npy_index_mmap": True},
            {"path_to_cache": "c", "defer_npy_index_mmap": True},
        ),
        ({"eod_mask_loss": True, "reset_position_ids": True}, {"eod_mask_loss": True, "reset_position_ids": True}),
        ({"reset_attention_mask": True}, {"reset_attention_mask": True}),
        ({"create_attention_mask_in_dataloader": False}, {"create_attention_mask": False}),
        ({"dataloader_inter_document_masking": True}, {"inter_document_masking": True, "create_attention_mask": False}),
        (
            {"mmap_bin_files": False, "num_dataset_builder_threads": 3},
            {"mmap_bin_files": False, "num_dataset_builder_threads": 3},
        ),
        ({"object_storage_cache_path": "o"}, {"object_storage_cache_path": "o"}),
        ({"s3_cache_path": "o"}, {"object_storage_cache_path": "o"}),
        ({"mid_level_dataset_surplus": 0.1}, {"mid_level_dataset_surplus": 0.1}),
        ({"allow_ambiguous_pad_tokens": True}, {"allow_ambiguous_pad_tokens": True}),
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
def test_settings_are_those_of_the_training_script(changes, expected):
    assert settings_of(changes, GPT) == (GPTDatasetConfig, GPT | expected)


def test_each_kind_has_its_settings():
    tokens = {role: f"<{role}>" for role in ("prefix", "middle", "suffix", "pad", "eod")}
    fim = {"fim_data": True, "fim_no_prefix": "x", **{f"fim_{role}_token": token for role, token in tokens.items()}}
    of_fim = {"fim_rate": 0.5, "fim_spm_rate": 0.5, "fim_extra_tokens": tokens, "fim_no_prefix": "x"}
    sft = {"sft": True, "create_attention_mask_in_dataloader": False}
    bert = {"tokenizer_type": "BertWordPieceLowerCase", "mask_prob": 0.2}
    of_bert = MASKED | {"masking_probability": 0.2, "masking_max_ngram": 3, "classification_head": True}
    t5 = {"tokenizer_type": "BertWordPieceCase", "decoder_seq_length": 16, "seq_length": 24}
    of_t5 = MASKED | {
        "masking_max_ngram": 10,
        "sequence_length_decoder": 16,
        "masking_use_geometric_distribution": True,
    }
    vlm = {"data_path": None, "mock_data": True, "dataloader_seq_length": 48}
    of_vlm = {"sequence_length": 48, "image_h": 224, "image_w": 224, "preprocess_func": str, "mock": True}
    pieces = StandInWordPieces(num_sentinels=90, vocab_size=200)
    cases = [
        (fim, GPTFIMDatasetConfig, of_fim, {}),
        (sft, GPTDatasetConfig, {"create_attention_mask": False}, {}),
        ({"use_varlen_dataset": True}, GPTDatasetConfig, {"sequence_length": 64}, {}),
        (bert, BERTMaskedWordPieceDatasetConfig, of_bert, {"tokenizer": pieces}),
        (t5, T5MaskedWordPieceDatasetConfig, of_t5, {"tokenizer": pieces}),
        (vlm, MultimodalDatasetConfig, of_vlm, {"preprocess_func": str}),
    ]
    for changes, kind, expected, more in cases:
        assert settings_of(changes, expected, **more) == (kind, expected)
    assert settings_of({}, of_bert, kind="bert", tokenizer=pieces)[0] is BERTMaskedWordPieceDatasetConfig


def test_classes_fit_the_arguments():
    cases = [
        ({}, GPTDataset),
        ({"mock_data": True}, MockGPTDataset),
        ({"fim_data": True}, GPTFIMDataset),
        ({"sft": True}, SFTDataset),
        ({"sft": True, "mock_data": True}, MockSFTDataset),
        ({"use_varlen_dataset": True}, VarlenDataset),
        ({"use_varlen_dataset": True, "mock_data": True}, MockVarlenDataset),
        ({"tokenizer_type": "BertWordPieceCase"}, BERTMaskedWordPieceDataset),
        ({"decoder_seq_length": 16}, T5MaskedWordPieceDataset),
        ({"dataloader_seq_length": 16}, MockMultimodalDataset),
    ]
    for changes, expected in cases:
        assert dataset_class_from_args(arguments(**changes)) is expected
    assert dataset_class_from_args({}, kind="t5") is T5MaskedWordPieceDataset


@pytest.mark.parametrize(
    ("changes", "more", "words"),
    [
        ({"fim_data": True, "sft": True}, {}, "--fim-data and --sft exclude each other"),
        ({"fim_data": True, "fim_rate": 0.0}, {}, "--fim-rate above 0"),
        ({"fim_data": True, "fim_pad_token": None}, {}, "--fim-pad-token with --fim-data"),
        ({"fim_data": True, "data_path": None, "mock_data": True}, {}, "--fim-data and --mock-data"),
        ({"encoder_seq_length": 32}, {}, "--seq-length 64 and --encoder-seq-length 32"),
        ({"seq_length": None}, {}, "expected --seq-length"),
        ({"data_args_path": "x"}, {}, "in one way"),
        ({"dataloader_fast_cache_load": True}, {}, "path_to_cache"),
        ({"dataloader_inter_document_masking": True, "reset_position_ids": True}, {}, "exclude each other"),
        ({"sft": True}, {"kind": "bert"}, "arguments for the kind bert, found some for sft"),
        ({}, {"kind": "rnn"}, "out of gpt, fim"),
        ({"tokenizer_type": None}, {"tokenizer": None}, "expected --tokenizer-type"),
    ],
)
def test_contradictions_are_said(changes, more, words):
    with pytest.raises(ConfigError, match=words):
        config_from_args(arguments(**DATA | changes), **{"tokenizer": CharacterTokenizer(), **more})


def test_mock_data_of_no_kind_is_said():
    with pytest.raises(ConfigError, match="makes up no data of the kind t5"):
        dataset_class_from_args(arguments(decoder_seq_length=5, mock_data=True))


def test_what_has_no_effect_is_said():
    with pytest.warns(IgnoredSettingWarning, match="nothing here knows .* --dataloader-speed 9"):
        config_from_args(arguments(**DATA, dataloader_speed=9, dataloader_off=False), tokenizer=CharacterTokenizer())
    changes = DATA | {"tokenizer_type": "BertWordPieceCase", "reset_position_ids": True}
    with pytest.warns(IgnoredSettingWarning, match="of the kind bert: --reset-position-ids"):
        config_from_args(arguments(**changes), tokenizer=StandInWordPieces())


def test_older_arguments_and_mappings_will_do():
    """Arguments that a version does not have keep the settings' own values."""
    few = {"seed": 1, "seq_length": 8, "data_path": ["a"], "split": "1,1,1"}
    resets = {"reset_position_ids": False, "reset_attention_mask": False, "eod_mask_loss": False}
    config = config_from_args(few | resets, tokenizer=CharacterTokenizer())
    same = config_from_args(Namespace(**few, **resets), tokenizer=config.tokenizer)
    assert vars(config) == vars(same)
    assert (config.create_attention_mask, config.data_parallel_size) == (True, 1)
    assert dataset_kind({}) == "gpt"


def test_the_references_tokenizer_is_taken_where_there_is_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    module = ModuleType("build_tokenizer")
    module.build_tokenizer = lambda args: ("the reference's", args.tokenizer_type)
    args = arguments(tokenizer_type="NullTokenizer", vocab_size=50)
    monkeypatch.setattr(megatron_args, "_is_importable", lambda name: True)
    monkeypatch.setattr(megatron_args, "import_module", lambda name: module)
    assert tokenizer_from_args(args) == ("the reference's", "NullTokenizer")
    monkeypatch.setattr(megatron_args, "_is_importable", lambda name: False)
    assert tokenizer_from_args(args).vocab_size == 50
