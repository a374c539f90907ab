"""The reference's arguments as settings: `config_from_args(args)` in the place of its training scripts' own code.

What `pretrain_gpt.py`, `pretrain_bert.py`, `pretrain_t5.py` and `pretrain_vlm.py` make of their arguments, from
whichever version's parser. Arguments that contradict each other are refused, and those about data that nothing here
knows are said.
"""

from __future__ import annotations

import dataclasses
import warnings
from argparse import Namespace
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from tokenloom.errors import ConfigError, IgnoredSettingWarning
from tokenloom.megatron.arg_blends import get_blend_and_blend_per_split, sequences_from_args
from tokenloom.megatron.sample_counts import argument_values, data_parallel_size, train_valid_test_num_samples
from tokenloom.tokenizers.reference_types import ReferenceTokenizerOptions, load_reference_tokenizer

__all__ = [
    "config_from_args",
    "dataset_class_from_args",
    "dataset_kind",
    "get_blend_and_blend_per_split",
    "tokenizer_from_args",
    "train_valid_test_num_samples",
]

_HERE = "tokenloom.megatron"

_COMMON = {
    "seed": "random_seed",
    "seq_length": "sequence_length",
    "split": "split",
    "multiple_validation_sets": "multiple_validation_sets",
    "full_validation": "full_validation",
    "num_dataset_builder_threads": "num_dataset_builder_threads",
    "data_cache_path": "path_to_cache",
    "mmap_bin_files": "mmap_bin_files",
    "mid_level_dataset_surplus": "mid_level_dataset_surplus",
    "allow_ambiguous_pad_tokens": "allow_ambiguous_pad_tokens",
    "dataloader_fast_cache_load": "fast_cache_load",
    "dataloader_defer_npy_index_mmap": "defer_npy_index_mmap",
}
"""Arguments and the settings that they are, of every kind of dataset."""

_GPT = {
    "reset_position_ids": "reset_position_ids",
    "reset_attention_mask": "reset_attention_mask",
    "eod_mask_loss": "eod_mask_loss",
    "create_attention_mask_in_dataloader": "create_attention_mask",
    "object_storage_cache_path": "object_storage_cache_path",
    "s3_cache_path": "object_storage_cache_path",
    "context_parallel_size": "context_parallel_size",
    "hybrid_context_parallel": "hybrid_context_parallel",
    "dataloader_inter_document_masking": "inter_document_masking",
    "sft_mock_dataset_config_json": "sft_mock_dataset_config_json",
    "varlen_mock_dataset_config_json": "varlen_mock_dataset_config_json",
    "varlen_sbhd_validation": "varlen_sbhd_validation",
}
_FIM = {name: name for name in ("fim_rate", "fim_spm_rate", "fim_split_sample", "fim_fragment_rate", "fim_no_prefix")}
_FIM_TOKENS = ("prefix", "middle", "suffix", "pad", "eod")
_MASKED = {"mask_prob": "masking_probability", "short_seq_prob": "short_sequence_probability"}
_MASKING = {
    "masking_do_full_word": True,
    "masking_do_permutation": False,
    "masking_use_longer_ngrams": False,
}
"""What the reference's scripts set without an argument."""


@dataclass(frozen=True)
class _Kind:
    """A kind of dataset: where its classes are, which arguments are its settings, and what is set without one."""

    module: str
    dataset: str
    config: str
    fields: Mapping[str, str]
    fixed: Mapping[str, Any] = field(default_factory=dict)
    mock: str = ""


