"""Commands about what a run reads of a blend: its plan, its indices, the counts of its data, and its batches."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from operator import attrgetter
from typing import Annotated, Any, ClassVar

import numpy as np

from tokenloom.blending.builder import BlendedMegatronDatasetBuilder
from tokenloom.blending.plan import BuildPlan, SplitPlan, plan_build
from tokenloom.cli.messages import hint_in_options
from tokenloom.cli.options import JsonOption, Position, WithoutEffect, Written, refuse_usage
from tokenloom.cli.output import Answer, members, table
from tokenloom.cli.parser import CommandParser, did_you_mean
from tokenloom.cli.preprocess import TokenizerOptions
from tokenloom.cli.run_options import CACHE, BatchSizes, DataOptions, RunOptions, RunPath
from tokenloom.cli.stopping import say
from tokenloom.cli.values import refuse
from tokenloom.datasets.base import MegatronDataset
from tokenloom.datasets.bert import BERTMaskedWordPieceDataset, BERTMaskedWordPieceDatasetConfig
from tokenloom.datasets.chat_config import SFTDatasetConfig, VarlenDatasetConfig
from tokenloom.datasets.config import BlendedMegatronDatasetConfig, GPTDatasetConfig
from tokenloom.datasets.conversations import SFTDataset
from tokenloom.datasets.fim import GPTFIMDataset, GPTFIMDatasetConfig
from tokenloom.datasets.gpt import GPTDataset
from tokenloom.datasets.pair_samples import verification_of
from tokenloom.datasets.splits import Split
from tokenloom.datasets.t5 import T5MaskedWordPieceDataset, T5MaskedWordPieceDatasetConfig
from tokenloom.datasets.varlen import VarlenDataset
from tokenloom.errors import ConfigError
from tokenloom.indexed.prefixes import sequence_counts
from tokenloom.loading.loader import build_dataloader
from tokenloom.loading.read_ahead import loader_statistics
from tokenloom.loading.resonance import REMEDY, Resonance, resonance_of_weights
from tokenloom.loading.samplers import MegatronPretrainingSampler
from tokenloom.loading.thread_loader import ThreadLoader
from tokenloom.order.block_shuffle import BlockShuffle
from tokenloom.progress import if_stopped, task
from tokenloom.run.run import Run
from tokenloom.setting_types import Count, Number
from tokenloom.storage.json_files import parse_json
from tokenloom.storage.publishing import write_report
from tokenloom.storage.settings import ObjectStorageSettings
from tokenloom.storage.statistics import SourceStatistics

_MIXTURE = Written(group="whether ranks will see the mixture of the blend")

_EVAL_ITERS = 100
_COUNTS = (
    *("train_iters", "eval_iters", "eval_interval", "global_batch_size", "micro_batch_size"),
    *("step_batch_size_schedule", "phase_transition_iterations"),
)
"""CacheOptions that say that samples are to be counted as the trainer does."""

_HIDDEN = Written(is_hidden=True)
_KINDS: dict[str, tuple[type[MegatronDataset], type[BlendedMegatronDatasetConfig]]] = {
    "gpt": (GPTDataset, GPTDatasetConfig),
    "fim": (GPTFIMDataset, GPTFIMDatasetConfig),
    "bert": (BERTMaskedWordPieceDataset, BERTMaskedWordPieceDatasetConfig),
    "t5": (T5MaskedWordPieceDataset, T5MaskedWordPieceDatasetConfig),
    "sft": (SFTDataset, SFTDatasetConfig),
    "varlen": (VarlenDataset, VarlenDatasetConfig),
}
_FIM = {"fim_rate": 0.0, "fim_spm_rate": 0.0, "fim_extra_tokens": {"prefix": 0, "middle": 1, "suffix": 2}}
"""What the configuration asks for, and no index depends on."""

_MEGABYTE = 1e6
_OBJECT_STORAGE = Written(
    group="object storage",
    fields={"cache_path": Written(names=("--object-storage-cache-path",), metavar="FOLDER")},
)


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
    """Returns the plan; says its problems."""
    # The seed decides which samples come first, not how many there are.
    config = BlendedMegatronDatasetConfig(random_seed=0, **options.run_settings())
    plan = plan_build(config, options.wanted_sizes(), policy=options.window_policy)
    if (options.micro_batch_size is None) != (options.data_parallel_size is None):
        refuse("--micro-batch-size and --data-parallel-size belong together, found one")
    found = [_resonance(split, options) for split in plan.splits]
    for name, resonance in zip(Split, found, strict=True):
        if resonance is not None:
            say(f"warning: {name.name}: {resonance}\nhint: {REMEDY}")
    for problem in plan.problems:
        said = f"{problem.split.name} takes {problem.owed} samples from `{problem.name}`, which has {problem.available}"
        if problem.available == 0:
            said = f"`{problem.name}` has no sample for {problem.split.name}"
        say(f"problem: {said}\nhint: {hint_in_options(problem.remedy, parser)}")
    record = {**members(plan), "surplus": plan.surplus, "resonance": found}
    return Answer(record, _plan_lines(plan), 1 if plan.problems else 0)


def _resonance(split: SplitPlan | None, options: PlanOptions) -> Resonance | None:
    """Returns how ranks will see other mixtures than that of a split; None if they do not, or are not known."""
    size, num_ranks = options.micro_batch_size, options.data_parallel_size
    if split is None or split.kind not in ("weighted", "proportional") or size is None or num_ranks is None:
        return None
    return resonance_of_weights(
        [dataset.share if dataset.weight is None else dataset.weight for dataset in split.datasets],
        micro_batch_size=size,
        data_parallel_size=num_ranks,
        names=[dataset.name for dataset in split.datasets],
        num_samples=split.num_samples,
    )


def _plan_lines(plan: BuildPlan) -> Iterator[str]:
    splits = [split for split in plan.splits if split is not None]
    for split in splits:
        yield from _split_lines(split)
    num_datasets, samples = sum(len(split.datasets) for split in splits), sum(split.num_samples for split in splits)
    length = plan.sequence_length
    yield (
        f"{num_datasets:,} datasets, {sum(split.num_tokens for split in splits):,} tokens; "
        f"{samples:,} samples of {length:,} tokens, {samples * length:,} in all"
    )


def _split_lines(plan: SplitPlan) -> Iterator[str]:
    short = {problem.dataset for problem in plan.problems}
    rows = [
        (
            dataset.name,
            f"{dataset.num_tokens:,}",
            "" if dataset.weight is None else f"{dataset.weight:g}",
            f"{dataset.share:.4%}",
            f"{dataset.num_samples_owed:,}",
            f"{dataset.num_epochs_owed:,.4g}",
            f"{dataset.num_samples_built:,}",
            f"{dataset.num_epochs_built:,}",
            "short" if number in short else "",
        )
        for number, dataset in enumerate(plan.datasets)
    ]
    owed, built = (sum(map(attrgetter(f"num_samples_{what}"), plan.datasets)) for what in ("owed", "built"))
    rows.append(("total", f"{plan.num_tokens:,}", "", "", f"{owed:,}", "", f"{built:,}", "", ""))
    columns = ("dataset", "tokens", "weight", "share", "samples owed", "epochs", "samples built", "of epochs", "")
    yield from table(columns, rows, title=f"{plan.split.name}: {plan.num_samples:,} samples ({plan.kind})")
    packed = [
        (
            dataset.name,
            f"{report.num_packs:,}",
            f"{report.fill:.4%}",
            f"{report.documents_per_pack:,.2f}",
            f"{report.num_padding_tokens:,}",
            f"{report.num_split_documents:,} of {report.num_documents:,}",
        )
        for dataset in plan.datasets
        if (report := dataset.packing) is not None
    ]
    if packed:
        headings = ("dataset", "packs", "fill", "documents per pack", "padding tokens", "documents cut")
        yield from table(headings, packed, title=f"{plan.split.name}: an epoch, packed by best fit")


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
        sft: the same as --dataset sft.
        fim_data: the same as --dataset fim.
        mmap_bin_files: read .bin files by position.
        object_storage_cache_path: folder of copies of .idx files.
        per_dataset_sequences_path: counts of the datasets, see sequences-per-dataset.
    """

    GROUP: ClassVar[str] = "samples wanted, and settings, as Megatron's trainer calls them"
    WITHOUT_EFFECT: ClassVar[WithoutEffect] = {
        "it is for runs that read the indices": "--dataloader-fast-cache-load --dataloader-defer-npy-index-mmap",
        "no index depends on it": "--no-create-attention-mask-in-dataloader --dataloader-inter-document-masking",
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
    sft: bool = False
    fim_data: bool = False
    mock_data: Annotated[bool, _HIDDEN] = False
    reset_position_ids: Annotated[bool, _HIDDEN] = False
    reset_attention_mask: Annotated[bool, _HIDDEN] = False
    eod_mask_loss: Annotated[bool, _HIDDEN] = False
    allow_ambiguous_pad_tokens: Annotated[bool, _HIDDEN] = False
    mmap_bin_files: bool = True
    object_storage_cache_path: Annotated[str | None, Written(metavar="FOLDER")] = None
    per_dataset_sequences_path: Annotated[str | None, Written(metavar="FILE")] = None

    def wanted_sizes(self) -> list[int | None]:
        """Returns the samples of train, valid and test that the trainer asks for, else those that are wanted."""
        named = [name for name in _COUNTS if getattr(self, name) is not None]
        if not named:
            return super().wanted_sizes()
        others = [name for name in ("sizes", "valid_samples", "test_samples") if getattr(self, name) is not None]
        if others:
            message = f"--{others[0].replace('_', '-')} and --{named[0].replace('_', '-')} both say how many samples"
            raise ConfigError(message, hint="leave one out")
        from tokenloom.megatron.args import train_valid_test_num_samples

        values = vars(self) | {
            "seq_length": self.sequence_length,
            "eval_iters": self.eval_iters or _EVAL_ITERS,
            "_is_global_batch_size_explicitly_specified": self.global_batch_size is not None,
        }
        return list(train_valid_test_num_samples(values))

    def trainer_settings(self) -> dict[str, Any]:
        """Returns the settings of a configuration that these options name."""
        if self.mock_data:
            refuse("--mock-data makes up samples, which have no indices", hint="name data with --data-path")
        from tokenloom.megatron.args import sequences_from_args

        names = ("reset_position_ids", "reset_attention_mask", "eod_mask_loss", "object_storage_cache_path")
        settings: dict[str, Any] = {name: vars(self)[name] for name in names if vars(self)[name] not in (None, False)}
        if (counts := sequences_from_args(self)) is not None:
            settings["sequences_per_dataset"] = counts
        return settings


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
        dataset: kind of dataset that the run reads (default gpt).
        settings: a further setting of the run's configuration, its value as JSON or plain text, such as
            masking_probability=0.15 or add_extra_token_to_sequence=false; may be repeated.
        path_to_cache: folder of the index cache, here or in a bucket.
        seed: seed of the run.
        num_dataset_builder_threads: number of datasets built at once.
        verify: build all indices again and compare.
        verify_data: also read all data and compare them with their manifests; remembered, so that a run on this node
            with verify="full" has nothing to read.
        json: print one JSON object: path, verified, problems, sequence_length, and in datasets split, kind and
            num_samples of each.
    """

    dataset: Annotated[str | None, Written(choices=tuple(_KINDS))] = None
    settings: Annotated[
        tuple[tuple[str, Any], ...],
        Written(names=("--set",), metavar="NAME=VALUE", parse=_setting, is_repeated=True),
    ] = ()
    path_to_cache: Annotated[str, CACHE]
    seed: Number = 1234
    num_dataset_builder_threads: Count = 1
    verify: bool = False
    verify_data: bool = False

    @property
    def kind(self) -> str:
        """The kind of dataset that the run reads."""
        named = ((self.dataset, True), ("sft", self.sft), ("fim", self.fim_data))
        kinds = sorted({name for name, is_named in named if name is not None and is_named})
        if len(kinds) > 1:
            refuse_usage(f"expected one kind of dataset, found {' and '.join(kinds)}")
        return kinds[0] if kinds else "gpt"


def prepare_cache(options: CacheOptions) -> Answer:
    """Builds; returns a line per dataset, and 1 if verifying indices found a difference."""
    dataset_class, config_class = _KINDS[options.kind]
    sizes = options.wanted_sizes()
    settings = {
        **(_FIM if options.kind == "fim" else {}),
        **options.run_settings(),
        **options.trainer_settings(),
        "random_seed": options.seed,
        "tokenizer": _tokenizer(options),
        "verify": "full" if options.verify_data else "quick",
        **dict(options.settings),
    }
    known = {field.name: field.init for field in dataclasses.fields(config_class)}
    if options.window_policy != "concat":
        settings["window_policy"] = options.window_policy
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
    is_verified, length = options.verify and not problems, config.sequence_length
    record = {"path": options.path_to_cache, "verified": is_verified, "problems": problems, "sequence_length": length}
    lines = [f"{each['split']}: {each['num_samples']} samples of {length} tokens ({each['kind']})" for each in datasets]
    lines += [f"problem: {problem}" for problem in problems]
    lines.append(f"indices in {options.path_to_cache}{', verified' if is_verified else ''}")
    return Answer({**record, "datasets": datasets}, lines, 1 if problems else 0)


def _tokenizer(options: CacheOptions) -> Any:
    """Returns the tokenizer; of Megatron's options Megatron's own where it is installed, for a run has that one."""
    if options.tokenizer_type is None:
        return options.load_tokenizer()
    from tokenloom.megatron.args import tokenizer_from_args

    values = {name: list(value) if isinstance(value, tuple) else value for name, value in vars(options).items()}
    return tokenizer_from_args(values)  # with lists, as its own parser has them


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


def sequences_per_dataset(options: CountOptions) -> int | Answer:
    """Writes the JSON; or prints it."""
    settings = options.data_settings()
    blends = [settings.get("blend"), *settings.get("blend_per_split", [])]
    prefixes = dict.fromkeys(prefix for blend in blends if blend is not None for prefix in blend[0])
    text = json.dumps(sequence_counts(list(prefixes)), indent=4)
    if options.output is None:
        print(text)
        return 0
    is_new = write_report(options.output, text.encode() + b"\n", overwrite=options.overwrite)
    record = {"path": options.output, "num_datasets": len(prefixes), "written": is_new}
    said = "" if is_new else ", nothing to do: it says so already"
    return Answer(record, f"{options.output}: {len(prefixes)} datasets{said}")


@dataclass(frozen=True, kw_only=True)
class StreamOptions(RunOptions, TokenizerOptions, JsonOption):
    """Read the batches of a GPT run, from local files or object storage, as fast as they come. Prints throughput and,
    for data in object storage, what was fetched of each source and how long readers waited.

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
        num_workers: number of processes that read; 0 reads in this one (default 0).
        block_shuffle: mix samples within windows of so many blocks instead of the reference's full shuffle.
        json: print one JSON object: num_batches, num_samples, num_tokens, seconds and storage by source.
    """

    path_to_cache: Annotated[str | None, CACHE] = None
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
    num_workers: Number = 0
    object_storage: Annotated[ObjectStorageSettings, _OBJECT_STORAGE] = field(default_factory=ObjectStorageSettings)
    block_shuffle: Annotated[Count | None, Written(metavar="BLOCKS")] = None


def stream(options: StreamOptions) -> Answer:
    """Reads; returns throughput and statistics."""
    from tokenloom.megatron.args import sequences_from_args

    blocks = None
    if options.block_shuffle is not None:
        blocks = BlockShuffle(block_bytes=options.object_storage.block_bytes, window_blocks=options.block_shuffle)
    settings = options.run_settings() | {"tokenizer": options.load_tokenizer()}
    config = GPTDatasetConfig(
        random_seed=options.seed,
        sequences_per_dataset=sequences_from_args(options),
        window_policy=options.window_policy,
        block_shuffle=blocks,
        **settings,
    )
    datasets = BlendedMegatronDatasetBuilder(GPTDataset, options.wanted_sizes(), lambda: True, config).build()
    dataset = datasets[Split[options.split_name].value]
    if dataset is None or isinstance(dataset, list):
        refuse(f"expected one dataset for {options.split_name}, found {'several' if dataset else 'none'}")
    sampler = MegatronPretrainingSampler(len(dataset), options.consumed_samples, options.micro_batch_size, 0, 1)
    loader = build_dataloader(dataset, sampler, num_workers=options.num_workers)
    record, words = _read_batches(loader, options.batches, micro_batch_size=options.micro_batch_size, where=",")
    return Answer(record, [words, *_statistics_lines(loader_statistics(loader))])


def _read_batches(loader: Any, most: int | None, *, micro_batch_size: int, where: str) -> tuple[dict[str, Any], str]:
    """Reads batches as fast as they come; returns what that took, for JSON and in words."""
    num_batches = num_tokens = 0
    started = time.perf_counter()
    with task("stream", unit="batches", total=most) as advance:
        for batch in islice(loader, most):
            num_batches += 1
            num_tokens += int(np.prod(batch["tokens"].shape))
            advance.tell(num_batches, total=most, num_tokens=num_tokens)
    seconds = time.perf_counter() - started
    record = {"num_batches": num_batches, "num_samples": num_batches * micro_batch_size, "num_tokens": num_tokens}
    storage = {
        source: {name if name == "wait_seconds" else f"num_{name}": value for name, value in members(entry).items()}
        for source, entry in loader_statistics(loader).items()
    }
    return {**record, "seconds": seconds, "storage": storage}, (
        f"{num_batches:,} batches of {micro_batch_size} samples{where} {num_tokens:,} tokens in {seconds:.2f} s: "
        f"{num_batches / seconds:,.1f} batches/s, {num_tokens / seconds:,.0f} tokens/s"
    )


def _statistics_lines(statistics: dict[str, SourceStatistics]) -> Iterator[str]:
    """Yields what was fetched of each object, and how long readers waited."""
    if not statistics:
        return
    total = {"total": sum(statistics.values(), start=SourceStatistics())} if len(statistics) > 1 else {}
    rows = [
        (
            source,
            *(f"{num_bytes / _MEGABYTE:,.2f}" for num_bytes in (entry.bytes_used, entry.bytes_fetched)),
            f"{entry.amplification:.2f}",
            *(f"{count:,}" for count in (entry.requests, entry.hits, entry.waits)),
            f"{entry.wait_seconds:.2f}",
            f"{entry.retries:,}",
        )
        for source, entry in (statistics | total).items()
    ]
    columns = ("source", "MB used", "MB fetched", "ratio", "requests", "hits", "waits", "seconds waited", "retries")
    yield from table(columns, rows)


@dataclass(frozen=True, kw_only=True)
class RunStreamOptions(RunPath, BatchSizes):
    """Read batches of a run from a position on as fast as they come. Prints throughput, how long the loop waited and,
    for data in object storage, what was fetched.

    Attributes:
        position: where to begin, as samples from 0 on (default 0).
        micro_batch_size: samples per batch.
        batches: stop after so many batches.
        holdout: read what is held out instead.
        json: print one JSON object: position, num_batches, num_samples, num_tokens, seconds, wait_seconds,
            longest_wait_seconds and storage (by source).
    """

    position: Position | None = None
    micro_batch_size: Annotated[Count, Written(metavar="B")] = 8
    batches: Count = 1000
    holdout: bool = False


def run_stream(options: RunStreamOptions) -> Answer:
    """Reads; returns throughput and waits."""
    opened = Run.open(options.run_path)
    start = options.position_of(options.position, opened.lock) or 0
    dataset = opened.holdout() if options.holdout else opened.dataset()
    size = options.micro_batch_size
    if start + size > len(dataset):
        found = f"{max(0, len(dataset) - start)} samples there"
        refuse(f"expected a batch of {size} samples from position {start} on, found {found}")
    loader = ThreadLoader(dataset, MegatronPretrainingSampler(len(dataset), start, size, 0, 1))
    where = f" from position {start:,} on:"
    record, words = _read_batches(loader, options.batches, micro_batch_size=size, where=where)
    wait = {"wait_seconds": loader.wait.total_seconds, "longest_wait_seconds": loader.wait.longest_seconds}
    words += "; waited {wait_seconds:.2f} s in all, {longest_wait_seconds:.3f} s for the slowest batch".format(**wait)
    return Answer({"position": start, **record, **wait}, [words, *_statistics_lines(loader_statistics(loader))])
