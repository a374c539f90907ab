"""Packs of sequences with shared prefixes: planning time, saved tokens, and balance.

`saved` is the share of all tokens that is not computed, `of ideal` is that share relative to a plan that repeats
nothing. `balance` is the time of the slowest ranks over the mean of all ranks, `over ideal` over the mean of a plan
that repeats nothing. Planning is the trees and the plan of all ranks, in milliseconds of one process. `run.py --only
packing` times a step of a model over such packs.
"""

from __future__ import annotations

import argparse
import statistics
import time

import common
import numpy as np

from tokenloom import PolynomialCost
from tokenloom.packing import PrefixForest, PrefixTreeScheduler

SHAPES = {
    "128 prompts x 8, 8,192 each": (128, 8, 2048, 6144, 6145, 32768, 64),
    "64 prompts x 16, 8,192 each": (64, 16, 2048, 6144, 6145, 131072, 64),
    "128 prompts x 8, to 8,192": (128, 8, 2048, 100, 6144, 32768, 64),
    "16 prompts x 64, to 8,192": (16, 64, 2048, 100, 6144, 65536, 8),
    "512 pairs, to 4,096": (512, 2, 1500, 100, 2596, 32768, 8),
}
"""Prompts, rollouts of each, tokens of a prompt, least and most of a response, tokens of a rank, ranks."""


def rollouts(rng: np.random.Generator, prompts: int, each: int, size: int, least: int, most: int) -> list[np.ndarray]:
    sequences = []
    for _ in range(prompts):
        prompt = rng.integers(0, 50_000, size, dtype=np.int32)
        responses = (rng.integers(0, 50_000, rng.integers(least, most), dtype=np.int32) for _ in range(each))
        sequences += [np.concatenate([prompt, response]) for response in responses]
    return [sequences[number] for number in rng.permutation(len(sequences))]


def plan_row(name: str, rounds: int) -> list[object]:
    *shape, max_tokens, dp_size = SHAPES[name]
    sequences = rollouts(np.random.default_rng(0), *shape)
    scheduler = PrefixTreeScheduler(max_tokens, 1, dp_size)
    times = []
    for _ in range(rounds):
        started = time.perf_counter()
        forest = PrefixForest.of(sequences)
        met = time.perf_counter()
        plan = scheduler.plan_forest(forest)
        times.append((met - started, time.perf_counter() - started))
    model, costs, tokens = PolynomialCost(), [], 0
    for microbatch in range(plan.num_microbatches):
        packs = [PrefixForest.of([sequences[i] for i in plan.ids_of(microbatch, rank)]) for rank in range(dp_size)]
        costs.append([cost_of(pack, model) for pack in packs])
        tokens += sum(pack.num_tokens for pack in packs)
    total, slowest = sum(map(len, sequences)), np.max(costs, axis=1).sum()
    return [
        name,
        dp_size,
        plan.num_microbatches,
        f"{1 - tokens / total:.1%}",
        f"{(total - tokens) / (total - forest.num_tokens):.1%}",
        f"{slowest / np.sum(costs) * dp_size:.3f}",
        f"{slowest / cost_of(forest, model) * dp_size:.3f}",
        f"{1e3 * statistics.median(first for first, _ in times):.1f}",
        f"{1e3 * statistics.median(whole for _, whole in times):.1f}",
    ]


def cost_of(forest: PrefixForest, model: PolynomialCost) -> float:
    shared = np.where(forest.shared > 0, model.cost(np.maximum(forest.shared, 1), 1), 0)
    return float((model.cost(forest.lengths, 1) - shared).sum())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    head = ["sequences", "ranks", "microbatches", "saved", "of ideal", "balance", "over ideal", "trees ms", "plan ms"]
    common.print_rows("plans", head, [plan_row(name, options.rounds) for name in SHAPES])


if __name__ == "__main__":
    main()
