"""A slow dataset, and the threads that read it."""

from __future__ import annotations

import threading
import time

from tests.support import wait_until


def loader_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("tokenloom-loader")]


class Slow:
    """A dataset with slow batches: that of `fails_at` fails, and the first waits until `waits_for` are in progress."""

    def __init__(self, dataset, fails_at=None, *, waits_for=1, fills_batches=False):
        self.dataset = dataset
        self.fills_batches = fills_batches
        self.fails_at = fails_at
        self.waits_for = waits_for
        self.most_under_way = self.under_way = 0
        self.lock = threading.Lock()

    def allocate_batch(self, count, **settings):
        return self.dataset.allocate_batch(count, **settings)

    def batch(self, positions, **out):
        with self.lock:
            self.under_way += 1
            self.most_under_way = max(self.most_under_way, self.under_way)
        wait_until(lambda: self.most_under_way >= self.waits_for)
        time.sleep(0.02 / (1 + positions[0]))
        with self.lock:
            self.under_way -= 1
        if self.fails_at in positions:
            raise ValueError("broken data")
        return self.dataset.batch(positions, **out)
