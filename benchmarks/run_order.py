"""The computed order: nanoseconds per position, by the number of sources, with megatron-core's blend beside.

One thread, in arrays of `--batch`. `lookup` is position to (source, take) at random positions, `inverse` the way back,
`mixed` a lookup of successive positions through mixing blocks of 1,024; `per block` is what the first position of a
block costs. The peer can only fill an array for all positions from the first on, so it is timed on the first
`--peer-positions`, and `100 M` is what follows for a hundred million; above `--most-for-peer` sources it is left out,
as it takes minutes. The second table is of permutations, the third of a hundred million positions, one after the other.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import common
import numpy as np
import peers

from tokenloom.kernels.mixture import MixedStage, Mixture
from tokenloom.kernels.permutation import Key, Permutation

KEY = Key(1, 2)
LONG = 100_000_000


def nanoseconds(call: Callable[[], object], per_call: int, rounds: int) -> float:
    """Returns the median of what one of `per_call` things takes."""
    times = []
    for _ in range(rounds):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return statistics.median(times) / per_call * 1e9


def weights_of(num_sources: int) -> np.ndarray:
    drawn = np.random.default_rng(num_sources).dirichlet(np.ones(num_sources))
    return (drawn * 1e12).astype(np.int64) + 1


def peer_blend(weights: np.ndarray, size: int) -> Callable[[], object]:
    """Returns what fills the peer's arrays, which exist already."""
    peers.modules(peers.PEER)
    from megatron.core.datasets import helpers

    arrays = np.zeros(size, dtype=np.int16), np.zeros(size, dtype=np.int64)
    shares = weights / weights.sum()
    return lambda: helpers.build_blending_indices(*arrays, shares, len(shares), size, False)


def mixture_row(num_sources: int, options: argparse.Namespace) -> list[object]:
    weights, batch, rounds = weights_of(num_sources), options.batch, options.rounds
    started = time.perf_counter()
    mixture = Mixture(weights)
    built = time.perf_counter() - started
    positions = np.random.default_rng(0).integers(0, 1 << 54, size=batch)
    leaves, takes = mixture.locate(positions)
    stage = MixedStage(weights, 0, 1 << 50, 1024, KEY)
    firsts = np.arange(batch // 64, dtype=np.int64) * 1024
    walk = iter(range(1, 1 << 40))
    row = [
        num_sources,
        f"{built * 1e3:.2f}",
        f"{nanoseconds(lambda: mixture.locate(positions), batch, rounds):.1f}",
        f"{nanoseconds(lambda: mixture.positions(leaves, takes), batch, rounds):.1f}",
        f"{nanoseconds(lambda: stage.locate(np.arange(batch) + next(walk) * batch), batch, rounds):.1f}",
        f"{nanoseconds(lambda: stage.locate(firsts + next(walk) * batch * 16), len(firsts), rounds):.0f}",
    ]
    if num_sources > options.most_for_peer:
        return [*row, "-", "-"]
    peer = nanoseconds(peer_blend(weights, options.peer_positions), options.peer_positions, 1)
    return [*row, f"{peer:.1f}", f"{peer * LONG / 1e9:.0f} s"]


def permutation_row(n: int, options: argparse.Namespace) -> list[object]:
    batch, rounds = options.batch, options.rounds
    permutation = Permutation(n, KEY)
    places = np.random.default_rng(0).integers(0, n, size=batch)
    alone = places[:1].copy()
    return [
        n,
        f"{nanoseconds(lambda: permutation.forward(places), batch, rounds):.1f}",
        f"{nanoseconds(lambda: permutation.inverse(places), batch, rounds):.1f}",
        f"{nanoseconds(lambda: Permutation(n, KEY), 1, 50 * rounds):.0f}",
        f"{nanoseconds(lambda: permutation.forward(alone), 1, 50 * rounds):.0f}",
    ]


def long_order(num_sources: int, batch: int) -> float:
    """Returns the seconds that a hundred million positions take, with mixing, batch after batch."""
    stage = MixedStage(weights_of(num_sources), 0, LONG, 1024, KEY)
    started = time.perf_counter()
    for begin in range(0, LONG, batch):
        stage.locate(np.arange(begin, min(begin + batch, LONG)))
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sources", type=int, nargs="+", default=[2, 10, 100, 1000, 10_000, 30_000])
    parser.add_argument("--batch", type=int, default=1 << 16)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--peer-positions", type=int, default=1 << 20)
    parser.add_argument("--most-for-peer", type=int, default=1000)
    options = parser.parse_args()
    common.print_rows(
        "which source, and which of its samples (ns per position)",
        ["sources", "build ms", "lookup", "inverse", "mixed", "per block", "peer", "peer, 100 M"],
        [mixture_row(count, options) for count in options.sources],
    )
    common.print_rows(
        "permutations (ns per index)",
        ["things", "forward", "inverse", "to make", "one call, one index"],
        [permutation_row(n, options) for n in (100, 1024, 2000, 65_535, 65_536, 10**6, 10**9, 2**60)],
    )
    common.print_rows(
        "the order of 100 M positions, mixed (s)",
        ["sources", "seconds"],
        [[count, f"{long_order(count, options.batch):.2f}"] for count in (2, 1000)],
    )


if __name__ == "__main__":
    main()
