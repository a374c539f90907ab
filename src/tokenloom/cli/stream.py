"""`tokenloom stream`: read the batches of a run as fast as they come, and tell what that took."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Annotated, Any

from tokenloom.blending.blended import BlendedDataset
from tokenloom.blending.builder import BlendedMegatronDatasetBuilder
from tokenloom.cli import console
from tokenloom.cli.json_output import print_json
from tokenloom.cli.options import Written
from tokenloom.cli.run_options import CACHE, RunOptions
from tokenloom.cli.tokenising_options import TokenizerOptions
from tokenloom.datasets.config import GPTDatasetConfig
from tokenloom.datasets.gpt import GPTDataset
from tokenloom.datasets.splits import Split
from tokenloom.errors import ConfigError
from tokenloom.loading.loader import build_dataloader
from tokenloom.loading.read_ahead import loader_statistics
from tokenloom.loading.samplers import MegatronPretrainingSampler
from tokenloom.order.block_shuffle import BlockShuffle
from tokenloom.progress import task
from tokenloom.setting_types import Count, Number
from tokenloom.storage.settings import ObjectStorageSettings
from tokenloom.storage.statistics import SourceStatistics

_MEGABYTE = 1e6


_OBJECT_STORAGE = Written(
    group="object storage",
    fields={"cache_path": Written(names=("--object-storage-cache-path",), metavar="FOLDER")},
)


@dataclass(frozen=True, kw_only=True)
class Options(RunOptions, TokenizerOptions):
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
        json: print one JSON object: num_batches, num_samples, num_tokens, seconds, storage by source and mixing by
            dataset.
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
    json: bool = False


def run(options: Options) -> int:
    """Reads, and prints throughput and statistics."""
    from tokenloom.megatron.arg_blends import sequences_from_args

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
        message = f"expected one dataset for {options.split_name}, found {'several' if dataset else 'none'}"
        raise ConfigError(message)
    sampler = MegatronPretrainingSampler(len(dataset), options.consumed_samples, options.micro_batch_size, 0, 1)
    loader = build_dataloader(dataset, sampler, num_workers=options.num_workers)
    num_batches = num_tokens = 0
    started = time.perf_counter()
    with task("stream", unit="batches", total=options.batches) as advance:
        for batch in loader:
            num_batches += 1
            num_tokens += batch["tokens"].numel()
            advance.tell(num_batches, total=options.batches, num_tokens=num_tokens)
            if num_batches == options.batches:
                break
    seconds = time.perf_counter() - started
    statistics = loader_statistics(loader)
    if options.json:
        told = {
            "num_batches": num_batches,
            "num_samples": num_batches * options.micro_batch_size,
            "num_tokens": num_tokens,
            "seconds": seconds,
            "storage": storage_record(statistics),
            "mixing": None if blocks is None else {str(each.dataset_path): each.mixing() for each in _members(dataset)},
        }
        print_json(told)
        return 0
    print(
        f"{num_batches} batches of {options.micro_batch_size} samples, {num_tokens:,} tokens in {seconds:.2f} s: "
        f"{num_batches / seconds:,.1f} batches/s, {num_tokens / seconds:,.0f} tokens/s"
    )
    if blocks is not None:
        _print_mixing(dataset)
    if statistics:
        print_statistics(statistics)
    return 0


def _members(dataset: Any) -> list[Any]:
    return list(dataset.datasets) if isinstance(dataset, BlendedDataset) else [dataset]


def _print_mixing(dataset: Any) -> None:
    console.print_table(
        ("mixing, as shares of the documents", "displacement", "neighbours, mean", "neighbours, median"),
        [
            (
                str(member.dataset_path),
                f"{mixing.mean_displacement:.3f}",
                f"{mixing.mean_neighbour_distance:.3f}",
                f"{mixing.median_neighbour_distance:.3f}",
            )
            for member in _members(dataset)
            for mixing in [member.mixing()]
        ]
        + [("(a full shuffle)", "0.333", "0.333", "0.293")],
    )


def storage_record(statistics: dict[str, SourceStatistics]) -> dict[str, dict[str, float]]:
    """Returns what was fetched of each object, and how long readers waited, for JSON."""
    return {
        source: {
            "num_bytes_used": entry.bytes_used,
            "num_bytes_fetched": entry.bytes_fetched,
            "num_requests": entry.requests,
            "num_hits": entry.hits,
            "num_waits": entry.waits,
            "wait_seconds": entry.wait_seconds,
            "num_retries": entry.retries,
        }
        for source, entry in statistics.items()
    }


def print_statistics(statistics: dict[str, SourceStatistics]) -> None:
    """Prints what was fetched of each object, and how long readers waited."""
    total = SourceStatistics()
    for entry in statistics.values():
        total = total + entry
    rows = [*statistics.items(), ("total", total)] if len(statistics) > 1 else list(statistics.items())
    console.print_table(
        ("source", "MB used", "MB fetched", "ratio", "requests", "hits", "waits", "seconds waited", "retries"),
        [
            (
                source,
                f"{entry.bytes_used / _MEGABYTE:,.2f}",
                f"{entry.bytes_fetched / _MEGABYTE:,.2f}",
                f"{entry.amplification:.2f}",
                f"{entry.requests:,}",
                f"{entry.hits:,}",
                f"{entry.waits:,}",
                f"{entry.wait_seconds:.2f}",
                f"{entry.retries:,}",
            )
            for source, entry in rows
        ],
    )
