"""Planning of one global batch, from lengths to the sub-samples of every rank; or only sorting the lengths."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from pack_lengths import MODELS, SHAPES, Steps, critical_path, reference_scheduler
from serve import Outcome, serve


def prepare(
    *, folder: str, scheduler: str, shape: str, ranks: int, count: int, is_timed: bool
) -> Callable[[], Outcome]:
    """Draws the lengths; `scheduler` is a tokenloom name, "reference", or "even" for the lower bound.

    A round plans, or, if it is not timed, returns the critical path of a prepared plan.
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
    """Returns a function that plans with a tokenloom scheduler and returns lists, like the peer."""
    from tokenloom import scheduler_map

    drawn = SHAPES[shape]
    scheduler = scheduler_map[name](drawn.capacity, 1, ranks, cost_model=MODELS["quadratic"])
    return lambda lengths: scheduler.plan(lengths).assignments


if __name__ == "__main__":
    serve(prepare)
