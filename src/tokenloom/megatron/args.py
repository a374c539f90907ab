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
from itertools import pairwise
from typing import Any

from tokenloom.datasets.blends import Blend
from tokenloom.datasets.splits import Split
from tokenloom.errors import ConfigError, IgnoredSettingWarning
from tokenloom.loading.batch_sizes import BatchSizeRampup, BatchSizes, BatchSizeSchedule
from tokenloom.megatron.core.datasets.utils import get_blend_from_list
from tokenloom.numbers import checked_integer, items_of, parse_integer, quoted
from tokenloom.storage.json_files import UnusableJsonError, parse_json
from tokenloom.storage.resolve import map_whole
from tokenloom.tokenizers.reference_types import ReferenceTokenizerOptions, load_reference_tokenizer

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

_ASKED_BY = {
    "fim": "fim_data",
    "sft": "sft",
    "varlen": "use_varlen_dataset",
    "t5": "decoder_seq_length",
    "multimodal": "dataloader_seq_length",
}
"""The argument by which a kind of dataset is told."""

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

_ABOUT_DATA = ("dataloader_", "fim_", "sft_", "varlen_", "object_storage_", "mid_level_", "train_on_")
"""How the names of arguments begin that are about data alone."""

_ELSEWHERE = {
    *("fim_data", *(f"fim_{role}_token" for role in _FIM_TOKENS)),
    *("dataloader_type", "dataloader_seq_length", "dataloader_save", "sft_tokenizer_prompt_format"),
}
"""Those of them that are read in other ways, or by other parts of the trainer."""


def dataset_kind(args: Any) -> str:
    """Returns which kind of dataset the arguments ask for: gpt, fim, sft, varlen, bert, t5 or multimodal.

    The reference's scripts know it themselves. Here it is told by what only one of them takes: `--fim-data`, `--sft`,
    `--use-varlen-dataset`, `--decoder-seq-length` (T5), `--dataloader-seq-length` (multimodal), and a word-piece
    tokenizer (BERT).

    Raises:
        ConfigError: the arguments ask for several.
    """
    values = argument_values(args)
    kinds = [kind for kind, argument in _ASKED_BY.items() if values.get(argument) not in (None, False)]
    if len(kinds) > 1:
        flags = " and ".join(_flag(_ASKED_BY[kind]) for kind in kinds)
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
        tokens = {role: values.get(f"fim_{role}_token") for role in _FIM_TOKENS}
        settings["fim_extra_tokens"] = {role: token for role, token in tokens.items() if token is not None}
    return settings


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


# --- which data -------------------------------------------------------------------------------------------------------

Blends = tuple[Blend | None, list[Blend | None] | None]

_SPLITS = tuple(split.name for split in Split)
_OF_SPLITS = tuple(f"{split}_data_path" for split in _SPLITS)
_WAYS = (("data_path",), ("data_args_path",), _OF_SPLITS, ("per_split_data_args_path",), ("mock_data",))


def get_blend_and_blend_per_split(args: Any) -> Blends:
    """Returns what `blend` and `blend_per_split` of a configuration are, one of them None, or both for made-up data.

    The reference's function of this name. Files may lie in object storage.

    Args:
        args: the trainer's arguments.

    Raises:
        ConfigError: the arguments name data in several ways, or a file does not hold what it should.
        StorageError: a file cannot be read.
    """
    values = argument_values(args)
    named = [", ".join(map(_flag, ways)) for ways in _WAYS if any(values.get(way) not in (None, False) for way in ways)]
    if len(named) > 1:
        message = f"expected data to be named in one way, found {' and '.join(named)}"
        raise ConfigError(message)
    if values.get("data_args_path") is not None:
        return get_blend_from_list(_read(values["data_args_path"]).split()), None
    if values.get("data_path") is not None:
        return get_blend_from_list(values["data_path"]), None
    if values.get("per_split_data_args_path") is not None:
        path = values["per_split_data_args_path"]
        entries = _read_json(path)
        if missing := [split for split in _SPLITS if split not in entries]:
            message = f"`{path}`: expected the keys {', '.join(_SPLITS)}, found no {' and no '.join(missing)}"
            raise ConfigError(message, hint="null says that a split has no data")
        given = [entries[split] for split in _SPLITS]
        return None, [get_blend_from_list(each.split() if isinstance(each, str) else each) for each in given]
    if any(values.get(each) is not None for each in _OF_SPLITS):
        return None, [get_blend_from_list(values.get(each)) for each in _OF_SPLITS]
    return None, None


