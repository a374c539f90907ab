"""Commands about blends: plan, prepare-cache, sequences-per-dataset, stream."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from tokenloom.blending.build_plan import plan_build
from tokenloom.blending.dataset_builder import BlendedMegatronDatasetBuilder
from tokenloom.cli.messages import hint_in_options
from tokenloom.cli.options import CommandParser, JsonOption, Written, did_you_mean, refuse
from tokenloom.cli.output import Answer, facts_lines, members, say
from tokenloom.cli.preprocess import TokenizerOptions
from tokenloom.cli.run import read_batches
from tokenloom.cli.run_options import DataOptions, RunOptions
from tokenloom.datasets.base import MegatronDataset, verification_of
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
from tokenloom.datasets.splits import Split
from tokenloom.indexed.prefixes import sequence_counts
from tokenloom.loading.resonance import REMEDY, Resonance, resonance_of_weights
from tokenloom.progress import if_stopped
from tokenloom.setting_types import Count, Number
from tokenloom.storage.json_files import parse_json
from tokenloom.storage.publishing import write_report
from tokenloom.storage.settings import ObjectStorageSettings

_CACHE = Written(names=("--path-to-cache", "--data-cache-path"), metavar="FOLDER")
_MIXTURE = Written(group="ranks (to check that each rank sees the mixture of the blend)")
_COUNTS = (
    *("train_iters", "eval_iters", "eval_interval", "global_batch_size", "micro_batch_size"),
    *("step_batch_size_schedule", "phase_transition_iterations"),
)
"""Fields of `TrainerOptions` that determine sample counts, which are computed as in Megatron's trainer."""

_KINDS: dict[str, tuple[type[MegatronDataset], type[BlendedMegatronDatasetConfig]]] = {
    "gpt": (GPTDataset, GPTDatasetConfig),
    "fim": (GPTFIMDataset, GPTFIMDatasetConfig),
    "bert": (BERTMaskedWordPieceDataset, BERTMaskedWordPieceDatasetConfig),
    "t5": (T5MaskedWordPieceDataset, T5MaskedWordPieceDatasetConfig),
    "sft": (SFTDataset, SFTDatasetConfig),
    "varlen": (VarlenDataset, VarlenDatasetConfig),
}
_ALIASES = {
    name: {"action": "store_const", "const": kind, "help": f"the same as --dataset {kind}"}
    for name, kind in (("--sft", "sft"), ("--fim-data", "fim"))
}
_FIM = {"fim_rate": 0.0, "fim_spm_rate": 0.0, "fim_extra_tokens": {"prefix": 0, "middle": 1, "suffix": 2}}
"""Placeholders for the required settings of fill-in-the-middle datasets; indices do not depend on these settings."""


@dataclass(frozen=True, kw_only=True)
class PlanOptions(RunOptions, JsonOption):
    """Print, for each dataset and split, the tokens, samples and epochs that building GPT datasets would give. Also
    print the datasets with too few samples. Reads only .idx files; takes 10 to 100 ns per sample of a weighted blend.
    The exit status is 1 if the build would fail or a split is empty.

    Attributes:
        micro_batch_size: samples per microbatch of a rank.
        data_parallel_size: number of data-parallel ranks.
        json: print one JSON object: sequence_length, surplus; `splits`: a list with one object per split (null for a
            split without data): datasets, problems; `resonance`: a list with one object or null per split.
    """

    micro_batch_size: Annotated[Count | None, _MIXTURE] = None
    data_parallel_size: Annotated[Count | None, _MIXTURE] = None


