"""Plans of one global batch: the slowest ranks over the mean, fill, and milliseconds, beside the reference's planning.

`critical path` is what the slowest ranks of all microbatches take together over what all ranks take on average; beside
it stands what no plan with groups of one size can be below, so that above 1.05 single lengths, or their number, force
more. Groups of several sizes can share any of them. `default_dynamic_cp` gives the plans of the reference's development
branch. `BalancedCPScheduler` is the one of the megatron-core that is installed: it does not pack, and takes no heed of
what a rank can hold. Schedulers alternate in one thread; times are processor time.

Then static shapes: how full packs are where they hold no more than so many times the mean number of sub-samples.
"""

from __future__ import annotations

import argparse
import statistics
import time
from importlib import metadata

import common
import numpy as np
from pack_lengths import MODELS, SHAPES, critical_path, reference_scheduler

from tokenloom import pack_report, scheduler_map
from tokenloom.packing.plan import padded_lengths

SCHEDULERS = ("cost_balanced", "hybrid_cost_balanced", "default_dynamic_cp")
SIZES = ("64x2048", "256x8192")
LIMITS = (1.5, 2.0)


def plans(shape_name: str, num_ranks: int, count: int, rounds: int) -> list[list[object]]:
    """Returns a row for each scheduler and cost model."""
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
    """Returns a row for what megatron-core plans, whose own costs are quadratic; none where it is not installed."""
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
    """Returns a row for each scheduler: how full packs are, without a limit on their sub-samples and with one."""
    shape = SHAPES[shape_name]
    lengths = shape.draw(np.random.default_rng(count), count)
    rows = []
    for scheduler in SCHEDULERS[:2]:
        settings = {"dp_size": num_ranks // shape.cp_size, "cp_size": shape.cp_size, "cost_model": MODELS["mixed"]}
        tokens = padded_lengths(lengths, cp_size=shape.cp_size)
        free = scheduler_map[scheduler](shape.capacity, **settings).plan(tokens)
        mean = count / free.num_packs
        cells: list[object] = []
        for times in (None, *LIMITS):
            most = None if times is None else max(int(np.ceil(mean * times)), 2)
            plan = scheduler_map[scheduler](shape.capacity, max_num_seqs=most, **settings).plan(tokens)
            fill = int(tokens.sum()) / (plan.num_microbatches * num_ranks * shape.capacity)
            cells += [f"{fill:.1%}" if most is None else f"{fill:.1%} ({most})"]
        rows.append([shape_name, f"{num_ranks} x {count:,}", scheduler, f"{mean:.1f}", *cells])
    return rows


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
    columns = ("lengths", "ranks", "scheduler", "mean", "fill", *(f"at most {times} x the mean" for times in LIMITS))
    common.print_rows(
        "Static shapes: fill, and sub-samples per pack", columns, [row for one in grid for row in static_shapes(*one)]
    )


if __name__ == "__main__":
    main()
