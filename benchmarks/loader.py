"""Tokens per second through a loader, beside megatron-core's dataset in torch's DataLoader, warm page cache.

Ours: `ThreadLoader` with one thread, and `build_dataloader` without workers and with two. Peer: torch's DataLoader over
its dataset, without workers and with two. The consumer adds up one row of each batch, as little as can be done with it;
starting workers is not counted. Sides alternate within one process.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time

import common
import peers
from samples import write_corpus

BATCH = 8


def tokens_per_second(batches, count: int, length: int) -> float:
    """Takes `count` batches after the first, which pays for what starts."""
    iterator = iter(batches)
    next(iterator)
    started = time.perf_counter()
    for _ in range(count):
        next(iterator)["tokens"][0].sum()
    seconds = time.perf_counter() - started
    del iterator
    return count * BATCH * length / seconds


def bench(prefix: str, cache: str, length: int, rounds: int) -> list[list[object]]:
    """Returns one row per way to load."""
    from torch.utils.data import DataLoader

    from tokenloom import MegatronPretrainingSampler, ThreadLoader, build_dataloader

    shared = {"num_samples": None, "path_to_cache": cache, "sequence_length": length}
    ours = peers.gpt_dataset_builder(peers.OURS, prefix)(**shared)
    peer = peers.gpt_dataset_builder(peers.PEER, prefix)(**shared)
    sampler = MegatronPretrainingSampler(len(ours), 0, BATCH, 0, 1)
    few = max(40 * 2048 // length, 10)
    ways = {
        "ThreadLoader": (lambda: ThreadLoader(ours, sampler), 20 * few),
        "ThreadLoader, 2 threads": (lambda: ThreadLoader(ours, sampler, num_threads=2), 20 * few),
        "build_dataloader, 0 workers": (lambda: build_dataloader(ours, sampler), 20 * few),
        "build_dataloader, 2 workers": (
            lambda: build_dataloader(ours, sampler, num_workers=2, persistent_workers=False),
            5 * few,
        ),
        "peer, 0 workers": (lambda: DataLoader(peer, batch_sampler=sampler), 2 * few),
        "peer, 2 workers": (lambda: DataLoader(peer, batch_sampler=sampler, num_workers=2), 2 * few),
    }
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, (make, count) in ways.items():
            rates[name].append(tokens_per_second(make(), count, length))
    medians = {name: statistics.median(values) for name, values in rates.items()}
    return [
        [
            length,
            name,
            f"{value / 1e6:.1f}",
            f"{value / medians['peer, 0 workers']:.1f}x",
            f"{value / medians['peer, 2 workers']:.1f}x",
        ]
        for name, value in medians.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=200_000)
    parser.add_argument("--lengths", type=int, nargs="+", default=[2048, 8192])
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        prefix, cache = os.path.join(folder, "corpus"), os.path.join(folder, "cache")
        write_corpus(prefix, options.documents)
        rows = [row for length in options.lengths for row in bench(prefix, cache, length, options.rounds)]
    common.print_rows(
        f"Millions of tokens per second, batches of {BATCH} (medians)",
        ("length", "loader", "Mtok/s", "/ peer, 0 workers", "/ peer, 2 workers"),
        rows,
    )


if __name__ == "__main__":
    main()
