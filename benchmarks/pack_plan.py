"""Plans of one global batch: imbalance, fill and seconds, by ranks and shape of lengths, with `dp_balanced` beside.

One thread; schedulers alternate. `worst` and `time` come with what no plan can be below: see `tokenloom pack-report`.
`free` is the worst microbatch but for the forced ones: the costliest, which no plan brings within 5 % of their mean.
"""

from __future__ import annotations

import argparse
import statistics
import time

import common
import numpy as np

from tokenloom import pack_report, scheduler_map

MAX_TOKENS = 8192
SCHEDULERS = ("dp_balanced", "cost_balanced", "hybrid_cost_balanced")


def draw(kind: str, count: int):
    """Returns lengths: lognormal, cut at a pack; or a tenth long, the rest short."""
    rng = np.random.default_rng(count)
    if kind == "lognormal":
        return np.clip(rng.lognormal(np.log(800), 1.0, size=count).astype(np.int64), 1, MAX_TOKENS)
    return np.where(rng.random(count) < 0.1, rng.integers(6000, MAX_TOKENS + 1, count), rng.integers(50, 600, count))


def bench(kind: str, num_ranks: int, per_rank: int, rounds: int) -> list[list[object]]:
    """Returns one row of the table for each scheduler."""
    lengths = draw(kind, per_rank * num_ranks)
    report = pack_report(lengths, max_seqlen_per_dp_cp_rank=MAX_TOKENS, dp_size=num_ranks, schedulers=SCHEDULERS)
    times = {name: [] for name in SCHEDULERS}
    for _ in range(rounds):
        for name in SCHEDULERS:
            scheduler = scheduler_map[name](MAX_TOKENS, 1, num_ranks)
            started = time.perf_counter()
            scheduler.plan(lengths)
            times[name].append(time.perf_counter() - started)
    return [
        [
            kind,
            num_ranks,
            len(lengths),
            row.scheduler,
            f"{row.num_microbatches} (>= {report.least_microbatches})",
            f"{row.fill:.2%}",
            f"{row.worst_imbalance:.3f} (>= {report.least_imbalance:.3f})",
            f"{row.free_imbalance:.3f} ({report.num_forced})",
            f"{row.relative_time:.4f} (>= {report.least_relative_time:.4f})",
            f"{statistics.median(times[row.scheduler]) * 1e3:.1f}",
            f"{min(times[row.scheduler]) * 1e3:.1f}",
        ]
        for row in report.rows
        if row.scheduler in times
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[8, 64, 512])
    parser.add_argument("--per-rank", type=int, default=128, help="sub-samples")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    rows = [
        row
        for kind in ("lognormal", "bimodal")
        for num_ranks in options.ranks
        for row in bench(kind, num_ranks, options.per_rank, options.rounds)
    ]
    columns = (
        "lengths",
        "ranks",
        "sub-samples",
        "scheduler",
        "microbatches",
        "fill",
        "worst",
        "free (forced)",
        "time",
        "ms",
        "least ms",
    )
    common.print_rows("Plans of one global batch (attention work; medians)", columns, rows)


if __name__ == "__main__":
    main()