def sequences_from_args(args: Any) -> dict[str, list[int]] | None:
    """Returns the counts that `--per-dataset-sequences-path` names; None where it names no file.

    Raises:
        ConfigError: the file does not hold them.
        StorageError: it cannot be read.
    """
    path = argument_values(args).get("per_dataset_sequences_path")
    if path is None:
        return None
    counts = _read_json(path)
    for prefix, pair in counts.items():
        if not isinstance(pair, list) or len(pair) != 2 or not all(type(number) is int for number in pair):
            message = f"`{path}`: expected two counts for `{prefix}`, found {pair!r}"
            raise ConfigError(message, hint="`tokenloom sequences-per-dataset` writes such a file")
    return counts


def _read_json(path: str) -> dict[str, Any]:
    try:
        value = parse_json(_read(path))
    except UnusableJsonError as error:
        message = f"`{path}` is not JSON: {error}"
        raise ConfigError(message) from error
    if not isinstance(value, Mapping):
        message = f"`{path}`: expected an object, found {type(value).__name__}"
        raise ConfigError(message)
    return dict(value)


def _read(path: str) -> str:
    try:
        return map_whole(path).tobytes().decode()
    except UnicodeDecodeError as error:
        message = f"`{path}` is no text in UTF-8: {error}"
        raise ConfigError(message) from error


# --- how many samples -------------------------------------------------------------------------------------------------