def plan(options: PlanOptions, parser: CommandParser) -> Answer:
    config = BlendedMegatronDatasetConfig(random_seed=0, **options.run_settings())  # the seed changes no count
    plan = plan_build(config, options.wanted_sizes(), policy=options.window_policy)
    size, num_ranks = options.micro_batch_size, options.data_parallel_size
    if (size is None) != (num_ranks is None):
        refuse("--micro-batch-size and --data-parallel-size must be given together")
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
        text = f"`{problem.name}` has no sample for {problem.split.name}"
        if problem.available:
            needs = f"{problem.split.name} needs {problem.owed} samples of `{problem.name}`"
            text = f"{needs}, which has {problem.available}"
        say(f"problem: {text}\nhint: {hint_in_options(problem.remedy, parser)}")
    record = {**members(plan), "surplus": plan.surplus, "resonance": found}
    lines = facts_lines("plan", plan.facts() | {"problems": []}, most=None)
    return Answer(record, lines, 1 if plan.problems else 0)


@dataclass(frozen=True, kw_only=True)
class TrainerOptions(RunOptions):
    """Options of Megatron's trainer that determine the sample counts and other settings of datasets.

    Attributes:
        train_iters: number of training steps.
        eval_iters: number of steps per validation (default 100).
        eval_interval: number of training steps between validations.
        global_batch_size: samples per step (default: one microbatch per data-parallel rank).
        micro_batch_size: samples per microbatch of a rank.
        eval_global_batch_size: samples per validation step (default: the same as in training).
        tensor_model_parallel_size: number of tensor-parallel ranks.
        pipeline_model_parallel_size: number of pipeline-parallel ranks.
        context_parallel_size: number of context-parallel ranks.
        start_eval_at_iter: first step with a validation.
        skip_train: run one validation and no training.
        world_size: number of ranks of the run.
        step_batch_size_schedule: batch sizes by consumed tokens, such as "0:768 250B:1536".
        phase_transition_iterations: steps at which a new data phase starts; each phase has its own sample counts.
        iteration: a training step; only the indices of the data phase that contains this step are built.
        mmap_bin_files: --no-mmap-bin-files reads .bin files with pread instead of mmap.
        object_storage_cache_path: local folder for copies of .idx files from object storage.
        per_dataset_sequences_path: file of sequence counts that `tokenloom sequences-per-dataset` has written.
    """

    GROUP = "sample counts and settings, with the option names of Megatron's trainer"
    WITHOUT_EFFECT: ClassVar[Any] = {
        "it is for runs that read the indices": "--dataloader-fast-cache-load --dataloader-defer-npy-index-mmap",
        "it does not change the indices": (
            "--no-create-attention-mask-in-dataloader --dataloader-inter-document-masking --reset-position-ids "
            "--reset-attention-mask --eod-mask-loss"
        ),
        "this command does not load batches": "--num-workers=N",
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
        """Returns the sample count of each split, from the trainer's options if any is set, else from `RunOptions`."""
        named = [name for name in _COUNTS if getattr(self, name) is not None]
        if not named:
            return super().wanted_sizes()
        if others := [name for name in ("valid_samples", "test_samples") if getattr(self, name) is not None]:
            options = " and ".join(f"--{each[0].replace('_', '-')}" for each in (others, named))
            refuse(f"{options} both set the number of samples", hint="pass only one of them")
        from tokenloom.megatron.args import train_valid_test_num_samples

        values = vars(self) | {
            "seq_length": self.sequence_length,
            "eval_iters": self.eval_iters or 100,
            "_is_global_batch_size_explicitly_specified": self.global_batch_size is not None,
        }
        return list(train_valid_test_num_samples(values))


def _setting(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        refuse(f"must be NAME=VALUE, got {text!r}")
    try:
        return name, parse_json(value)
    except ValueError:
        return name, value


@dataclass(frozen=True, kw_only=True)
class CacheOptions(TrainerOptions, TokenizerOptions, JsonOption):
    """Build the indices of a run on a machine without accelerators, before the run starts. Pass the run's settings and
    sample counts (steps times global batch size); the number of ranks does not matter.

    Attributes:
        dataset: kind of dataset.
        settings: a further setting of the dataset's configuration; VALUE is JSON or plain text, as in
            masking_probability=0.15 or add_extra_token_to_sequence=false; the option may be repeated.
        path_to_cache: folder of the index cache, local or in a bucket.
        seed: seed of the run.
        num_dataset_builder_threads: number of datasets to build in parallel.
        verify: build all indices again, and compare them with the indices in the cache.
        json: print one JSON object: path, verified, problems (a list of texts), sequence_length, and `datasets`: a list
            with one object per dataset: split, kind, num_samples.
    """

    dataset: Annotated[str, Written(choices=tuple(_KINDS), others=_ALIASES)] = "gpt"
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
        refuse("--mock-data has no indices to build", hint="pass datasets with --data-path")
    dataset_class, config_class = _KINDS[options.dataset]
    sizes, tokenizer = options.wanted_sizes(), None
    if options.tokenizer_type is None:
        tokenizer = options.load_tokenizer()
    else:  # Megatron's own tokenizer if Megatron is installed, as in the run; Megatron's parser makes lists
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
            hint = did_you_mean(name, [each for each, settable in known.items() if settable])
            refuse(f"{config_class.__name__} has no setting `{name}`", hint=hint)
    config = config_class(**settings)
    with if_stopped(lambda: "complete indices are kept: run the same command again to resume"):
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
    """For each dataset of a blend, write the number of sequences and the number of document boundaries, as JSON for the
    setting `sequences_per_dataset`. A run with this setting checks these numbers. With `fast_cache_load`, the run opens
    a dataset only when the first sample of this dataset is read.

    Attributes:
        output: output file (default: standard output).
        overwrite: replace a file with other contents.
        json: print one JSON object: path, num_datasets, written. Without --output, print only the counts, as one line.
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
    unchanged = "" if is_new else ", already up to date"
    return Answer(record, f"{options.output}: {len(prefixes)} datasets{unchanged}")


def _loader(name: str) -> Written:
    return Written(names=(f"--{name}", f"--dataloader-{name}"))


_COPIES = Written(names=("--object-storage-cache-path",), metavar="FOLDER")
_STORAGE = Written(group="object storage", fields={"cache_path": _COPIES})


@dataclass(frozen=True, kw_only=True)
class StreamOptions(RunOptions, TokenizerOptions, JsonOption):
    """Read the batches of a GPT blend from local files or object storage. Print the throughput, the time spent waiting
    for data and, for data in object storage, the bytes fetched per source.

    Attributes:
        path_to_cache: folder of the index cache, local or in a bucket.
        fast_cache_load: assume that all indices exist in the cache.
        defer_npy_index_mmap: open an index only when a sample in this index is first read.
        per_dataset_sequences_path: file of sequence counts that `tokenloom sequences-per-dataset` has written.
        seed: seed of the run.
        split_name: split to read.
        micro_batch_size: samples per batch.
        consumed_samples: skip the first N samples (default 0).
        batches: maximum number of batches (default all).
        json: print one JSON object: position, num_batches, num_samples, num_tokens, seconds, wait_seconds,
            longest_wait_seconds, and `storage`: an object of counts by URL, empty for local data.
    """

    path_to_cache: Annotated[str | None, _CACHE] = None
    fast_cache_load: Annotated[bool, _loader("fast-cache-load")] = False
    defer_npy_index_mmap: Annotated[bool, _loader("defer-npy-index-mmap")] = False
    per_dataset_sequences_path: Annotated[str | None, Written(metavar="FILE")] = None
    seed: Number = 1234
    split_name: Annotated[str, Written(names=("--from",), choices=tuple(split.name for split in Split))] = "train"
    micro_batch_size: Count = 8
    consumed_samples: Number = 0
    batches: Count | None = None
    object_storage: Annotated[ObjectStorageSettings, _STORAGE] = field(default_factory=ObjectStorageSettings)


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
        refuse(f"{options.split_name} has {'several datasets' if dataset else 'no dataset'}")
    return read_batches(dataset, options.consumed_samples, options.micro_batch_size, options.batches)
