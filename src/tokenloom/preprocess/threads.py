"""Worker threads whose results come in the order of their inputs."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from tokenloom.errors import ConfigError

Given = TypeVar("Given")
Made = TypeVar("Made")


def usable_processors() -> int:
    """Returns how many processors this process may use."""
    return len(os.sched_getaffinity(0))


def number_of_workers(wanted: int | None) -> int:
    """Returns how many threads are to tokenise; None asks for one per usable processor.

    Raises:
        ConfigError: fewer than one are wanted.
    """
    workers = usable_processors() if wanted is None else wanted
    if workers < 1:
        message = f"expected at least 1 worker, got {workers!r}"
        raise ConfigError(message)
    return workers


@contextmanager
def worker_threads(count: int) -> Iterator[ThreadPoolExecutor]:
    """Leaves without starting what waits; blocks being worked on are finished, and their results dropped."""
    executor = ThreadPoolExecutor(count, thread_name_prefix="tokenloom")
    try:
        yield executor
    finally:
        executor.shutdown(cancel_futures=True)


def in_order(
    executor: ThreadPoolExecutor,
    work: Callable[[Given], Made],
    first: Given | None,
    rest: Iterable[Given],
    *,
    num_ahead: int,
) -> Iterator[Made]:
    """Yields what is made of the blocks, in order; at most `num_ahead` are read and not yielded.

    Args:
        executor: whose threads work.
        work: safe from several threads.
        first: a block that was read before the others; None if there is none.
        rest: the others.
        num_ahead: bounds the memory.
    """
    running: deque[Future[Made]] = deque()
    if first is not None:
        running.append(executor.submit(work, first))
    for block in rest:
        running.append(executor.submit(work, block))
        del block  # the thread's to drop
        if len(running) > num_ahead:
            yield running.popleft().result()
    while running:
        yield running.popleft().result()
