"""Lengths of global batches by distribution, and Megatron's own planning for comparison."""

from __future__ import annotations

import sysconfig
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from tokenloom.packing import PolynomialCost

Steps = list[list[list[int]]]
"""Sub-samples by step and rank."""

MODELS = {
    "linear": PolynomialCost(linear=1.0, quadratic=0.0),
    "mixed": PolynomialCost(linear=12.0 * 2048, quadratic=1.0),  # a hidden size of 2,048
    "quadratic": PolynomialCost(),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A distribution of lengths.

    Attributes:
        draw: function of a generator and a count that returns int64[count].
        capacity: tokens of a rank.
        cp_size: ranks per group, if all groups have one size.
    """

    draw: Callable[[np.random.Generator, int], np.ndarray]
    capacity: int = 8192
    cp_size: int = 1


def uniform(rng: np.random.Generator, count: int) -> np.ndarray:
    return rng.integers(1, 8193, count)


def lognormal(rng: np.random.Generator, count: int) -> np.ndarray:
    return np.clip(rng.lognormal(np.log(800), 1.0, count), 1, 8192).astype(np.int64)


def bimodal(rng: np.random.Generator, count: int) -> np.ndarray:
    """A tenth of the lengths is about 37 k, the others about 1 k."""
    is_long = rng.random(count) < 0.1
    return np.where(is_long, rng.integers(36_000, 38_001, count), rng.integers(512, 1537, count))


def real(rng: np.random.Generator, count: int) -> np.ndarray:
    """The files of Python's standard library, at four bytes per token, truncated to a pack."""
    folder = Path(sysconfig.get_path("stdlib"))
    files = sorted(path for path in folder.rglob("*.py") if "site-packages" not in path.parts)
    sizes = np.array([path.stat().st_size for path in files])
    return np.clip(rng.choice(sizes[sizes > 0], count) // 4, 1, 8192).astype(np.int64)


SHAPES = {
    "uniform": Shape(draw=uniform),
    "lognormal": Shape(draw=lognormal),
    "real": Shape(draw=real),
    "1 k / 37 k, whole": Shape(draw=bimodal, capacity=40_960),
    "1 k / 37 k, shared": Shape(draw=bimodal, cp_size=8),
}


def reference_scheduler(num_ranks: int, capacity: int) -> Callable[[np.ndarray], Steps]:
    """Returns a planner with the `BalancedCPScheduler` of the installed megatron-core.

    It does not pack: a rank processes its sub-samples of a step one at a time, and together they may exceed its
    capacity.

    Raises:
        ImportError: megatron-core is not installed, or has no such scheduler.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what it would like to have beside it
        from megatron.core.pipeline_parallel.hybrid_cp_schedule import BalancedCPScheduler

    def plan(lengths: np.ndarray) -> Steps:
        scheduler = BalancedCPScheduler(capacity, SimpleNamespace(size=lambda: num_ranks))
        pairs = sorted(enumerate(lengths.tolist()), key=lambda pair: -pair[1])
        return scheduler.get_groups_and_subsamples(pairs, None)[1]

    return plan


def critical_path(steps: Steps, lengths: np.ndarray, model: PolynomialCost) -> float:
    """Returns the cost of the slowest ranks of all steps, relative to the mean of all ranks.

    Ranks share a sub-sample that is listed for several of them.
    """
    slowest = total = 0.0
    for ranks in steps:
        sharers = Counter(number for numbers in ranks for number in numbers)
        by_size = {size: model.cost(lengths, size).tolist() for size in set(sharers.values())}
        costs = [sum(by_size[sharers[number]][number] for number in numbers) for numbers in ranks]
        slowest += max(costs)
        total += sum(costs) / len(costs)
    return slowest / total
