"""Planning one global batch, from lengths to the sub-samples of every rank; or sorting the lengths, as all must."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from pack_lengths import MODELS, SHAPES, Steps, critical_path, reference_scheduler
from serve import Outcome, serve


def prepare(
    *, folder: str, scheduler: str, shape: str, ranks: int, count: int, is_timed: bool
) -> Callable[[], Outcome]:
    """Draws the lengths; `scheduler` is a name of ours, "reference", or "even": what nothing can be below.

    A round is a plan, or, if it is not timed, tells the critical path of the one that was made beforehand.
    """
    drawn = SHAPES[shape]
    lengths = drawn.draw(np.random.default_rng(count), count)
    if scheduler == "even":
        return lambda: {"work": np.sort(lengths, kind="stable").size, "ratio": 1.0}
    plan = reference_scheduler(ranks, drawn.capacity) if scheduler == "reference" else ours(scheduler, shape, ranks)
    if is_timed:
        return lambda: {"work": len(plan(lengths))}
    ratio = critical_path(plan(lengths), lengths, MODELS["quadratic"])
    return lambda: {"work": 1, "ratio": ratio}


def ours(name: str, shape: str, ranks: int) -> Callable[[np.ndarray], Steps]:
    """Returns what plans as a scheduler of ours, with lists at the end, as the peer gives them."""
    from tokenloom import scheduler_map

    drawn = SHAPES[shape]
    scheduler = scheduler_map[name](drawn.capacity, 1, ranks, cost_model=MODELS["quadratic"])
    return lambda lengths: scheduler.plan(lengths).assignments


if __name__ == "__main__":
    serve(prepare)
