"""Converts the arguments of Megatron's trainer to dataset configurations, tokenizers and sample counts.

`config_from_args(args)` replaces code of `pretrain_gpt.py`, `pretrain_bert.py`, `pretrain_t5.py` and `pretrain_vlm.py`
of any Megatron version. Contradicting arguments are errors; unknown data arguments cause warnings.
"""

from __future__ import annotations

import dataclasses
import warnings
from argparse import Namespace
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from itertools import pairwise
from typing import Any, NamedTuple

from tokenloom.datasets.blends import Blend
from tokenloom.datasets.splits import Split
from tokenloom.errors import ConfigError, IgnoredSettingWarning
from tokenloom.loading.batch_sizes import BatchSizeRampup, BatchSizes, BatchSizeSchedule
from tokenloom.megatron.core.datasets.utils import get_blend_from_list
from tokenloom.numbers import checked_integer, items_of, parse_integer, quoted
from tokenloom.storage.json_files import UnusableJsonError, parse_json
from tokenloom.storage.resolve import map_whole
from tokenloom.tokenizers.reference_types import ReferenceTokenizerOptions, load_reference_tokenizer


def _same(*names: str) -> dict[str, str]:
    return {name: name for name in names}


_COMMON = {
    **_same("split", "multiple_validation_sets", "full_validation", "num_dataset_builder_threads", "mmap_bin_files"),
    **_same("mid_level_dataset_surplus", "allow_ambiguous_pad_tokens"),
    "seed": "random_seed",
    "seq_length": "sequence_length",
    "data_cache_path": "path_to_cache",
    "dataloader_fast_cache_load": "fast_cache_load",
    "dataloader_defer_npy_index_mmap": "defer_npy_index_mmap",
}
"""{argument: setting} for the arguments that apply to all kinds of datasets."""

_GPT = {
    **_same("reset_position_ids", "reset_attention_mask", "eod_mask_loss", "object_storage_cache_path"),
    **_same("context_parallel_size", "hybrid_context_parallel", "sft_mock_dataset_config_json"),
    **_same("varlen_mock_dataset_config_json", "varlen_sbhd_validation"),
    "create_attention_mask_in_dataloader": "create_attention_mask",
    "s3_cache_path": "object_storage_cache_path",
    "dataloader_inter_document_masking": "inter_document_masking",
}
_FIM = _same("fim_rate", "fim_spm_rate", "fim_split_sample", "fim_fragment_rate", "fim_no_prefix")
_FIM_TOKENS = ("prefix", "middle", "suffix", "pad", "eod")
_MASKED = {"mask_prob": "masking_probability", "short_seq_prob": "short_sequence_probability"}
_MASKING = {"masking_do_full_word": True, "masking_do_permutation": False, "masking_use_longer_ngrams": False}
"""Settings of masked datasets that are constants in Megatron's scripts."""


class _Kind(NamedTuple):
    """A kind of dataset: its `config` class in `module`, `fields` as {argument: setting}, constant settings `fixed`."""

    module: str
    config: str
    fields: Mapping[str, str]
    fixed: Mapping[str, Any] = {}


_KINDS = {
    **dict.fromkeys(("gpt", "sft", "varlen"), _Kind("core.datasets.gpt_dataset", "GPTDatasetConfig", _GPT)),
    "fim": _Kind("training.datasets.fim_dataset", "GPTFIMDatasetConfig", _GPT | _FIM),
    "bert": _Kind(
        "core.datasets.bert_dataset",
        "BERTMaskedWordPieceDatasetConfig",
        _MASKED | {"bert_binary_head": "classification_head"},
        _MASKING | {"masking_max_ngram": 3, "masking_use_geometric_distribution": False},
    ),
    "t5": _Kind(
        "core.datasets.t5_dataset",
        "T5MaskedWordPieceDatasetConfig",
        _MASKED | {"decoder_seq_length": "sequence_length_decoder"},
        _MASKING | {"masking_max_ngram": 10, "masking_use_geometric_distribution": True},
    ),
    "multimodal": _Kind(
        "core.datasets.multimodal_dataset",
        "MultimodalDatasetConfig",
        _GPT | {"img_h": "image_h", "img_w": "image_w"},
    ),
}