_KINDS = {
    "gpt": _Kind("core.datasets.gpt_dataset", "GPTDataset", "GPTDatasetConfig", _GPT, mock="MockGPTDataset"),
    "fim": _Kind("training.datasets.fim_dataset", "GPTFIMDataset", "GPTFIMDatasetConfig", _GPT | _FIM),
    "sft": _Kind("training.datasets.sft_dataset", "SFTDataset", "GPTDatasetConfig", _GPT, mock="MockSFTDataset"),
    "varlen": _Kind(
        "training.datasets.varlen_dataset", "VarlenDataset", "GPTDatasetConfig", _GPT, mock="MockVarlenDataset"
    ),
    "bert": _Kind(
        "core.datasets.bert_dataset",
        "BERTMaskedWordPieceDataset",
        "BERTMaskedWordPieceDatasetConfig",
        _MASKED | {"bert_binary_head": "classification_head"},
        _MASKING | {"masking_max_ngram": 3, "masking_use_geometric_distribution": False},
    ),
    "t5": _Kind(
        "core.datasets.t5_dataset",
        "T5MaskedWordPieceDataset",
        "T5MaskedWordPieceDatasetConfig",
        _MASKED | {"decoder_seq_length": "sequence_length_decoder"},
        _MASKING | {"masking_max_ngram": 10, "masking_use_geometric_distribution": True},
    ),
    "multimodal": _Kind(
        "core.datasets.multimodal_dataset",
        "MockMultimodalDataset",
        "MultimodalDatasetConfig",
        _GPT | {"img_h": "image_h", "img_w": "image_w"},
        mock="MockMultimodalDataset",
    ),
}

_TOKENIZER = {
    **dict.fromkeys(("tokenizer_model", "vocab_file", "merge_file", "vocab_size", "chat_template", "special_tokens")),
    **dict.fromkeys(("tokenizer_special_tokens", "tokenizer_metadata", "metadata_path", "tiktoken_pattern")),
    **dict.fromkeys(("tokenizer_hf_use_fast", "tokenizer_hf_no_use_fast", "trust_remote_code", "use_gigatoken"), False),
    **dict.fromkeys(("tokenizer_hf_include_special_tokens", "tokenizer_hf_no_include_special_tokens"), False),
    **dict.fromkeys(("tokenizer_sentencepiece_legacy", "pad_vocab_size"), False),
    "tokenizer_sentencepiece_ignore_extra_whitespaces": True,
    "tiktoken_num_special_tokens": 1000,
}
"""What the tokenizers of any version of the reference ask for, where the arguments do not say."""

_ELSEWHERE = {
    *("data_path", "data_args_path", "train_data_path", "valid_data_path", "test_data_path"),
    *(
        "per_split_data_args_path",
        "per_dataset_sequences_path",
        "fim_data",
        *(f"fim_{role}_token" for role in _FIM_TOKENS),
    ),
    *("dataloader_type", "dataloader_seq_length", "dataloader_save", "sft", "sft_tokenizer_prompt_format"),
    *("data_parallel_size", "data_parallel_random_init", "data_parallel_sharding_strategy", "data_per_class_fraction"),
    *("data_sharding", "data_parallel_replicate_degree"),
}
"""Arguments whose names look like data's, read in other ways or by other parts of the trainer."""

_ABOUT_DATA = (
    *("data_", "dataloader_", "fim_", "sft_", "varlen_", "per_split_", "per_dataset_", "object_storage_"),
    *("mid_level_", "train_data_", "valid_data_", "test_data_", "train_on_"),
)
"""How the names of arguments about data begin."""


def dataset_kind(args: Any) -> str:
    """Returns which kind of dataset the arguments ask for: gpt, fim, sft, varlen, bert, t5 or multimodal.

    The reference's scripts know it themselves. Here it is told by what only one of them takes: `--fim-data`, `--sft`,
    `--use-varlen-dataset`, `--decoder-seq-length` (T5), `--dataloader-seq-length` (multimodal), and a word-piece
    tokenizer (BERT).

    Raises:
        ConfigError: the arguments ask for several.
    """
    values = argument_values(args)
    asked = {
        "fim": ("--fim-data", bool(values.get("fim_data"))),
        "sft": ("--sft", bool(values.get("sft"))),
        "varlen": ("--use-varlen-dataset", bool(values.get("use_varlen_dataset"))),
        "t5": ("--decoder-seq-length", values.get("decoder_seq_length") is not None),
        "multimodal": ("--dataloader-seq-length", values.get("dataloader_seq_length") is not None),
    }
    kinds = [kind for kind, (_, is_asked) in asked.items() if is_asked]
    if len(kinds) > 1:
        flags = " and ".join(asked[kind][0] for kind in kinds)
        message = f"{flags} exclude each other, found both"
        raise ConfigError(message)
    if kinds:
        return kinds[0]
    return "bert" if str(values.get("tokenizer_type")).startswith("BertWordPiece") else "gpt"


