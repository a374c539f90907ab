"""The reference's arguments as settings: `config_from_args(args)` in the place of its training scripts' own code.

It does what `pretrain_gpt.py`, `pretrain_bert.py`, `pretrain_t5.py` and `pretrain_vlm.py` do with their arguments, of
any version. Arguments that contradict each other are errors; unknown ones about data are warnings.
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
"""Settings of every kind of dataset, by their arguments."""

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
"""Settings that the reference's scripts fix."""


class _Kind(NamedTuple):
    """A kind of dataset: module and name of its configuration, its settings by argument, and its fixed settings."""

    module: str
    config: str
    fields: Mapping[str, str]
    fixed: Mapping[str, Any] = {}


_KINDS = {
    "gpt": _Kind("core.datasets.gpt_dataset", "GPTDatasetConfig", _GPT),
    "fim": _Kind("training.datasets.fim_dataset", "GPTFIMDatasetConfig", _GPT | _FIM),
    "sft": _Kind("core.datasets.gpt_dataset", "GPTDatasetConfig", _GPT),
    "varlen": _Kind("core.datasets.gpt_dataset", "GPTDatasetConfig", _GPT),
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
"""Defaults of the arguments that the reference's tokenizers read, in any version."""

_ABOUT_DATA = ("dataloader_", "fim_", "sft_", "varlen_", "object_storage_", "mid_level_", "train_on_")
"""Prefixes of arguments about data."""

_ELSEWHERE = {
    *("fim_data", *(f"fim_{role}_token" for role in _FIM_TOKENS)),
    *("dataloader_type", "dataloader_seq_length", "dataloader_save", "sft_tokenizer_prompt_format"),
}
"""Arguments with these prefixes that are no settings of their own."""


def dataset_kind(args: Any, kind: str | None = None) -> str:
    """Returns the kind of dataset that the arguments select: gpt, fim, sft, varlen, bert, t5 or multimodal.

    The reference has a script per kind. Here arguments that only one of them takes decide: `--fim-data`, `--sft`,
    `--use-varlen-dataset`, `--decoder-seq-length` (T5), `--dataloader-seq-length` (multimodal), and a word-piece
    tokenizer (BERT). `kind` is a kind that they need not select.

    Raises:
        ConfigError: the arguments select several kinds, or another one than `kind`.
    """
    if kind is not None and kind not in _KINDS:
        raise ConfigError(f"unknown kind of dataset {kind!r}", hint=f"choose out of {', '.join(_KINDS)}")
    values = argument_values(args)
    selected = [name for name, argument in _SELECTORS.items() if values.get(argument) not in (None, False)]
    if len(selected) > 1:
        raise ConfigError(f"{' and '.join(_flag(_SELECTORS[name]) for name in selected)} exclude each other")
    if selected and kind not in (None, *selected):
        raise ConfigError(f"kind {kind}: {_flag(_SELECTORS[selected[0]])} selects the kind {selected[0]}")
    is_bert = str(values.get("tokenizer_type")).startswith("BertWordPiece")
    return kind or (selected[0] if selected else "bert" if is_bert else "gpt")


def config_from_args(
    args: Any,
    *,
    tokenizer: Any = None,
    kind: str | None = None,
    preprocess_func: Callable[[Any], Any] | None = None,
) -> Any:
    """Returns the configuration of the datasets that the trainer's arguments select, of this kind's class.

    Args:
        args: the arguments, before or after validation, of any version: a namespace or a mapping.
        tokenizer: tokenizer of the data; None to load it, see `tokenizer_from_args`.
        kind: a kind of `dataset_kind` that the arguments do not select, such as BERT with another tokenizer.
        preprocess_func: of multimodal data; see `MultimodalDatasetConfig`.

    Raises:
        ConfigError: arguments contradict each other, a required one is missing, or a value is no valid setting.
    """
    values = _settled(argument_values(args))
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
            message = f"{config_class.__name__} has no setting for {_flag(argument)} {value!r}"
            raise ConfigError(message, hint="leave it out")
        settings[setting] = value
    settings |= _computed(name, values)
    if preprocess_func is not None:
        settings["preprocess_func"] = preprocess_func
    _warn_ignored(values, name)
    settings["tokenizer"] = tokenizer_from_args(values) if tokenizer is None else tokenizer
    return config_class(**settings)


def tokenizer_from_args(args: Any) -> Any:
    """Returns the tokenizer that the arguments name: the reference's own where it is installed, else ours.

    The keys of index caches contain the tokenizer, so a run finds a cache only with the same one.

    Raises:
        ConfigError: none is named, or its arguments are invalid.
        TokenizerError: a file is no tokenizer, or special tokens are missing.
    """
    values = argument_values(args)
    if values.get("tokenizer_type") is None:
        raise ConfigError("no --tokenizer-type given", hint="name it, or pass `tokenizer`")
    for module in (
        "megatron.core.tokenizers.utils.build_tokenizer",
        "megatron.core.tokenizers.text.utils.build_tokenizer",
    ):
        if _is_importable(module):
            given = {name: value for name, value in values.items() if value is not None}
            return import_module(module).build_tokenizer(Namespace(**{**values, **_TOKENIZER, **given}))
    return load_reference_tokenizer(ReferenceTokenizerOptions.of(values))


def _settled(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns arguments as the trainer's own validation changes them, whether it ran before or not."""
    settled = dict(values)
    length, encoder = settled.get("seq_length"), settled.get("encoder_seq_length")
    if length is not None and encoder is not None and length != encoder:
        raise ConfigError(f"--seq-length {length} and --encoder-seq-length {encoder} exclude each other")
    settled["seq_length"] = encoder if length is None else length
    if settled["seq_length"] is None:
        raise ConfigError("no --seq-length given")
    if settled.get("data_path") is not None and settled.get("split") is None:
        settled["split"] = "969, 30, 1"  # in the trainer's own spelling
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
        tokens = {role: values.get(f"fim_{role}_token") for role in _FIM_TOKENS}
        settings["fim_extra_tokens"] = {role: token for role, token in tokens.items() if token is not None}
    return settings


def _warn_ignored(values: Mapping[str, Any], kind: str) -> None:
    """Warns of unknown arguments about data, and of those without effect on this kind of dataset."""
    known = {*_COMMON, *_ELSEWHERE, *(argument for each in _KINDS.values() for argument in each.fields)}
    unknown = [name for name in sorted(values) if name.startswith(_ABOUT_DATA) and name not in known]
    ignored = [f"{_flag(name)} {values[name]!r}" for name in unknown if values[name] not in (None, False, [], "")]
    if ignored:
        message = f"unknown arguments without effect: {', '.join(ignored)}"
        warnings.warn(message, IgnoredSettingWarning, stacklevel=3)
    of_gpt = ("reset_position_ids", "reset_attention_mask", "eod_mask_loss", "per_dataset_sequences_path")
    if kind in ("bert", "t5") and (ignored := [_flag(name) for name in of_gpt if values.get(name)]):
        message = f"without effect on datasets of the kind {kind}: {', '.join(ignored)}"
        warnings.warn(message, IgnoredSettingWarning, stacklevel=3)


def _is_importable(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ImportError:
        return False


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


# --- which data -------------------------------------------------------------------------------------------------------

Blends = tuple[Blend | None, list[Blend | None] | None]

_SPLITS = tuple(split.name for split in Split)
_OF_SPLITS = tuple(f"{split}_data_path" for split in _SPLITS)
_WAYS = (("data_path",), ("data_args_path",), _OF_SPLITS, ("per_split_data_args_path",), ("mock_data",))


def get_blend_and_blend_per_split(args: Any) -> Blends:
    """Returns `blend` and `blend_per_split` of a configuration: one of them is None, or both for made-up data.

    As the reference's function of this name. Files may lie in object storage.

    Raises:
        ConfigError: the arguments name data in several ways, or a file has other contents.
        StorageError: a file cannot be read.
    """
    values = argument_values(args)
    named = [", ".join(map(_flag, ways)) for ways in _WAYS if any(values.get(way) not in (None, False) for way in ways)]
    if len(named) > 1:
        raise ConfigError(f"data can be named in one way only: {' and '.join(named)} exclude each other")
    if values.get("data_args_path") is not None:
        return get_blend_from_list(_read(values["data_args_path"]).split()), None
    if values.get("data_path") is not None:
        return get_blend_from_list(values["data_path"]), None
    if values.get("per_split_data_args_path") is not None:
        path = values["per_split_data_args_path"]
        entries = _read_json(path)
        if missing := [split for split in _SPLITS if split not in entries]:
            message = f"`{path}`: no key {' and no '.join(missing)}"
            raise ConfigError(message, hint="write null for a split without data")
        given = [entries[split] for split in _SPLITS]
        return None, [get_blend_from_list(each.split() if isinstance(each, str) else each) for each in given]
    if any(values.get(each) is not None for each in _OF_SPLITS):
        return None, [get_blend_from_list(values.get(each)) for each in _OF_SPLITS]
    return None, None


def sequences_from_args(args: Any) -> dict[str, list[int]] | None:
    """Returns the counts in the file of `--per-dataset-sequences-path`; None without it.

    Raises:
        ConfigError: the file has other contents.
        StorageError: it cannot be read.
    """
    path = argument_values(args).get("per_dataset_sequences_path")
    if path is None:
        return None
    counts = _read_json(path)
    for prefix, pair in counts.items():
        if not isinstance(pair, list) or len(pair) != 2 or not all(type(number) is int for number in pair):
            message = f"`{path}`: `{prefix}` needs two counts, got {pair!r}"
            raise ConfigError(message, hint="`tokenloom sequences-per-dataset` writes such a file")
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
        raise ConfigError(f"`{path}` is no text in UTF-8: {error}") from error


# --- how many samples -------------------------------------------------------------------------------------------------

_MULTIPLES = {"K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}


def argument_values(args: Any) -> Mapping[str, Any]:
    """Returns arguments by name, of a namespace or a mapping."""
    return args if isinstance(args, Mapping) else vars(args)


def global_batch_size(args: Any) -> int:
    """Returns the samples of a step: as given, else a micro-batch of each data-parallel rank, as in the trainer.

    Raises:
        ConfigError: neither is given.
    """
    values = argument_values(args)
    if (size := values.get("global_batch_size")) is not None:
        return checked_integer("--global-batch-size", size, at_least=1)
    micro = _required(values, "micro_batch_size", "counts need it or --global-batch-size")
    return checked_integer("--micro-batch-size", micro, at_least=1) * data_parallel_size(args)


def data_parallel_size(args: Any) -> int:
    """Returns the data-parallel ranks: as given, else all ranks divided by those that share a sample."""
    values = argument_values(args)
    if (size := values.get("data_parallel_size")) is not None:
        return checked_integer("the data-parallel size", size, at_least=1)
    world = checked_integer("the world size", values.get("world_size") or 1, at_least=1)
    shared = 1
    for name in ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size"):
        shared *= checked_integer(_flag(name), values.get(name) or 1, at_least=1)
    if world % shared:
        message = f"world size {world} is no multiple of the {shared} ranks that share a sample"
        raise ConfigError(message, hint="choose other sizes of tensor, pipeline or context parallelism")
    return world // shared


def batch_sizes_of(args: Any) -> BatchSizes:
    """Returns the size of each global batch: by step schedule, by the older ramp-up, or constant.

    Raises:
        ConfigError: a schedule is invalid, or excludes another argument.
    """
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
    """Returns the batch sizes of a `--step-batch-size-schedule`, equal to the reference's after any sample.

    `BatchSizeSchedule.parse` is stricter and exact. Here, as in the reference, items come in any order, suffixes with
    and without a sequence length, and products are computed in double precision and truncated.

    Args:
        text: items "THRESHOLD:SIZE" between blanks or commas; K, M, B and T are powers of 1000.
        seq_length: tokens per sample, if thresholds are tokens; None if they are samples.

    Raises:
        ConfigError: an item is malformed, no threshold is 0, two are equal, or a size is not positive.

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
            message = f"--step-batch-size-schedule: {quoted(item)} is no threshold and batch size"
            raise ConfigError(message, hint="write it as `0:768 250B:1536`") from error
    try:
        return BatchSizeSchedule(sizes=tuple(sorted(sizes)))
    except ConfigError as error:
        raise ConfigError(f"--step-batch-size-schedule {quoted(text)}: {error.message}") from error


def _number(text: str) -> int:
    """Returns the integer of a text such as "1.5B", rounded as in the reference."""
    digits = text.strip().upper()
    multiple = _MULTIPLES.get(digits[-1:], 1)
    return int(float(digits[:-1] if multiple > 1 else digits) * multiple)


def train_valid_test_num_samples(args: Any) -> tuple[int, int | None, int]:
    """Returns the samples of train, valid and test that the trainer requests; None of valid for one whole epoch.

    As the reference's `get_train_valid_test_num_samples`, with its phases (`--phase-transition-iterations`).

    Raises:
        ConfigError: a count is missing, or phases are invalid.
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
            message = f"--train-iters with --step-batch-size-schedule counts {num_steps} steps of {size} samples only"
            warnings.warn(f"{message}: give --train-samples", IgnoredSettingWarning, stacklevel=2)
        train = num_steps * size
    valid = None if values.get("full_validation") else _eval_points(values, num_steps) * eval_iters * eval_size
    if phases := values.get("phase_transition_iterations"):
        train = _samples_of_phase(values, phases, size)
    return train, valid, eval_iters * eval_size


def _samples_of_phase(values: Mapping[str, Any], phases: Any, size: int) -> int:
    """Returns the samples of the run's current phase; phases are iterations, before or after validation."""
    if isinstance(phases, str):
        where = f"--phase-transition-iterations {quoted(phases)}"
        phases = [parse_integer(item.text, f"{where}: {item.place}", at_least=1) for item in items_of(phases)]
    transitions = [checked_integer("a phase transition", each, at_least=1) for each in phases]
    total = _required(values, "train_samples", "--phase-transition-iterations needs it")
    if values.get("step_batch_size_schedule") is not None or values.get("rampup_batch_size") is not None:
        raise ConfigError("--phase-transition-iterations needs a fixed batch size, got a schedule")
    bounds: list[int] = sorted([0, *(iteration * size for iteration in transitions), total])
    now = int(values.get("iteration") or 0) * size
    for begin, end in pairwise(bounds):
        if begin <= now < end:
            return end - begin
    raise ConfigError(f"iteration at {now} samples is past the end of the run at {bounds[-1]}")


def _eval_points(values: Mapping[str, Any], num_steps: int | None) -> int:
    """Returns how many times the run validates."""
    if values.get("skip_train"):
        return 1
    interval = int(values.get("eval_interval") or 0)
    if num_steps is None or interval == 0:
        message = f"no {'--train-iters' if num_steps is None else '--eval-interval'} given: validation samples need it"
        raise ConfigError(message)
    skipped = int(values.get("start_eval_at_iter") or 0) // interval
    return max(0, num_steps // interval + 1 - skipped)


def _train_iters(args: Any) -> int | None:
    """Returns the steps of the run: as given, else those of its samples; None if neither is given."""
    values = argument_values(args)
    if values.get("train_iters"):
        return checked_integer("--train-iters", values["train_iters"], at_least=1)
    total = int(values.get("train_samples") or 0)
    if not total:
        return None
    sizes = batch_sizes_of(args)
    if isinstance(sizes, BatchSizeRampup):
        grown = 0  # the first step of the full size
        while grown <= sizes.rampup_samples:
            grown += sizes.batch_size(grown)
        return sizes.step_of_position(grown) + max(total - grown, 0) // sizes.global_batch_size
    if values.get("step_batch_size_schedule") is None:
        return total // global_batch_size(args)
    return sizes.step_of_position(total - 1) + 1


def _required(values: Mapping[str, Any], name: str, reason: str) -> Any:
    if (value := values.get(name)) is None:
        raise ConfigError(f"no {_flag(name)} given: {reason}")
    return value