_SELECTORS = {
    "fim": "fim_data",
    "sft": "sft",
    "varlen": "use_varlen_dataset",
    "t5": "decoder_seq_length",
    "multimodal": "dataloader_seq_length",
}
"""The argument that selects each kind of dataset."""

_TOKENIZER = {
    **dict.fromkeys(("tokenizer_model", "vocab_file", "merge_file", "vocab_size", "chat_template", "special_tokens")),
    **dict.fromkeys(("tokenizer_special_tokens", "tokenizer_metadata", "metadata_path", "tiktoken_pattern")),
    **dict.fromkeys(("tokenizer_hf_use_fast", "tokenizer_hf_no_use_fast", "trust_remote_code", "use_gigatoken"), False),
    **dict.fromkeys(("tokenizer_hf_include_special_tokens", "tokenizer_hf_no_include_special_tokens"), False),
    **dict.fromkeys(("tokenizer_sentencepiece_legacy", "pad_vocab_size"), False),
    "tokenizer_sentencepiece_ignore_extra_whitespaces": True,
    "tiktoken_num_special_tokens": 1000,
}
"""Defaults of the arguments that Megatron's tokenizers read, in any version."""

_DATA_PREFIXES = ("dataloader_", "fim_", "sft_", "varlen_", "object_storage_", "mid_level_", "train_on_")
_NOT_SETTINGS = {
    *("fim_data", *(f"fim_{role}_token" for role in _FIM_TOKENS)),
    *("dataloader_type", "dataloader_seq_length", "dataloader_save", "sft_tokenizer_prompt_format"),
}
"""Known arguments that begin with one of `_DATA_PREFIXES`, but do not map to a single setting."""


def dataset_kind(args: Any, kind: str | None = None) -> str:
    """Returns the kind of dataset that the arguments select: gpt, fim, sft, varlen, bert, t5 or multimodal.

    `--fim-data`, `--sft`, `--use-varlen-dataset`, `--decoder-seq-length` (T5) and `--dataloader-seq-length`
    (multimodal) select a kind. Without these options, the kind is `kind` if given, else bert for a word-piece
    tokenizer, else gpt.

    Raises:
        ConfigError: the options select two kinds, or a kind other than `kind`; or `kind` is unknown.
    """
    if kind is not None and kind not in _KINDS:
        raise ConfigError(f"unknown kind of dataset {kind!r}", hint=f"choose one of {', '.join(_KINDS)}")
    values = argument_values(args)
    selected = [name for name, argument in _SELECTORS.items() if values.get(argument) not in (None, False)]
    if len(selected) > 1:
        raise ConfigError(f"{' and '.join(_flag(_SELECTORS[name]) for name in selected)} exclude each other")
    if selected and kind not in (None, *selected):
        raise ConfigError(f"`kind`: {_flag(_SELECTORS[selected[0]])} selects {selected[0]!r}, got {kind!r}")
    is_bert = str(values.get("tokenizer_type")).startswith("BertWordPiece")
    return kind or (selected[0] if selected else "bert" if is_bert else "gpt")


