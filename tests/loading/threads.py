"""A dataset that takes its time, and the threads that read it."""

from __future__ import annotations

import threading
import time

from tests.support import wait_until


def loader_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("tokenloom-loader")]


class Slow:
    """A dataset whose batches take their time, the first ones longest, and fail where they are told to.

    Args:
        dataset: what it reads.
        fails_at: a position whose batch fails.
        waits_for: batches that must be under way at once before the first of them goes on.
    """

    def __init__(self, dataset, fails_at=None, *, waits_for=1):
        self.dataset = dataset
        self.fails_at = fails_at
        self.waits_for = waits_for
        self.most_under_way = self.under_way = 0
        self.lock = threading.Lock()

    def batch(self, positions):
        with self.lock:
            self.under_way += 1
            self.most_under_way = max(self.most_under_way, self.under_way)
        wait_until(lambda: self.most_under_way >= self.waits_for)
        time.sleep(0.02 / (1 + positions[0]))
        with self.lock:
            self.under_way -= 1
        if self.fails_at in positions:
            raise ValueError("broken data")
        return self.dataset.batch(positions)
