"""Forks of a process whose threads go on reading."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

LONGEST_SECONDS = 60


@contextmanager
def threads_calling(work, count=3):
    """Calls something over and over in threads, and raises what it raised."""
    stop = threading.Event()

    def work_on():
        while not stop.is_set():
            work()

    with ThreadPoolExecutor(count) as executor:
        done = [executor.submit(work_on) for _ in range(count)]
        try:
            yield
        finally:
            stop.set()
    for each in done:
        each.result()


def fork_result(work) -> int:
    """Returns the exit status of a child that calls something: 0, 1 if it raised, -SIGALRM, with stacks, if it hung."""
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            faulthandler.register(signal.SIGALRM, file=2, chain=True)  # type: ignore[arg-type]
            signal.alarm(LONGEST_SECONDS)
            work()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
