"""`tokenloom stream`: read the batches of a run as fast as they come, and tell what that took."""

from __future__ import annotations

import argparse
import time
from typing import Any

from tokenloom.blending.blended import BlendedDataset
from tokenloom.blending.builder import BlendedMegatronDatasetBuilder
from tokenloom.cli import console
from tokenloom.cli.json_output import add_json, print_json
from tokenloom.cli.options import say_without_effect
from tokenloom.cli.run_options import add_run_options, run_settings, wanted_sizes
from tokenloom.cli.tokenising_options import add_tokenizer_options, tokenizer_of
from tokenloom.cli.values import byte_count, count, whole_number
from tokenloom.datasets.config import GPTDatasetConfig
from tokenloom.datasets.gpt import GPTDataset
from tokenloom.datasets.splits import Split
from tokenloom.errors import ConfigError
from tokenloom.loading.loader import build_dataloader
from tokenloom.loading.read_ahead import loader_statistics
from tokenloom.loading.samplers import MegatronPretrainingSampler
from tokenloom.order.block_shuffle import BlockShuffle
from tokenloom.progress import task
from tokenloom.storage.settings import ObjectStorageSettings
from tokenloom.storage.statistics import SourceStatistics

_MEGABYTE = 1e6


def add_parser(commands: Any) -> None:
    """Declares the command."""
    parser = commands.add_parser(
        "stream",
        description="Read the batches of a GPT run, from local files or object storage, as fast as they come. Prints "
        "throughput and, for data in object storage, what was fetched of each source and how long readers waited.",
    )
    add_run_options(parser)
    add_tokenizer_options(parser)
    parser.add_argument(
        "--path-to-cache",
        "--data-cache-path",
        metavar="FOLDER",
        help="folder of the index cache, here or in a bucket",
    )
    parser.add_argument(
        "--fast-cache-load",
        "--dataloader-fast-cache-load",
        action="store_true",
        help="trust that all indices are there",
    )
    parser.add_argument(
        "--defer-npy-index-mmap",
        "--dataloader-defer-npy-index-mmap",
        action="store_true",
        help="open indices with the first sample",
    )
    parser.add_argument(
        "--per-dataset-sequences-path", metavar="FILE", help="counts of the datasets, see sequences-per-dataset"
    )
    parser.add_argument("--seed", type=whole_number, default=1234, help="seed of the run (default 1234)")
    parser.add_argument(
        "--from",
        dest="split_name",
        choices=[split.name for split in Split],
        default="train",
        help="split to read (default train)",
    )
    parser.add_argument("--micro-batch-size", type=count, default=8, metavar="B", help="samples per batch (default 8)")
    parser.add_argument(
        "--consumed-samples", type=whole_number, default=0, metavar="N", help="begin after N samples (default 0)"
    )
    parser.add_argument(
        "--batches", type=count, metavar="N", help="stop after N batches (default: the end of the data)"
    )
    parser.add_argument(
        "--workers",
        "--num-workers",
        type=whole_number,
        default=0,
        metavar="N",
        help="number of processes that read; 0 reads in this one (default 0)",
    )
    group = parser.add_argument_group("object storage")
    kept = ObjectStorageSettings()
    group.add_argument(
        "--object-cache",
        "--object-storage-cache-path",
        metavar="FOLDER",
        help="folder of index files and blocks (default $TOKENLOOM_CACHE)",
    )
    group.add_argument(
        "--cache-bytes",
        type=byte_count,
        default=kept.cache_bytes,
        metavar="SIZE",
        help="most bytes of blocks in that folder",
    )
    group.add_argument(
        "--read-ahead-bytes",
        type=byte_count,
        default=kept.read_ahead_bytes,
        metavar="N",
        help="most bytes in memory of what is fetched before its use",
    )
    group.add_argument(
        "--concurrency", type=count, default=kept.concurrency, metavar="N", help="number of requests at once"
    )
    group.add_argument(
        "--block-bytes", type=byte_count, default=kept.block_bytes, metavar="SIZE", help="size of a block"
    )
    group.add_argument(
        "--block-shuffle",
        type=count,
        metavar="BLOCKS",
        help="mix samples within windows of so many blocks instead of the reference's full shuffle",
    )
    add_json(parser, "num_batches, num_samples, num_tokens, seconds, storage by source and mixing by dataset")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Reads, and prints throughput and statistics."""
    from tokenloom.megatron.arg_blends import sequences_from_args

    say_without_effect(options)
    blocks = None
    if options.block_shuffle is not None:
        blocks = BlockShuffle(block_bytes=options.block_bytes, window_blocks=options.block_shuffle)
    config = GPTDatasetConfig(
        random_seed=options.seed,
        path_to_cache=options.path_to_cache,
        tokenizer=tokenizer_of(options),
        fast_cache_load=options.fast_cache_load,
        defer_npy_index_mmap=options.defer_npy_index_mmap,
        sequences_per_dataset=sequences_from_args(options),
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        create_attention_mask=False,
        block_shuffle=blocks,
        object_storage=ObjectStorageSettings(
            cache_path=options.object_cache,
            cache_bytes=options.cache_bytes,
            block_bytes=options.block_bytes,
            read_ahead_bytes=options.read_ahead_bytes,
            concurrency=options.concurrency,
        ),
        **run_settings(options),
    )
    datasets = BlendedMegatronDatasetBuilder(GPTDataset, wanted_sizes(options), lambda: True, config).build()
    dataset = datasets[Split[options.split_name].value]
    if dataset is None or isinstance(dataset, list):
        message = f"expected one dataset for {options.split_name}, found {'several' if dataset else 'none'}"
        raise ConfigError(message)
    sampler = MegatronPretrainingSampler(len(dataset), options.consumed_samples, options.micro_batch_size, 0, 1)
    loader = build_dataloader(dataset, sampler, num_workers=options.workers)
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