def config_from_args(
    args: Any,
    *,
    tokenizer: Any = None,
    kind: str | None = None,
    preprocess_func: Callable[[Any], Any] | None = None,
) -> Any:
    """Returns the settings of the datasets that the trainer's arguments ask for.

    Args:
        args: the arguments, validated or as they were parsed, of any version; a mapping will do.
        tokenizer: tokenizer of the data; None to load it, see `tokenizer_from_args`.
        kind: one of those of `dataset_kind`, where the arguments do not tell; BERT with another tokenizer, say.
        preprocess_func: of multimodal data; see `MultimodalDatasetConfig`.

    Returns:
        An object of the configuration class of this kind, as `tokenloom.megatron` has it.

    Raises:
        ConfigError: arguments contradict each other, one that is needed is missing, or one cannot be a setting.
    """
    values = _settled(argument_values(args))
    name = _checked_kind(values, kind)
    known = _KINDS[name]
    config_class = _class(known, known.config)
    settable = {each.name for each in dataclasses.fields(config_class) if each.init}
    blend, blend_per_split = get_blend_and_blend_per_split(values)
    settings: dict[str, Any] = {"blend": blend, "blend_per_split": blend_per_split, **known.fixed}
    for argument, setting in {**_COMMON, **known.fields}.items():
        value = values.get(argument)
        if value is None:
            continue
        if setting not in settable:
            message = f"{_flag(argument)} is no setting of {config_class.__name__}, found {value!r}"
            raise ConfigError(message, hint="leave it out")
        settings[setting] = value
    settings |= _computed(name, values)
    if preprocess_func is not None:
        settings["preprocess_func"] = preprocess_func
    _say_ignored(values, name, known.fields)
    settings["tokenizer"] = tokenizer_from_args(values) if tokenizer is None else tokenizer
    return config_class(**settings)


def dataset_class_from_args(args: Any, *, kind: str | None = None) -> Any:
    """Returns the class of the datasets that the arguments ask for, made up ones with `--mock-data`.

    Raises:
        ConfigError: they ask for several, or nothing of this kind can be made up.
    """
    values = argument_values(args)
    name = _checked_kind(values, kind)
    known = _KINDS[name]
    if not values.get("mock_data"):
        return _class(known, known.dataset)
    if not known.mock:
        message = f"--mock-data makes up no data of the kind {name}"
        raise ConfigError(message, hint="name some with --data-path")
    return _class(known, known.mock)


def tokenizer_from_args(args: Any) -> Any:
    """Returns the tokenizer that the arguments name: the reference's own where it is installed, else ours.

    Index caches are told apart by their tokenizer: a cache is found again by a run that has the same one.

    Raises:
        ConfigError: none is named, or nothing can be made of its arguments.
        TokenizerError: a file is no tokenizer, or its special tokens are not there.
    """
    values = argument_values(args)
    if values.get("tokenizer_type") is None:
        message = "expected --tokenizer-type, found none"
        raise ConfigError(message, hint="or pass `tokenizer`")
    for module in (
        "megatron.core.tokenizers.utils.build_tokenizer",
        "megatron.core.tokenizers.text.utils.build_tokenizer",
    ):
        if _is_importable(module):
            given = {name: value for name, value in values.items() if value is not None}
            return import_module(module).build_tokenizer(Namespace(**{**values, **_TOKENIZER, **given}))
    return load_reference_tokenizer(ReferenceTokenizerOptions.of(values))


def _checked_kind(values: Mapping[str, Any], kind: str | None) -> str:
    told = dataset_kind(values)
    if kind is None:
        return told
    if kind not in _KINDS:
        message = f"expected a kind of dataset out of {', '.join(_KINDS)}, found {kind!r}"
        raise ConfigError(message)
    if told not in (kind, "gpt", "bert"):
        message = f"expected arguments for the kind {kind}, found some for {told}"
        raise ConfigError(message)
    return kind


