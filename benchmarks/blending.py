"""Blending indices beside megatron-core: nanoseconds per sample, weighted and exhaustive, by the number of datasets.

Sides alternate in one process; the peer fills arrays that exist already. Outputs are compared before anything is timed.
Ours uses all cores, as it does in a build.
"""

from __future__ import annotations

import argparse
import statistics
import time

import common
import numpy as np
import peers

from tokenloom import kernels


def nanoseconds(call, size: int) -> float:
    started = time.perf_counter()
    call()
    return (time.perf_counter() - started) / size * 1e9


def bench(helpers, num_datasets: int, kind: str, mode: str, rounds: int) -> list[object]:
    """Returns one row of the table."""
    rng = np.random.default_rng(num_datasets)
    weights = np.ones(num_datasets) if kind == "equal" else rng.dirichlet(np.ones(num_datasets))
    weights = weights / weights.sum()
    size = (1 << 22) if num_datasets < 1000 else (1 << 20)  # enough for several threads
    sizes = None
    if mode == "exhaustive":
        sizes = np.maximum(weights * size, 1).astype(np.int64)
        size = int(sizes.sum())
        weights = sizes / float(size)
    dataset_index, sample_index = np.zeros(size, dtype=np.int16), np.zeros(size, dtype=np.int64)

    def peer():
        if sizes is None:
            helpers.build_blending_indices(dataset_index, sample_index, weights, num_datasets, size, False)
        else:
            helpers.build_exhaustive_blending_indices(dataset_index, sample_index, sizes, num_datasets)

    def ours():
        return kernels.build_blending_indices(weights, size=size, sizes=sizes)

    peer()
    for mine, theirs in zip(ours(), (dataset_index, sample_index), strict=True):
        assert np.array_equal(mine, theirs)
    times = {peers.OURS: [], peers.PEER: []}
    for _ in range(rounds if num_datasets < 1000 else 1):  # the peer takes minutes
        times[peers.OURS].append(nanoseconds(ours, size))
        times[peers.PEER].append(nanoseconds(peer, size))
    mine, theirs = (statistics.median(times[side]) for side in peers.SIDES)
    return [num_datasets, kind, mode, f"{mine:.1f}", f"{theirs:.1f}", f"{theirs / mine:.1f}x"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--datasets", type=int, nargs="+", default=[2, 5, 10, 100, 1000, 5000])
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    peers.modules(peers.PEER)
    from megatron.core.datasets import helpers

    rows = [
        bench(helpers, num_datasets, kind, mode, options.rounds)
        for mode in ("weighted", "exhaustive")
        for kind in ("dirichlet", "equal")
        for num_datasets in options.datasets
    ]
    common.print_rows(
        "Blending indices, ns per sample (medians)", ("datasets", "weights", "mode", "ours", "peer", "speed-up"), rows
    )


if __name__ == "__main__":
    main()
