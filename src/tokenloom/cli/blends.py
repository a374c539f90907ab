"""Commands about what a run reads of a blend: its plan, its indices, the counts of its data, and its batches."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from tokenloom.blending.builder import BlendedMegatronDatasetBuilder
from tokenloom.blending.plan import plan_build
from tokenloom.cli.messages import hint_in_options
from tokenloom.cli.options import CommandParser, JsonOption, Written, did_you_mean, refuse
from tokenloom.cli.output import Answer, facts_lines, members, say
from tokenloom.cli.preprocess import TokenizerOptions
from tokenloom.cli.run import read_batches
from tokenloom.cli.run_options import DataOptions, RunOptions
from tokenloom.datasets.base import MegatronDataset
from tokenloom.datasets.chat_config import SFTDatasetConfig, VarlenDatasetConfig
from tokenloom.datasets.config import BlendedMegatronDatasetConfig, GPTDatasetConfig
from tokenloom.datasets.conversations import SFTDataset, VarlenDataset
from tokenloom.datasets.fim import GPTFIMDataset, GPTFIMDatasetConfig
from tokenloom.datasets.gpt import GPTDataset
from tokenloom.datasets.masked import (
    BERTMaskedWordPieceDataset,
    BERTMaskedWordPieceDatasetConfig,
    T5MaskedWordPieceDataset,
    T5MaskedWordPieceDatasetConfig,
)
from tokenloom.datasets.pair_samples import verification_of
from tokenloom.datasets.splits import Split
from tokenloom.errors import ConfigError
from tokenloom.indexed.prefixes import sequence_counts
from tokenloom.loading.resonance import REMEDY, Resonance, resonance_of_weights
from tokenloom.progress import if_stopped
from tokenloom.setting_types import Count, Number
from tokenloom.storage.json_files import parse_json
from tokenloom.storage.publishing import write_report
from tokenloom.storage.settings import ObjectStorageSettings

_CACHE = Written(names=("--path-to-cache", "--data-cache-path"), metavar="FOLDER")
_MIXTURE = Written(group="whether ranks will see the mixture of the blend")
_COUNTS = (
    *("train_iters", "eval_iters", "eval_interval", "global_batch_size", "micro_batch_size"),
    *("step_batch_size_schedule", "phase_transition_iterations"),
)
"""CacheOptions that say that samples are to be counted as the trainer does."""

_KINDS: dict[str, tuple[type[MegatronDataset], type[BlendedMegatronDatasetConfig]]] = {
    "gpt": (GPTDataset, GPTDatasetConfig),
    "fim": (GPTFIMDataset, GPTFIMDatasetConfig),
    "bert": (BERTMaskedWordPieceDataset, BERTMaskedWordPieceDatasetConfig),
    "t5": (T5MaskedWordPieceDataset, T5MaskedWordPieceDatasetConfig),
    "sft": (SFTDataset, SFTDatasetConfig),
    "varlen": (VarlenDataset, VarlenDatasetConfig),
}
_SAME = {
    name: {"action": "store_const", "const": kind, "help": f"the same as --dataset {kind}"}
    for name, kind in (("--sft", "sft"), ("--fim-data", "fim"))
}
_FIM = {"fim_rate": 0.0, "fim_spm_rate": 0.0, "fim_extra_tokens": {"prefix": 0, "middle": 1, "suffix": 2}}
"""What the configuration asks for, and no index depends on."""


@dataclass(frozen=True, kw_only=True)
class PlanOptions(RunOptions, JsonOption):
    """What a build of GPT data will do, from the indices of the data alone: tokens, samples and epochs of every dataset
    and split, and what would run short. Exact; 10 to 100 ns per sample of a weighted blend. The exit status is 1 if the
    build would fail, or a split be empty.

    Attributes:
        micro_batch_size: samples of a rank and micro-batch.
        data_parallel_size: data-parallel ranks.
        json: print one JSON object: sequence_length, splits with their datasets and problems, surplus, resonance.
    """

    micro_batch_size: Annotated[Count | None, _MIXTURE] = None
    data_parallel_size: Annotated[Count | None, _MIXTURE] = None


def plan(options: PlanOptions, parser: CommandParser) -> Answer:
    # The seed decides which samples come first, not how many there are.
    config = BlendedMegatronDatasetConfig(random_seed=0, **options.run_settings())
    plan = plan_build(config, options.wanted_sizes(), policy=options.window_policy)
    size, num_ranks = options.micro_batch_size, options.data_parallel_size
    if (size is None) != (num_ranks is None):
        refuse("--micro-batch-size and --data-parallel-size belong together, found one")
    found: list[Resonance | None] = [None] * len(plan.splits)
    for number, split in enumerate(plan.splits):
        if split is None or split.kind not in ("weighted", "proportional") or size is None or num_ranks is None:
            continue
        weights = [each.share if each.weight is None else each.weight for each in split.datasets]
        dealt = {"micro_batch_size": size, "data_parallel_size": num_ranks, "num_samples": split.num_samples}
        found[number] = resonance_of_weights(weights, names=[each.name for each in split.datasets], **dealt)
        if found[number] is not None:
            say(f"warning: {split.split.name}: {found[number]}\nhint: {REMEDY}")
    for problem in plan.problems:
        said = f"{problem.split.name} takes {problem.owed} samples from `{problem.name}`, which has {problem.available}"
        if problem.available == 0:
            said = f"`{problem.name}` has no sample for {problem.split.name}"
        say(f"problem: {said}\nhint: {hint_in_options(problem.remedy, parser)}")
    record = {**members(plan), "surplus": plan.surplus, "resonance": found}
    lines = facts_lines("plan", plan.facts() | {"problems": []}, most=None)
    return Answer(record, lines, 1 if plan.problems else 0)


@dataclass(frozen=True, kw_only=True)
class TrainerOptions(RunOptions):
    """The samples and settings of a run, as Megatron's trainer calls them.

    Attributes:
        train_iters: steps of training.
        eval_iters: steps of each validation (default 100).
        eval_interval: steps of training between two validations.
        global_batch_size: samples of a step (default a micro-batch of each data-parallel rank).
        micro_batch_size: samples of a rank and micro-batch.
        eval_global_batch_size: samples of a step of validation (default those of training).
        tensor_model_parallel_size: ranks that share a layer.
        pipeline_model_parallel_size: ranks that share the layers.
        context_parallel_size: ranks that share a sample.
        start_eval_at_iter: step before which none validates.
        skip_train: validate once, and train nothing.
        world_size: ranks of the run.
        step_batch_size_schedule: batch sizes by tokens: 0:768 250B:1536.
        phase_transition_iterations: steps at which data change: the samples up to the next.
        iteration: step that the phase holds.
        mmap_bin_files: read .bin files by position.
        object_storage_cache_path: folder of copies of .idx files.
        per_dataset_sequences_path: counts of the datasets, see sequences-per-dataset.
    """

    GROUP = "samples wanted, and settings, as Megatron's trainer calls them"
    WITHOUT_EFFECT: ClassVar[Any] = {
        "it is for runs that read the indices": "--dataloader-fast-cache-load --dataloader-defer-npy-index-mmap",
        "no index depends on it": (
            "--no-create-attention-mask-in-dataloader --dataloader-inter-document-masking --reset-position-ids "
            "--reset-attention-mask --eod-mask-loss"
        ),
        "nothing is loaded": "--num-workers=N",
    }

    train_iters: Count | None = None
    eval_iters: Count | None = None
    eval_interval: Count | None = None
    global_batch_size: Count | None = None
    micro_batch_size: Count | None = None
    eval_global_batch_size: Count | None = None
    tensor_model_parallel_size: Count | None = None
    pipeline_model_parallel_size: Count | None = None
    context_parallel_size: Count | None = None
    start_eval_at_iter: Number | None = None
    skip_train: bool = False
    world_size: Annotated[Count | None, Written(names=("--prepare-cache-world-size", "--world-size"))] = None
    step_batch_size_schedule: Annotated[str | None, Written(metavar="TEXT")] = None
    phase_transition_iterations: Annotated[str | None, Written(metavar="N,…")] = None
    iteration: Number = 0
    mock_data: Annotated[bool, Written(is_hidden=True)] = False
    allow_ambiguous_pad_tokens: Annotated[bool, Written(is_hidden=True)] = False
    mmap_bin_files: bool = True
    object_storage_cache_path: Annotated[str | None, Written(metavar="FOLDER")] = None
    per_dataset_sequences_path: Annotated[str | None, Written(metavar="FILE")] = None

    def wanted_sizes(self) -> list[int | None]:
        """Returns the samples of train, valid and test that the trainer asks for, else those that are wanted."""
        named = [name for name in _COUNTS if getattr(self, name) is not None]
        if not named:
            return super().wanted_sizes()
        others = [name for name in ("valid_samples", "test_samples") if getattr(self, name) is not None]
        if others:
            message = f"--{others[0].replace('_', '-')} and --{named[0].replace('_', '-')} both say how many samples"
            raise ConfigError(message, hint="leave one out")
        from tokenloom.megatron.args import train_valid_test_num_samples

        values = vars(self) | {
            "seq_length": self.sequence_length,
            "eval_iters": self.eval_iters or 100,
            "_is_global_batch_size_explicitly_specified": self.global_batch_size is not None,
        }
        return list(train_valid_test_num_samples(values))


def _setting(text: str) -> tuple[str, Any]:
    """Returns the name and the value of NAME=VALUE."""
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        refuse(f"expected NAME=VALUE, found {text!r}")
    try:
        return name, parse_json(value)
    except ValueError:
        return name, value


@dataclass(frozen=True, kw_only=True)
class CacheOptions(TrainerOptions, TokenizerOptions, JsonOption):
    """Build the indices of a run before it starts, on a machine without accelerators. They do not depend on the number
    of ranks: name the samples that the run will ask for (its steps times its global batch size), and the settings it
    will have.

    Attributes:
        dataset: kind of dataset that the run reads.
        settings: a further setting of the run's configuration, its value as JSON or plain text, such as
            masking_probability=0.15 or add_extra_token_to_sequence=false; may be repeated.
        path_to_cache: folder of the index cache, here or in a bucket.
        seed: seed of the run.
        num_dataset_builder_threads: number of datasets built at once.
        verify: build all indices again and compare.
        json: print one JSON object: path, verified, problems, sequence_length, and in datasets split, kind and
            num_samples of each.
    """

    dataset: Annotated[str, Written(choices=tuple(_KINDS), others=_SAME)] = "gpt"
    settings: Annotated[
        tuple[tuple[str, Any], ...],
        Written(names=("--set",), metavar="NAME=VALUE", parse=_setting, is_repeated=True),
    ] = ()
    path_to_cache: Annotated[str, _CACHE]
    seed: Number = 1234
    num_dataset_builder_threads: Count = 1
    verify: bool = False


def prepare_cache(options: CacheOptions) -> Answer:
    from tokenloom.megatron.args import sequences_from_args, tokenizer_from_args

    if options.mock_data:
        refuse("--mock-data makes up samples, which have no indices", hint="name data with --data-path")
    dataset_class, config_class = _KINDS[options.dataset]
    sizes, tokenizer = options.wanted_sizes(), None
    if options.tokenizer_type is None:
        tokenizer = options.load_tokenizer()
    else:  # Megatron's own where it is installed, for a run has that one; it takes lists, as its parser has them
        given = {name: list(value) if isinstance(value, tuple) else value for name, value in vars(options).items()}
        tokenizer = tokenizer_from_args(given)
    settings = {
        **(_FIM if options.dataset == "fim" else {}),
        **options.run_settings(config_class),
        "random_seed": options.seed,
        "tokenizer": tokenizer,
        "verify": "quick",
        **dict(options.settings),
    }
    known = {field.name: field.init for field in dataclasses.fields(config_class)}
    settings |= {} if options.window_policy == "concat" else {"window_policy": options.window_policy}
    settings |= {} if (counts := sequences_from_args(options)) is None else {"sequences_per_dataset": counts}
    for name in settings:
        if not known.get(name):
            message = f"{config_class.__name__} has no setting `{name}`"
            raise ConfigError(message, hint=did_you_mean(name, [each for each, settable in known.items() if settable]))
    config = config_class(**settings)
    with if_stopped(lambda: "indices that are complete are kept: run the same command again to go on"):
        built = BlendedMegatronDatasetBuilder(dataset_class, sizes, lambda: True, config).build()
    parts = [
        (split.name, dataset)
        for split, entry in zip(Split, built, strict=True)
        for dataset in (entry if isinstance(entry, list) else [entry])
        if dataset is not None
    ]
    datasets = [{"split": split, "kind": type(each).__name__, "num_samples": len(each)} for split, each in parts]
    problems = [problem for _, each in parts for problem in each.verify_indices()] if options.verify else []
    if (verification := verification_of(config)) is not None:
        verification.wait()
    record = {"path": options.path_to_cache, "verified": options.verify and not problems, "problems": problems}
    record |= {"sequence_length": config.sequence_length, "datasets": datasets}
    return Answer(record, facts_lines("indices", record, most=None), 1 if problems else 0)


@dataclass(frozen=True, kw_only=True)
class CountOptions(DataOptions, JsonOption):
    """Record the sequences and document boundaries of each dataset of a blend as JSON, for the setting
    `sequences_per_dataset`: a run refuses data whose counts have changed, and with `fast_cache_load` opens each dataset
    with its first sample.

    Attributes:
        output: path of the output (default: standard output).
        overwrite: replace a file that holds something else.
        json: print one JSON object: path, num_datasets, written; on standard output the counts are JSON anyway.
    """

    output: Annotated[str | None, Written(names=("--output", "--per-dataset-sequences-path"), metavar="FILE")] = None
    overwrite: bool = False


def sequences_per_dataset(options: CountOptions) -> Answer:
    settings = options.data_settings()
    blends = [settings.get("blend"), *settings.get("blend_per_split", [])]
    prefixes = dict.fromkeys(prefix for blend in blends if blend is not None for prefix in blend[0])
    counts = sequence_counts(list(prefixes))
    text = json.dumps(counts, indent=4)
    if options.output is None:
        return Answer(counts, text)
    is_new = write_report(options.output, text.encode() + b"\n", overwrite=options.overwrite)
    record = {"path": options.output, "num_datasets": len(prefixes), "written": is_new}
    said = "" if is_new else ", nothing to do: it says so already"
    return Answer(record, f"{options.output}: {len(prefixes)} datasets{said}")


@dataclass(frozen=True, kw_only=True)
class StreamOptions(RunOptions, TokenizerOptions, JsonOption):
    """Read the batches of a GPT blend, from local files or object storage, as fast as they come. Prints throughput, how
    long the loop waited and, for data in object storage, what was fetched of each source.

    Attributes:
        path_to_cache: folder of the index cache, here or in a bucket.
        fast_cache_load: trust that all indices are there.
        defer_npy_index_mmap: open indices with the first sample.
        per_dataset_sequences_path: counts of the datasets, see sequences-per-dataset.
        seed: seed of the run.
        split_name: split to read.
        micro_batch_size: samples per batch.
        consumed_samples: begin after N samples (default 0).
        batches: stop after N batches (default: the end of the data).
        json: print one JSON object: position, num_batches, num_samples, num_tokens, seconds, wait_seconds,
            longest_wait_seconds and storage (by source).
    """

    path_to_cache: Annotated[str | None, _CACHE] = None
    fast_cache_load: Annotated[bool, Written(names=("--fast-cache-load", "--dataloader-fast-cache-load"))] = False
    defer_npy_index_mmap: Annotated[
        bool, Written(names=("--defer-npy-index-mmap", "--dataloader-defer-npy-index-mmap"))
    ] = False
    per_dataset_sequences_path: Annotated[str | None, Written(metavar="FILE")] = None
    seed: Number = 1234
    split_name: Annotated[str, Written(names=("--from",), choices=tuple(split.name for split in Split))] = "train"
    micro_batch_size: Count = 8
    consumed_samples: Number = 0
    batches: Count | None = None
    object_storage: Annotated[
        ObjectStorageSettings,
        Written(
            group="object storage",
            fields={"cache_path": Written(names=("--object-storage-cache-path",), metavar="FOLDER")},
        ),
    ] = field(default_factory=ObjectStorageSettings)


def stream(options: StreamOptions) -> Answer:
    from tokenloom.megatron.args import sequences_from_args

    settings = options.run_settings(GPTDatasetConfig) | {
        "random_seed": options.seed,
        "tokenizer": options.load_tokenizer(),
        "sequences_per_dataset": sequences_from_args(options),
    }
    config = GPTDatasetConfig(**settings)
    datasets = BlendedMegatronDatasetBuilder(GPTDataset, options.wanted_sizes(), lambda: True, config).build()
    dataset = datasets[Split[options.split_name].value]
    if dataset is None or isinstance(dataset, list):
        refuse(f"expected one dataset for {options.split_name}, found {'several' if dataset else 'none'}")
    return read_batches(dataset, options.consumed_samples, options.micro_batch_size, options.batches)