def config_from_args(
    args: Any,
    *,
    tokenizer: Any = None,
    kind: str | None = None,
    preprocess_func: Callable[[Any], Any] | None = None,
) -> Any:
    """Returns the dataset configuration for the trainer's arguments, such as a `GPTDatasetConfig`.

    Args:
        args: namespace or mapping with arguments of any Megatron version, before or after the trainer validates them.
        tokenizer: tokenizer of the data; None to load the tokenizer that `args` specifies, see `tokenizer_from_args`.
        kind: kind of dataset, see `dataset_kind`; None to derive the kind from `args`.
        preprocess_func: the setting `preprocess_func` of `MultimodalDatasetConfig`; None for other kinds.

    Raises:
        ConfigError: arguments contradict each other, a required argument is missing, or a value is invalid.
    """
    values = _validated(argument_values(args))
    name = dataset_kind(values, kind)
    known = _KINDS[name]
    config_class = getattr(import_module(f"tokenloom.megatron.{known.module}"), known.config)
    settable = {each.name for each in dataclasses.fields(config_class) if each.init}
    blend, blend_per_split = get_blend_and_blend_per_split(values)
    settings: dict[str, Any] = {"blend": blend, "blend_per_split": blend_per_split, **known.fixed}
    for argument, setting in {**_COMMON, **known.fields}.items():
        value = values.get(argument)
        if value is None:
            continue
        if setting not in settable:
            message = f"{_flag(argument)}: {config_class.__name__} has no setting for this argument, got {value!r}"
            raise ConfigError(message, hint="omit the argument")
        settings[setting] = value
    settings |= _derived_settings(name, values)
    if preprocess_func is not None:
        settings["preprocess_func"] = preprocess_func
    _warn_ignored(values, name)
    settings["tokenizer"] = tokenizer_from_args(values) if tokenizer is None else tokenizer
    return config_class(**settings)


def tokenizer_from_args(args: Any) -> Any:
    """Returns the tokenizer that the arguments specify: Megatron's own if Megatron is installed, else tokenloom's.

    The tokenizer's class is part of index cache keys, so Megatron's tokenizer and tokenloom's do not share caches.
    """
    values = argument_values(args)
    if values.get("tokenizer_type") is None:
        raise ConfigError("no --tokenizer-type given", hint="pass --tokenizer-type, or the argument `tokenizer`")
    for module in (
        "megatron.core.tokenizers.utils.build_tokenizer",
        "megatron.core.tokenizers.text.utils.build_tokenizer",
    ):
        if _is_importable(module):
            given = {name: value for name, value in values.items() if value is not None}
            return import_module(module).build_tokenizer(Namespace(**{**values, **_TOKENIZER, **given}))
    return load_reference_tokenizer(ReferenceTokenizerOptions.of(values))


def _validated(values: Mapping[str, Any]) -> dict[str, Any]:
    """Copies the arguments and makes the changes of the trainer's validation; a second call changes nothing."""
    validated = dict(values)
    length, encoder = validated.get("seq_length"), validated.get("encoder_seq_length")
    if length is not None and encoder is not None and length != encoder:
        raise ConfigError(f"--seq-length {length} and --encoder-seq-length {encoder} exclude each other")
    validated["seq_length"] = encoder if length is None else length
    if validated["seq_length"] is None:
        raise ConfigError("no --seq-length given")
    if validated.get("data_path") is not None and validated.get("split") is None:
        validated["split"] = "969, 30, 1"  # with the trainer's spaces, as the string is part of cache keys
    if validated.get("dataloader_inter_document_masking"):
        validated["create_attention_mask_in_dataloader"] = False
    return validated