_MULTIPLES = {"K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}


def argument_values(args: Any) -> Mapping[str, Any]:
    """Returns arguments by name: those of a namespace, as a parser makes it, or a mapping as it is."""
    return args if isinstance(args, Mapping) else vars(args)


def global_batch_size(args: Any) -> int:
    """Returns the samples of a step: as named, else a micro-batch of each data-parallel rank, as the trainer does.

    Raises:
        ConfigError: neither is named.
    """
    values = argument_values(args)
    if (size := values.get("global_batch_size")) is not None:
        return checked_integer("--global-batch-size", size, at_least=1)
    micro = _required(values, "micro_batch_size", "no global batch size")
    return checked_integer("--micro-batch-size", micro, at_least=1) * data_parallel_size(args)


def data_parallel_size(args: Any) -> int:
    """Returns the data-parallel ranks: as validated, else the ranks divided by those that work on one sample."""
    values = argument_values(args)
    if (size := values.get("data_parallel_size")) is not None:
        return checked_integer("the data-parallel size", size, at_least=1)
    world = checked_integer("the world size", values.get("world_size") or 1, at_least=1)
    shared = 1
    for name in ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size"):
        shared *= checked_integer(_flag(name), values.get(name) or 1, at_least=1)
    if world % shared:
        message = f"expected a world size that tensor, pipeline and context parallelism divide, found {world}"
        raise ConfigError(message, hint=f"{shared} ranks work on one sample")
    return world // shared


def batch_sizes_of(args: Any) -> BatchSizes:
    """Returns the size of each global batch: of the step schedule, of the older ramp-up, or always the same.

    Raises:
        ConfigError: a schedule cannot be read, or excludes another argument.
    """
    values = argument_values(args)
    schedule, rampup = values.get("step_batch_size_schedule"), values.get("rampup_batch_size")
    if schedule is not None:
        for name in ("rampup_batch_size", "decrease_batch_size_if_needed"):
            if values.get(name):
                message = f"--step-batch-size-schedule and {_flag(name)} exclude each other, found both"
                raise ConfigError(message)
        if values.get("_is_global_batch_size_explicitly_specified"):
            message = "--step-batch-size-schedule and --global-batch-size exclude each other, found both"
            raise ConfigError(message)
        return step_batch_size_schedule(schedule, values.get("seq_length"))
    size = global_batch_size(args)
    if rampup is None:
        return BatchSizeSchedule.constant(size)
    start, increment, samples = (int(number) for number in rampup)
    return BatchSizeRampup(
        start_global_batch_size=start, batch_size_increment=increment, rampup_samples=samples, global_batch_size=size
    )


def step_batch_size_schedule(text: str, seq_length: int | None = None) -> BatchSizeSchedule:
    """Returns the batch sizes that `--step-batch-size-schedule` stands for, equal to the reference's after any sample.

    `BatchSizeSchedule.parse` is stricter and exact. This reads what the reference reads: items in any order, suffixes
    with and without a sequence length, and numbers in double precision, whose products are cut to integers.

    Args:
        text: items "THRESHOLD:SIZE" between blanks or commas; K, M, B and T are powers of 1000.
        seq_length: tokens per sample, if thresholds are tokens; None if they are samples.

    Raises:
        ConfigError: an item is none, none begins at 0, two begin together, or a size is not positive.

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
            message = f"expected a threshold and a batch size in the schedule, found {quoted(item)}"
            raise ConfigError(
                message, hint="such as `0:768 250B:1536`: from a threshold on, samples of a step"
            ) from error
    try:
        return BatchSizeSchedule(sizes=tuple(sorted(sizes)))
    except ConfigError as error:
        message = f"the schedule {quoted(text)} cannot be meant: {error.message}"
        raise ConfigError(message) from error


def _number(text: str) -> int:
    """Returns the integer that a text such as "1.5B" stands for, with the reference's roundings."""
    digits = text.strip().upper()
    multiple = _MULTIPLES.get(digits[-1:], 1)
    return int(float(digits[:-1] if multiple > 1 else digits) * multiple)


def train_valid_test_num_samples(args: Any) -> tuple[int, int | None, int]:
    """Returns the samples of train, valid and test that the trainer asks for; None of valid for one whole epoch.

    The reference's `get_train_valid_test_num_samples`, with its phases (`--phase-transition-iterations`).

    Args:
        args: the trainer's arguments, validated or as they were parsed; any version's.

    Raises:
        ConfigError: an argument that counts is missing, or phases cannot be meant.
    """
    values = argument_values(args)
    size = global_batch_size(args)
    eval_size = values.get("eval_global_batch_size") or size
    eval_iters = checked_integer("--eval-iters", values.get("eval_iters") or 0, at_least=0)
    train: int | None = values.get("train_samples") or None
    num_steps = _train_iters(args)
    if train is None:
        if num_steps is None:
            message = "expected --train-iters or --train-samples, found neither"
            raise ConfigError(message)
        if values.get("step_batch_size_schedule") is not None:
            message = f"--train-iters with --step-batch-size-schedule asks for {num_steps} steps of {size} samples only"
            warnings.warn(f"{message}: name --train-samples", IgnoredSettingWarning, stacklevel=2)
        train = num_steps * size
    valid = None if values.get("full_validation") else _eval_points(values, num_steps) * eval_iters * eval_size
    if phases := values.get("phase_transition_iterations"):
        train = _samples_of_phase(values, phases, size)
    return train, valid, eval_iters * eval_size


def _samples_of_phase(values: Mapping[str, Any], phases: Any, size: int) -> int:
    """Returns the samples of the phase that the run is in; phases are iterations, as parsed or validated."""
    if isinstance(phases, str):
        where = f"--phase-transition-iterations {quoted(phases)}"
        phases = [parse_integer(item.text, f"{where}: {item.place}", at_least=1) for item in items_of(phases)]
    transitions = [checked_integer("a phase transition", each, at_least=1) for each in phases]
    total = _required(values, "train_samples", "phases")
    if values.get("step_batch_size_schedule") is not None or values.get("rampup_batch_size") is not None:
        message = "--phase-transition-iterations needs a fixed batch size, found a schedule"
        raise ConfigError(message)
    bounds: list[int] = sorted([0, *(iteration * size for iteration in transitions), total])
    now = int(values.get("iteration") or 0) * size
    for begin, end in pairwise(bounds):
        if begin <= now < end:
            return end - begin
    message = f"expected an iteration before the end of the run at {bounds[-1]} samples, found one at {now}"
    raise ConfigError(message)


def _eval_points(values: Mapping[str, Any], num_steps: int | None) -> int:
    """Returns how often the run validates."""
    if values.get("skip_train"):
        return 1
    interval = int(values.get("eval_interval") or 0)
    if num_steps is None or interval == 0:
        missing = "--train-iters" if num_steps is None else "--eval-interval"
        message = f"expected {missing} to count validation samples, found none"
        raise ConfigError(message)
    skipped = int(values.get("start_eval_at_iter") or 0) // interval
    return max(0, num_steps // interval + 1 - skipped)


def _train_iters(args: Any) -> int | None:
    """Returns the steps of the run: as named, else those that its samples take; None if neither is named."""
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
        message = f"expected {_flag(name)} with {reason}, found none"
        raise ConfigError(message)
    return value
