"""Plans of one global batch: slowest ranks over the mean, fill, and milliseconds, compared with Megatron's planning.

`critical path` is the time of the slowest ranks of all microbatches over the mean of all ranks. The next column is its
lower bound for groups of one size: above 1.05, single lengths or their number force more. Groups of several sizes can
share such lengths. `default_dynamic_cp` has the plans of Megatron's development branch. `BalancedCPScheduler` is that
of the installed megatron-core: it does not pack, and ignores the capacity of a rank. Schedulers alternate in one
thread; times are CPU time.

Static shapes: the fill of packs whose sub-samples are limited to a multiple of the mean number, relative to the
possible fill: few sub-samples fit beside long ones, and packs without long ones are limited, too.
"""

from __future__ import annotations

import argparse
import statistics
import time
from importlib import metadata

import common
import numpy as np
from pack_lengths import MODELS, SHAPES, critical_path, reference_scheduler

from tokenloom import CostBalancedScheduler, scheduler_map
from tokenloom.packing.balanced import Task, least_microbatches
from tokenloom.packing.pack_plan import padded_lengths
from tokenloom_check import pack_report

SCHEDULERS = ("cost_balanced", "hybrid_cost_balanced", "default_dynamic_cp")
SIZES = ("64x2048", "256x8192")
LIMITS = (1.5, 2.0)


def plans(shape_name: str, num_ranks: int, count: int, rounds: int) -> list[list[object]]:
    """Returns a row per scheduler and cost model."""
    shape = SHAPES[shape_name]
    lengths = shape.draw(np.random.default_rng(count), count)
    head = [shape_name, f"{num_ranks} x {count:,}"]
    rows = []
    for name, model in MODELS.items():
        settings = {"max_seqlen_per_dp_cp_rank": shape.capacity, "cp_size": shape.cp_size, "cost_model": model}
        report = pack_report(lengths, dp_size=num_ranks // shape.cp_size, schedulers=SCHEDULERS, **settings)
        tokens = padded_lengths(lengths, cp_size=shape.cp_size)
        made = {
            scheduler: scheduler_map[scheduler](dp_size=num_ranks // shape.cp_size, **settings)
            for scheduler in SCHEDULERS
        }
        seconds: dict[str, list[float]] = {scheduler: [] for scheduler in SCHEDULERS}
        for _ in range(rounds):
            for scheduler in SCHEDULERS:
                started = time.process_time()
                made[scheduler].plan(tokens)
                seconds[scheduler].append(time.process_time() - started)
        rows += [
            [
                *head,
                name,
                row.scheduler,
                row.num_microbatches,
                f"{row.fill:.1%}",
                f"{row.relative_time:.3f}",
                f"{report.least_relative_time:.3f}" if row.scheduler == "cost_balanced" else "",
                f"{row.worst_imbalance:.2f}",
                f"{statistics.median(seconds[row.scheduler]) * 1e3:.1f}",
                f"{max(seconds[row.scheduler]) * 1e3:.1f}",
            ]
            for row in report.rows
            if row.scheduler in seconds
        ]
    return rows + reference(head, lengths, num_ranks, shape.capacity)


def reference(head: list[object], lengths: np.ndarray, num_ranks: int, capacity: int) -> list[list[object]]:
    """Returns a row for the plan of megatron-core, whose costs are quadratic; no row if it is not installed."""
    try:
        plan = reference_scheduler(num_ranks, capacity)
    except ImportError:
        return []
    started = time.process_time()
    steps = plan(lengths)
    spent = f"{(time.process_time() - started) * 1e3:.0f}"
    path = f"{critical_path(steps, lengths, MODELS['quadratic']):.3f}"
    return [[*head, "quadratic", "BalancedCPScheduler", len(steps), "", path, "", "", spent, spent]]


def static_shapes(shape_name: str, num_ranks: int, count: int) -> list[list[object]]:
    """Returns a row per scheduler: the fill of packs with and without a limit of sub-samples."""
    shape = SHAPES[shape_name]
    lengths = shape.draw(np.random.default_rng(count), count)
    dp_size = num_ranks // shape.cp_size
    tokens = padded_lengths(lengths, cp_size=shape.cp_size)
    capacity = shape.capacity * shape.cp_size
    rows = []
    for name, model in MODELS.items():
        scheduler = CostBalancedScheduler(shape.capacity, shape.cp_size, dp_size, cost_model=model)
        free = scheduler.plan(tokens)
        mean = count / free.num_packs
        ordered = -np.sort(-tokens)
        cells: list[object] = [f"{_fill(tokens, free.num_microbatches, dp_size * capacity):.1%}"]
        for times in LIMITS:
            most = int(np.ceil(mean * times))
            limited = CostBalancedScheduler(
                shape.capacity, shape.cp_size, dp_size, max_num_seqs=most, cost_model=model
            ).plan(tokens)
            task = Task(lengths=ordered, costs=ordered, capacity=capacity, most_items=most, num_ranks=dp_size)
            found = _fill(tokens, limited.num_microbatches, dp_size * capacity)
            possible = _fill(tokens, max(least_microbatches(task, 1), free.num_microbatches), dp_size * capacity)
            cells.append(f"{found:.1%} of {possible:.1%} ({most})")
        rows.append([shape_name, f"{num_ranks} x {count:,}", name, f"{mean:.1f}", *cells])
    return rows


def _fill(tokens: np.ndarray, num_microbatches: int, room: int) -> float:
    return int(tokens.sum()) / (num_microbatches * room)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", default=SIZES[:1], help=f"ranks x sub-samples; all: {' '.join(SIZES)}")
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    sizes = [tuple(map(int, size.split("x"))) for size in options.sizes]
    grid = [(shape, *size) for size in sizes for shape in options.shapes]
    rows = [row for one in grid for row in plans(*one, options.rounds)]
    columns = ("lengths", "ranks", "costs", "scheduler", "microbatches", "fill", "critical path", ">=", "worst")
    try:
        release = metadata.version("megatron-core")
    except metadata.PackageNotFoundError:
        release = "not installed"
    common.print_rows(f"Plans of one global batch (megatron-core {release})", (*columns, "ms", "most ms"), rows)
    columns = ("lengths", "ranks", "costs", "mean", "fill", *(f"at most {times} x the mean" for times in LIMITS))
    rows = [row for one in grid for row in static_shapes(*one)]
    common.print_rows("Static shapes: fill by cost_balanced, and sub-samples per pack", columns, rows)


if __name__ == "__main__":
    main()