def _settled(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns arguments with what the trainer's own checks make of them, whether they have been there or not."""
    settled = dict(values)
    length, encoder = settled.get("seq_length"), settled.get("encoder_seq_length")
    if length is not None and encoder is not None and length != encoder:
        message = f"--seq-length {length} and --encoder-seq-length {encoder} exclude each other, found both"
        raise ConfigError(message)
    settled["seq_length"] = encoder if length is None else length
    if settled["seq_length"] is None:
        message = "expected --seq-length, found none"
        raise ConfigError(message)
    if settled.get("data_path") is not None and settled.get("split") is None:
        settled["split"] = "969, 30, 1"  # as the trainer says it
    if settled.get("dataloader_inter_document_masking"):
        settled["create_attention_mask_in_dataloader"] = False
    return settled


def _computed(kind: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings that follow from several arguments."""
    if kind in ("bert", "t5"):
        return {}
    settings: dict[str, Any] = {"data_parallel_size": data_parallel_size(values)}
    tensor = values.get("tensor_model_parallel_size") or 1
    settings["sequence_parallel_size"] = tensor * bool(values.get("sequence_parallel"))
    if (sequences := sequences_from_args(values)) is not None:
        settings["sequences_per_dataset"] = sequences
    if kind == "multimodal" and values.get("dataloader_seq_length") is not None:
        settings["sequence_length"] = values["dataloader_seq_length"]
    if kind == "fim":
        settings["fim_extra_tokens"] = _fim_tokens(values)
    return settings


def _fim_tokens(values: Mapping[str, Any]) -> dict[str, Any]:
    if values.get("mock_data"):
        message = "--fim-data and --mock-data exclude each other, found both"
        raise ConfigError(message)
    for name in ("fim_rate", "fim_spm_rate"):
        if not values.get(name):
            message = f"expected {_flag(name)} above 0 with --fim-data, found {values.get(name)!r}"
            raise ConfigError(message)
    tokens = {role: values.get(f"fim_{role}_token") for role in _FIM_TOKENS}
    if missing := [role for role, token in tokens.items() if token is None]:
        message = f"expected {' and '.join(_flag(f'fim_{role}_token') for role in missing)} with --fim-data, found none"
        raise ConfigError(message)
    return tokens


def _say_ignored(values: Mapping[str, Any], kind: str, fields: Mapping[str, str]) -> None:
    """Warns of arguments about data that have no effect on datasets of this kind, or that nothing here knows."""
    used = {*_COMMON, *fields, *_ELSEWHERE}
    others = {argument for known in _KINDS.values() for argument in known.fields}
    set_ = {argument for argument, value in values.items() if value not in (None, False, [], "")}
    unknown = sorted(name for name in set_ - used - others if name.startswith(_ABOUT_DATA))
    if unknown:
        shown = ", ".join(f"{_flag(name)} {values[name]!r}" for name in unknown)
        message = f"nothing here knows these arguments, which have no effect: {shown}"
        warnings.warn(message, IgnoredSettingWarning, stacklevel=3)
    if kind in ("bert", "t5"):
        without = [name for name in ("reset_position_ids", "reset_attention_mask", "eod_mask_loss") if values.get(name)]
        if values.get("per_dataset_sequences_path") is not None:
            without.append("per_dataset_sequences_path")
        if without:
            message = f"without effect on datasets of the kind {kind}: {', '.join(map(_flag, without))}"
            warnings.warn(message, IgnoredSettingWarning, stacklevel=3)


def _class(known: _Kind, name: str) -> Any:
    """Returns a class of a kind: of its own module, else of the one that GPT's are in."""
    module = import_module(f"{_HERE}.{known.module}")
    if not hasattr(module, name):
        module = import_module(f"{_HERE}.{_KINDS['gpt'].module}")
    return getattr(module, name)


def _is_importable(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ImportError:
        return False


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
