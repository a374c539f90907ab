"""A side as a child process: prepares, reports that it is ready, then runs one round per request.

Uses the standard library only, since it runs in the environments of all peers. Messages are lines of JSON.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

FRESH = "fresh"  # in the second argument: each round takes a process of its own

Outcome = dict[str, Any]
"""What a round did: `work` (the units done); optionally `seconds`, where not all of the call counts, `memory_bytes`,
where the growth of this process's peak is not what is meant, and `digest` of what was made, or what computes it once
the clock has stopped."""


def serve(prepare: Callable[..., Callable[[], Outcome]], *, imports: Callable[..., object] | None = None) -> None:
    """Serves the parent until it closes the pipe.

    Args:
        prepare: function of the side's arguments that returns a round.
        imports: function of the same arguments that imports what every round needs, before new processes are forked.
    """
    arguments = json.loads(sys.argv[1])
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no reply
    is_fresh = sys.argv[2:] == [FRESH]
    if is_fresh and imports is not None:
        imports(**arguments)
    round_ = None if is_fresh else prepare(**arguments)
    print(json.dumps({"ready": True}), file=replies, flush=True)
    for _ in sys.stdin:
        if round_ is not None:
            print(json.dumps(measured(round_)), file=replies, flush=True)
        elif process := os.fork():
            if status := os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]):
                sys.exit(abs(status))
        else:
            print(json.dumps(measured(prepare(**arguments))), file=replies, flush=True)
            return


def measured(round_: Callable[[], Outcome]) -> Outcome:
    """Runs one round; adds its seconds and the growth of peak resident memory in bytes."""
    os.sync()  # what another side has left to be written is not to be waited for by this one
    before = memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # forget earlier peaks
    started = time.perf_counter()
    outcome = round_()
    seconds = time.perf_counter() - started
    found = {"seconds": seconds, "memory_bytes": max(memory("VmHWM") - before, 0), **outcome}
    if callable(digest := outcome.get("digest")):
        found["digest"] = digest()
    return found


def memory(field: str) -> int:
    """Returns a field of this process's memory in bytes, including touched pages of mapped files."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise KeyError(field)


def tree_memory() -> int:
    """Returns the bytes of this process and its descendants: shared memory once, without file pages."""
    return sum(private_memory(process) for process in [os.getpid(), *descendants(os.getpid())])


def private_memory(process: int) -> int:
    """Returns the bytes of a process that are not backed by files; shared memory counts proportionally."""
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):  # it has just ended
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(("Pss_Anon:", "Pss_Shmem:")))


def descendants(process: int) -> list[int]:
    """Returns all descendants of a process."""
    found: list[int] = []
    try:
        for task in Path(f"/proc/{process}/task").iterdir():
            for child in map(int, (task / "children").read_text().split()):
                found += [child, *descendants(child)]
    except (FileNotFoundError, ProcessLookupError):
        pass
    return found


class PeakOfTree:
    """The peak memory of this process and its descendants inside a `with` block, sampled regularly."""

    PAUSE_SECONDS = 0.1

    def __enter__(self) -> PeakOfTree:
        self.peak_bytes = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(self.PAUSE_SECONDS):
            self.peak_bytes = max(self.peak_bytes, tree_memory())
