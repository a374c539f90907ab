"""Training data from object storage, on loopback with injected latency: ours, the bare client library, and the peer.

A real S3 server and a proxy, which delays each response and sends no faster than a link does, run in a process of
their own. What is measured: throughput beside the bare client (obstore) that issues the same ranges with the same
concurrency, alternating; the same for an epoch of the block shuffle from an empty cache, beside large ranges in order,
with the bytes fetched per byte used and the processor time of both; round trips to the first batch; how long a consumer
that computes waits; what an outage of the store costs; and the reader of megatron-core (boto3) on a few of the same
samples.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from common import print_rows
from peers import PEER, Tokenizer, modules

sys.path.insert(0, str(Path(__file__).parent.parent))  # the server and the proxy of the tests

from tests.object_store.proxy import FaultProxy, Faults
from tests.object_store.server import S3Server, aws_environment

from tokenloom import (
    BlendedMegatronDatasetBuilder,
    BlockShuffle,
    GPTDataset,
    GPTDatasetConfig,
    IndexedDatasetBuilder,
    ObjectStorageSettings,
    build_dataloader,
    storage_statistics,
)
from tokenloom.storage.objects import close_storages
from tokenloom.storage.statistics import forget_statistics

Counts = Callable[..., dict[str, int]]

BUCKET = "benchmark"
MB = 1e6

_LONG_LATENCY_SECONDS = 2.0
"""Beside which all else up to a first batch is short."""


def serve(connection: Connection, faults: Faults) -> None:
    """Runs server and proxy until the other side ends.

    Answers each message with the proxy's counts since the last. A message is what changes of the faults; with
    `outage_seconds`, the proxy goes away for so long.
    """
    with S3Server() as server, FaultProxy(server.port) as proxy:
        proxy.faults = faults
        connection.send((server.endpoint, proxy.endpoint))
        while True:
            try:
                changes = connection.recv()
            except EOFError:
                return
            outage_seconds = changes.pop("outage_seconds", 0.0)
            proxy.faults = replace(proxy.faults, **changes)
            if outage_seconds:
                proxy.go_away()
            connection.send(dict(proxy.counts))
            proxy.counts.clear()
            if outage_seconds:
                time.sleep(outage_seconds)
                proxy.come_back()


def write_corpus(prefix: str, num_bytes: int, document_tokens: int) -> None:
    """Writes documents of int32 tokens, of lengths around a mean."""
    rng = np.random.default_rng(0)
    with IndexedDatasetBuilder(f"{prefix}.bin", dtype=np.int32) as builder:
        left = num_bytes // 4
        while left:
            length = min(left, int(rng.integers(1, 2 * document_tokens)))
            builder.append_block(rng.integers(0, 128000, size=length, dtype=np.int32), np.array([length], np.int32))
            left -= length
        builder.finalize(f"{prefix}.idx")


def upload(prefix: str, endpoint: str) -> str:
    """Uploads a pair past the proxy; returns its address."""
    import boto3

    client = boto3.client("s3", endpoint_url=endpoint)
    client.create_bucket(Bucket=BUCKET)
    for suffix in (".bin", ".idx"):
        client.upload_file(prefix + suffix, BUCKET, "corpus" + suffix)
    return f"s3://{BUCKET}/corpus"


def build(
    url: str, folder: str, options: argparse.Namespace, *, cache: str = "cache", num_blocks: int = 0, **settings: Any
) -> Any:
    """Returns the training dataset of one epoch.

    Args:
        cache: name of the folder for blocks.
        num_blocks: blocks of 4 MiB that this and memory may hold; 0 for a tenth of the data.
        settings: further settings.
    """
    budget = (num_blocks << 22) or options.megabytes * (1 << 20) // 10
    config = GPTDatasetConfig(
        random_seed=1234,
        sequence_length=options.sequence_length,
        blend=([url], None),
        split="1,0,0",
        path_to_cache=os.path.join(folder, "indices"),
        tokenizer=Tokenizer(),
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        create_attention_mask=False,
        object_storage=ObjectStorageSettings(
            cache_path=os.path.join(folder, cache),
            cache_bytes=budget,
            read_ahead_bytes=budget,
            concurrency=options.concurrency,
        ),
        **settings,
    )
    return BlendedMegatronDatasetBuilder(GPTDataset, [None, None, None], lambda: True, config).build()[0]


def batches(dataset: Any, options: argparse.Namespace, positions: range) -> Iterable[Any]:
    """Returns a loader over some positions, in this process."""
    size = options.micro_batch_size
    starts = range(positions.start, positions.stop, size)
    return build_dataloader(dataset, [list(range(start, min(start + size, positions.stop))) for start in starts])


def timed(work: Callable[[], Any]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def stream(dataset: Any, options: argparse.Namespace, positions: range, *, compute_seconds: float = 0.0) -> list[float]:
    """Reads all batches, computing for a while after each; returns the seconds spent waiting for each."""
    waited = []
    iterator = iter(batches(dataset, options, positions))
    while True:
        started = time.perf_counter()
        batch = next(iterator, None)
        if batch is None:
            return waited
        waited.append(time.perf_counter() - started)
        if compute_seconds:
            time.sleep(compute_seconds)


def bare(ranges: list[tuple[int, int]], options: argparse.Namespace, endpoint: str) -> None:
    """Issues ranges through the client library alone."""
    import obstore
    from obstore.store import S3Store

    store = S3Store(BUCKET, endpoint=endpoint, client_options={"allow_http": True})

    def get(each: tuple[int, int]) -> int:
        return len(obstore.get_range(store, "corpus.bin", start=each[0], end=each[1]))

    with ThreadPoolExecutor(options.concurrency) as executor:
        assert sum(executor.map(get, ranges)) == sum(stop - start for start, stop in ranges)


def ranges_of(dataset: Any, positions: range) -> list[tuple[int, int]]:
    """Returns the byte ranges of some samples, in their order."""
    spans = dataset.span_batch(positions)
    starts = dataset.dataset.index.sequence_pointers[spans.documents] + 4 * spans.starts
    return list(zip(starts.tolist(), (starts + 4 * spans.lengths).tolist(), strict=True))


def numbers(dataset: Any) -> Any:
    return storage_statistics()[dataset.remote_paths[0]]


def compare_full_shuffle(dataset: Any, options: argparse.Namespace, proxy: str) -> None:
    """Alternates ours and the bare client over the same ranges."""
    rows, ratios = [], []
    stream(dataset, options, range(len(dataset) - options.micro_batch_size, len(dataset)))  # imports and connections
    for number in range(options.rounds):
        positions = range(number * options.compare_samples, (number + 1) * options.compare_samples)
        ours = timed(partial(stream, dataset, options, positions))
        alone = timed(partial(bare, ranges_of(dataset, positions), options, proxy))
        ratios.append(alone / ours)
        rows.append((number, f"{ours:.2f}", f"{alone:.2f}", f"{ratios[-1]:.2f}"))
    kilobytes = 4 * options.sequence_length // 1000
    print_rows(
        f"Full shuffle: {options.compare_samples} samples of {kilobytes} kB, {options.concurrency} requests at once",
        ("round", "ours s", "bare client s", "ours / bare, throughput"),
        [*rows, ("median", "", "", f"{statistics.median(ratios):.2f}")],
    )


def compare_block_shuffle(url: str, folder: str, options: argparse.Namespace, proxy: str) -> None:
    """Alternates an epoch of ours from an empty cache and the bare client over the same bytes, one after the other."""
    rows, ratios = [], []
    for number in range(options.rounds):
        shuffle = BlockShuffle(window_blocks=options.window_blocks)
        room = 2 * options.window_blocks + 1  # for two windows, as blocks are a little larger or smaller than 4 MiB
        dataset = build(url, folder, options, cache=f"blocks-{number}", num_blocks=room, block_shuffle=shuffle)
        forget_statistics()
        begun = time.process_time()
        ours = timed(partial(stream, dataset, options, range(len(dataset))))
        between = time.process_time()
        read, num_bytes = numbers(dataset), dataset.dataset.byte_source.num_bytes
        size = shuffle.block_bytes
        large = [(start, min(start + size, num_bytes)) for start in range(0, num_bytes, size)]
        alone = timed(partial(bare, large, options, proxy))
        ended = time.process_time()
        ratios.append((read.bytes_used / ours) / (num_bytes / alone))
        rows.append(
            (
                number,
                f"{read.amplification:.3f}",
                f"{read.requests / len(large):.2f}",
                f"{read.bytes_used / ours / MB:.1f}",
                f"{num_bytes / alone / MB:.1f}",
                f"{ratios[-1]:.2f}",
                f"{(between - begun) / read.bytes_used * MB * 1e3:.1f}",
                f"{(ended - between) / num_bytes * MB * 1e3:.1f}",
            )
        )
    print_rows(
        f"Block shuffle: an epoch of {options.megabytes} MiB, windows of {options.window_blocks} blocks of 4 MiB, "
        f"a link of {options.link_megabytes} MB/s",
        (
            *("round", "fetched / used", "requests per 4 MiB", "ours MB/s", "bare, in order MB/s", "ours / bare"),
            *("ours, processor ms/MB", "bare, processor ms/MB"),
        ),
        [*rows, ("median", "", "", "", "", f"{statistics.median(ratios):.2f}", "", "")],
    )


def measure_first_batch(url: str, folder: str, options: argparse.Namespace, counts: Counts) -> None:
    """Prints the requests up to a first batch, and how long they took in latencies, long ones, of the store."""
    rows = []
    counts(latency_seconds=_LONG_LATENCY_SECONDS)

    def measure(name: str, step: str, work: Callable[[], Any]) -> Any:
        counts()
        started = time.perf_counter()
        result = work()
        seconds, seen = time.perf_counter() - started, counts()
        rows.append(
            (
                *(name, step, seen.get("HEAD", 0), seen.get("GET", 0), f"{seen.get('body_bytes', 0) / MB:.2f}"),
                *(f"{seconds:.3f}", f"{seconds / _LONG_LATENCY_SECONDS:.1f}"),
            )
        )
        return result

    for name in ("an empty cache", "its index copied before"):
        dataset = measure(name, "open", partial(build, url, folder, options, cache="first"))
        loader = batches(dataset, options, range(options.micro_batch_size))
        measure(name, "first batch", partial(lambda loader: next(iter(loader)), loader))
        close_storages()
    counts(latency_seconds=options.latency)
    print_rows(
        f"Up to the first batch of {options.micro_batch_size} samples, {options.concurrency} requests at once, "
        f"{_LONG_LATENCY_SECONDS} s before each response",
        ("with", "step", "HEAD", "GET", "MB", "s", "latencies"),
        rows,
    )


def measure_outage(dataset: Any, options: argparse.Namespace, counts: Counts) -> None:
    """Prints what a reader notices of a store that goes away after two batches and comes back."""
    forget_statistics()
    iterator = iter(batches(dataset, options, range(4 * options.compare_samples)))
    for _ in range(2):
        next(iterator)
    counts(outage_seconds=options.outage_seconds)
    waited, num_batches = [], 2
    while True:
        started = time.perf_counter()
        if next(iterator, None) is None:
            break
        waited.append(time.perf_counter() - started)
        num_batches += 1
    settings = dataset.config.object_storage
    print_rows(
        "The store goes away while batches are read",
        ("outage s", "batches", "longest wait s", "requests repeated", "deadline_seconds"),
        [
            (
                options.outage_seconds,
                f"{num_batches} of {4 * options.compare_samples // options.micro_batch_size}",
                f"{max(waited):.1f}",
                numbers(dataset).retries,
                settings.deadline_seconds,
            )
        ],
    )


def measure_epoch(dataset: Any, options: argparse.Namespace, counts: Counts) -> float:
    """Prints what the samples of an epoch, or of a part of one, took; returns the seconds per batch."""
    forget_statistics()
    counts()
    samples = range(len(dataset) if options.whole_epoch else min(len(dataset), 4 * options.compare_samples))
    seconds = timed(partial(stream, dataset, options, samples))
    read, seen = numbers(dataset), counts()
    print_rows(
        f"Full shuffle: {len(samples)} of {len(dataset)} samples, budget 10 % of {options.megabytes} MiB",
        ("MB used", "MB fetched", "fetched / used", "on the wire", "requests", "samples/s", "MB/s"),
        [
            (
                f"{read.bytes_used / MB:.1f}",
                f"{read.bytes_fetched / MB:.1f}",
                f"{read.amplification:.3f}",
                f"{seen['body_bytes'] / read.bytes_used:.3f}",
                read.requests,
                f"{len(samples) / seconds:.1f}",
                f"{read.bytes_used / seconds / MB:.1f}",
            )
        ],
    )
    return seconds * options.micro_batch_size / len(samples)


def measure_waiting(dataset: Any, options: argparse.Namespace, seconds_per_batch: float) -> None:
    """Prints how long a consumer waits that computes twice as long as the server needs for a batch."""
    positions = range(len(dataset) - 2 * options.compare_samples, len(dataset))
    started = time.perf_counter()
    waited = stream(dataset, options, positions, compute_seconds=2 * seconds_per_batch)
    wall = time.perf_counter() - started
    print_rows(
        "A consumer that computes twice as long as the server needs for a batch",
        ("compute s per batch", "batches", "wall s", "waited s", "of it for the first", "share after it"),
        [
            (
                f"{2 * seconds_per_batch:.3f}",
                len(positions) // options.micro_batch_size,
                f"{wall:.2f}",
                f"{sum(waited):.2f}",
                f"{waited[0]:.2f}",
                f"{sum(waited[1:]) / (wall - waited[0]):.1%}",
            )
        ],
    )


def measure_peer(url: str, folder: str, options: argparse.Namespace, counts: Counts) -> None:
    """Prints what the peer's reader fetches for the same samples."""
    indexed, _, gpt, config, split = modules(PEER)
    from megatron.core.datasets.object_storage_utils import ObjectStorageConfig

    rows = []
    for chunk, num_samples in ((256 << 20, options.peer_samples), (64 << 10, 10 * options.peer_samples)):
        storage = ObjectStorageConfig(path_to_idx_cache=os.path.join(folder, "peer"), bin_chunk_nbytes=chunk)
        data = indexed(url, mmap=False, object_storage_config=storage)
        dataset = gpt(
            data,
            url,
            np.arange(len(data), dtype=np.int32),
            None,
            split.train,
            config(
                random_seed=1234,
                sequence_length=options.sequence_length,
                blend=([url], None),
                split="1,0,0",
                path_to_cache=os.path.join(folder, "peer-indices"),
                tokenizer=Tokenizer(),
                reset_position_ids=False,
                reset_attention_mask=False,
                eod_mask_loss=False,
                create_attention_mask=False,
            ),
        )
        counts()
        seconds = timed(lambda dataset=dataset, n=num_samples: [dataset[position] for position in range(n)])
        fetched = counts()["body_bytes"]
        used = num_samples * 4 * (options.sequence_length + 1)
        rows.append(
            (
                f"{chunk >> 10} KiB",
                num_samples,
                f"{fetched / MB:.1f}",
                f"{fetched / used:.1f}",
                f"{num_samples / seconds:.2f}",
            )
        )
    print_rows(
        "megatron-core, the same samples", ("block", "samples", "MB fetched", "fetched / used", "samples/s"), rows
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=256)
    parser.add_argument("--document-tokens", type=int, default=65536, help="mean")
    parser.add_argument("--sequence-length", type=int, default=16384)
    parser.add_argument("--micro-batch-size", type=int, default=8)
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--latency", type=float, default=0.05, help="seconds before each response")
    parser.add_argument("--link-megabytes", type=float, default=40, help="that the store sends per second, in all")
    parser.add_argument("--outage-seconds", type=float, default=20)
    parser.add_argument("--compare-samples", type=int, default=256)
    parser.add_argument("--window-blocks", type=int, default=4)
    parser.add_argument("--peer-samples", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--whole-epoch", action="store_true")
    options = parser.parse_args()

    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    faults = Faults(latency_seconds=options.latency, link_bytes_per_second=options.link_megabytes * MB)
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs, faults), daemon=True)
    process.start()
    theirs.close()
    server, proxy = ours.recv()
    os.environ.update(aws_environment(proxy))

    def counts(**changes: float) -> dict[str, int]:
        ours.send(changes)
        return ours.recv()

    with tempfile.TemporaryDirectory() as folder:
        prefix = os.path.join(folder, "corpus")
        write_corpus(prefix, options.megabytes << 20, options.document_tokens)
        url = upload(prefix, server)
        full = build(url, folder, options)
        blocks = build(url, folder, options, block_shuffle=BlockShuffle(window_blocks=options.window_blocks))
        compare_full_shuffle(full, options, proxy)
        compare_block_shuffle(url, folder, options, proxy)
        print(f"\nblock shuffle: {blocks.mixing()}\nfull shuffle: {full.mixing()}")
        measure_waiting(full, options, measure_epoch(full, options, counts))
        if options.outage_seconds:
            measure_outage(full, options, counts)
        measure_first_batch(url, folder, options, counts)
        measure_peer(url, folder, options, counts)
    ours.close()
    process.join()


if __name__ == "__main__":
    main()