def _derived_settings(kind: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings that are computed from arguments instead of copied, such as parallel sizes."""
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
        tokens = {role: values.get(f"fim_{role}_token") for role in _FIM_TOKENS}
        settings["fim_extra_tokens"] = {role: token for role, token in tokens.items() if token is not None}
    return settings


def _warn_ignored(values: Mapping[str, Any], kind: str) -> None:
    """Warns of unknown data arguments, and of arguments that this kind of dataset ignores."""
    known = {*_COMMON, *_NOT_SETTINGS, *(argument for each in _KINDS.values() for argument in each.fields)}
    unknown = [name for name in sorted(values) if name.startswith(_DATA_PREFIXES) and name not in known]
    ignored = [f"{_flag(name)} {values[name]!r}" for name in unknown if values[name] not in (None, False, [], "")]
    if ignored:
        message = f"unknown data arguments are ignored: {', '.join(ignored)}"
        warnings.warn(message, IgnoredSettingWarning, stacklevel=3)
    of_gpt = ("reset_position_ids", "reset_attention_mask", "eod_mask_loss", "per_dataset_sequences_path")
    if kind in ("bert", "t5") and (ignored := [_flag(name) for name in of_gpt if values.get(name)]):
        message = f"{kind} datasets ignore {', '.join(ignored)}"
        warnings.warn(message, IgnoredSettingWarning, stacklevel=3)


def _is_importable(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ImportError:
        return False


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


# --- blends -----------------------------------------------------------------------------------------------------------

Blends = tuple[Blend | None, list[Blend | None] | None]

_SPLITS = tuple(split.name for split in Split)
_SPLIT_PATHS = tuple(f"{split}_data_path" for split in _SPLITS)
_SOURCES = (("data_path",), ("data_args_path",), _SPLIT_PATHS, ("per_split_data_args_path",), ("mock_data",))
"""Groups of arguments that name data; only one group may be given."""


def get_blend_and_blend_per_split(args: Any) -> Blends:
    """Returns the settings `blend` and `blend_per_split` of a configuration, like Megatron's function of this name.

    At least one setting is None; both are None for mock data. Files named in `args` may be in object storage.
    """
    values = argument_values(args)
    is_given = {name: values.get(name) not in (None, False) for names in _SOURCES for name in names}
    given = [", ".join(map(_flag, names)) for names in _SOURCES if any(map(is_given.get, names))]
    if len(given) > 1:
        raise ConfigError(f"{' and '.join(given)} exclude each other", hint="pass only one of them")
    if values.get("data_args_path") is not None:
        return get_blend_from_list(_read(values["data_args_path"]).split()), None
    if values.get("data_path") is not None:
        return get_blend_from_list(values["data_path"]), None
    if values.get("per_split_data_args_path") is not None:
        path = values["per_split_data_args_path"]
        entries = _read_json(path)
        if missing := [split for split in _SPLITS if split not in entries]:
            message = f"`{path}`: missing key {', '.join(map(repr, missing))}"
            raise ConfigError(message, hint="add the key; its value is null for a split without data")
        blends = [entries[split] for split in _SPLITS]
        return None, [get_blend_from_list(each.split() if isinstance(each, str) else each) for each in blends]
    if any(values.get(each) is not None for each in _SPLIT_PATHS):
        return None, [get_blend_from_list(values.get(each)) for each in _SPLIT_PATHS]
    return None, None


def sequences_from_args(args: Any) -> dict[str, list[int]] | None:
    """Returns {prefix: [number of sequences, of documents + 1]} from `--per-dataset-sequences-path`, or None."""
    path = argument_values(args).get("per_dataset_sequences_path")
    if path is None:
        return None
    counts = _read_json(path)
    for prefix, pair in counts.items():
        if not isinstance(pair, list) or len(pair) != 2 or not all(type(number) is int for number in pair):
            message = f"`{path}`: {prefix!r} must have two integers, got {pair!r}"
            raise ConfigError(message, hint="write the file with `tokenloom sequences-per-dataset`")
    return counts


def _read_json(path: str) -> dict[str, Any]:
    try:
        value = parse_json(_read(path))
    except UnusableJsonError as error:
        raise ConfigError(f"`{path}` is not JSON: {error}") from error
    if not isinstance(value, Mapping):
        raise ConfigError(f"`{path}`: must be a JSON object, got {type(value).__name__}")
    return dict(value)


def _read(path: str) -> str:
    try:
        return map_whole(path).tobytes().decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"`{path}` is not UTF-8: {error}") from error


# --- sample counts ----------------------------------------------------------------------------------------------------

_MULTIPLES = {"K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}


def argument_values(args: Any) -> Mapping[str, Any]:
    """Returns `args`, a namespace or a mapping, as a mapping from names to values of arguments."""
    return args if isinstance(args, Mapping) else vars(args)


def global_batch_size(args: Any) -> int:
    """Returns `--global-batch-size`; if it is missing, `--micro-batch-size` times the data-parallel size."""
    values = argument_values(args)
    if (size := values.get("global_batch_size")) is not None:
        return checked_integer("--global-batch-size", size, at_least=1)
    if (micro := values.get("micro_batch_size")) is None:
        raise ConfigError("neither --global-batch-size nor --micro-batch-size given", hint="pass one of them")
    return checked_integer("--micro-batch-size", micro, at_least=1) * data_parallel_size(args)


def data_parallel_size(args: Any) -> int:
    """Returns `data_parallel_size`; if it is missing, world size / (tensor × pipeline × context parallel size)."""
    values = argument_values(args)
    if (size := values.get("data_parallel_size")) is not None:
        return checked_integer("the data-parallel size", size, at_least=1)
    world = checked_integer("the world size", values.get("world_size") or 1, at_least=1)
    model = 1
    for name in ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size"):
        model *= checked_integer(_flag(name), values.get(name) or 1, at_least=1)
    if world % model:
        message = f"world size {world} is not a multiple of tensor * pipeline * context parallel size {model}"
        raise ConfigError(message, hint="choose parallel sizes whose product divides the world size")
    return world // model


def batch_sizes_of(args: Any) -> BatchSizes:
    """Returns the batch sizes that `--step-batch-size-schedule` or `--rampup-batch-size` sets, else a constant size."""
    values = argument_values(args)
    schedule, rampup = values.get("step_batch_size_schedule"), values.get("rampup_batch_size")
    if schedule is not None:
        named = {"_is_global_batch_size_explicitly_specified": "global_batch_size"}
        for name in ("rampup_batch_size", "decrease_batch_size_if_needed", *named):
            if values.get(name):
                raise ConfigError(f"--step-batch-size-schedule and {_flag(named.get(name, name))} exclude each other")
        return step_batch_size_schedule(schedule, values.get("seq_length"))
    size = global_batch_size(args)
    if rampup is None:
        return BatchSizeSchedule.constant(size)
    start, increment, samples = (int(number) for number in rampup)
    return BatchSizeRampup(
        start_global_batch_size=start, batch_size_increment=increment, rampup_samples=samples, global_batch_size=size
    )


def step_batch_size_schedule(text: str, seq_length: int | None = None) -> BatchSizeSchedule:
    """Parses the value of `--step-batch-size-schedule` exactly as Megatron does; `BatchSizeSchedule.parse` is stricter.

    Items THRESHOLD:SIZE may be in any order. Thresholds are computed in float64 and truncated to integers; a
    threshold counts tokens if `seq_length` is given, else samples.

    Example:
        >>> step_batch_size_schedule("1.6K:8 0:4", seq_length=100).sizes
        ((0, 4), (16, 8))
    """
    length = 1 if seq_length is None else checked_integer("seq_length", seq_length, at_least=1)
    sizes: list[tuple[int, int]] = []
    for item in text.replace(",", " ").split():
        threshold, _, size = item.partition(":")
        try:
            sizes.append((_number(threshold) // length, _number(size)))
        except (ValueError, OverflowError) as error:
            message = f"--step-batch-size-schedule: items must be THRESHOLD:SIZE, got {quoted(item)}"
            raise ConfigError(message, hint="write a schedule such as `0:768 250B:1536`") from error
    try:
        return BatchSizeSchedule(sizes=tuple(sorted(sizes)))
    except ConfigError as error:
        raise ConfigError(f"--step-batch-size-schedule {quoted(text)}: {error.message}") from error


def _number(text: str) -> int:
    """Parses a number such as "1.5B"; computes in float64 and truncates, like Megatron."""
    digits = text.strip().upper()
    multiple = _MULTIPLES.get(digits[-1:], 1)
    return int(float(digits[:-1] if multiple > 1 else digits) * multiple)


def train_valid_test_num_samples(args: Any) -> tuple[int, int | None, int]:
    """Returns the numbers of train, validation and test samples that the trainer requests from the dataset builder.

    Equals Megatron's `get_train_valid_test_num_samples`, including `--phase-transition-iterations`. The number of
    validation samples is None with `--full-validation`: each validation then reads the whole split once.
    """
    values = argument_values(args)
    size = global_batch_size(args)
    eval_size = values.get("eval_global_batch_size") or size
    eval_iters = checked_integer("--eval-iters", values.get("eval_iters") or 0, at_least=0)
    train: int | None = values.get("train_samples") or None
    num_steps = _train_iters(args)
    if train is None:
        if num_steps is None:
            raise ConfigError("no --train-iters and no --train-samples given")
        if values.get("step_batch_size_schedule") is not None:
            message = f"--step-batch-size-schedule is ignored with --train-iters: {num_steps} steps of {size} samples"
            warnings.warn(f"{message}; pass --train-samples instead", IgnoredSettingWarning, stacklevel=2)
        train = num_steps * size
    valid = None if values.get("full_validation") else _num_validations(values, num_steps) * eval_iters * eval_size
    if phases := values.get("phase_transition_iterations"):
        train = _samples_of_phase(values, phases, size)
    return train, valid, eval_iters * eval_size


def _samples_of_phase(values: Mapping[str, Any], phases: Any, size: int) -> int:
    """Returns the number of samples in the current phase; `phases` has the first iteration of each later phase."""
    if isinstance(phases, str):  # the trainer has not validated the arguments yet
        where = f"--phase-transition-iterations {quoted(phases)}"
        phases = [parse_integer(item.text, f"{where}: {item.place}", at_least=1) for item in items_of(phases)]
    transitions = [checked_integer("a phase transition", each, at_least=1) for each in phases]
    if (total := values.get("train_samples")) is None:
        raise ConfigError("no --train-samples given: --phase-transition-iterations needs it")
    if values.get("step_batch_size_schedule") is not None or values.get("rampup_batch_size") is not None:
        raise ConfigError("--phase-transition-iterations needs a constant batch size, got a schedule")
    bounds: list[int] = sorted([0, *(iteration * size for iteration in transitions), total])
    now = int(values.get("iteration") or 0) * size
    for begin, end in pairwise(bounds):
        if begin <= now < end:
            return end - begin
    raise ConfigError(f"the current iteration is at sample {now}, past the end of the run at sample {bounds[-1]}")


def _num_validations(values: Mapping[str, Any], num_steps: int | None) -> int:
    if values.get("skip_train"):
        return 1
    interval = int(values.get("eval_interval") or 0)
    if num_steps is None or interval == 0:
        missing = "--train-iters" if num_steps is None else "--eval-interval"
        raise ConfigError(f"no {missing} given: the number of validation samples depends on it")
    skipped = int(values.get("start_eval_at_iter") or 0) // interval
    return max(0, num_steps // interval + 1 - skipped)


def _train_iters(args: Any) -> int | None:
    """Returns `--train-iters`, or the number of steps for `--train-samples`; None if neither is given."""
    values = argument_values(args)
    if values.get("train_iters"):
        return checked_integer("--train-iters", values["train_iters"], at_least=1)
    total = int(values.get("train_samples") or 0)
    if not total:
        return None
    sizes = batch_sizes_of(args)
    if isinstance(sizes, BatchSizeRampup):
        position = 0  # after the loop: position where the first step of the full batch size begins
        while position <= sizes.rampup_samples:
            position += sizes.batch_size(position)
        return sizes.step_of_position(position) + max(total - position, 0) // sizes.global_batch_size
    if values.get("step_batch_size_schedule") is None:
        return total // global_batch_size(args)
    return sizes.step_of_position(total - 1) + 1
