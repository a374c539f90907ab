"""A dataset that takes its time, and the threads that read it."""

from __future__ import annotations

import threading
import time


def loader_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("tokenloom-loader")]


class Slow:
    """A dataset whose batches take their time, the first ones longest, and fail where they are told to."""

    def __init__(self, dataset, fails_at=None):
        self.dataset = dataset
        self.fails_at = fails_at
        self.most_under_way = self.under_way = 0
        self.lock = threading.Lock()

    def batch(self, positions):
        with self.lock:
            self.under_way += 1
            self.most_under_way = max(self.most_under_way, self.under_way)
        time.sleep(0.02 / (1 + positions[0]))
        with self.lock:
            self.under_way -= 1
        if self.fails_at in positions:
            raise ValueError("broken data")
        return self.dataset.batch(positions)
