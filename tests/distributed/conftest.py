"""Groups of real processes, one per rank."""

from __future__ import annotations

import multiprocessing.connection
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

PATIENCE_SECONDS = 60
"""Before a case counts as hanging; the slowest takes 3 seconds on an idle machine."""


@dataclass
class Outcomes:
    """What became of each rank that lived, by rank; and which files the ranks left."""

    by_rank: dict[int, dict[str, Any]]
    shared: Path

    @property
    def results(self) -> list[Any]:
        assert not [outcome for outcome in self.by_rank.values() if "kind" in outcome], self.by_rank
        return [self.by_rank[rank]["result"] for rank in sorted(self.by_rank)]

    @property
    def errors(self) -> list[tuple[str, str]]:
        assert all("kind" in outcome for outcome in self.by_rank.values()), self.by_rank
        return [(outcome["kind"], outcome["message"]) for _, outcome in sorted(self.by_rank.items())]

    def noted(self, prefix: str) -> list[int]:
        return sorted(int(path.name.split("-")[1]) for path in self.shared.glob(f"{prefix}-?"))

    def seconds_after(self, what: str, rank: int) -> float:
        noted: float = self.by_rank[rank]["time"] - float((self.shared / what).read_text())
        return noted

    def seconds_after_the_kill(self) -> float:
        killed = float((self.shared / "killed").read_text())
        return max(outcome["time"] for outcome in self.by_rank.values()) - killed


def _hear(waiting: dict[int, Any], by_rank: dict[int, Any], case: str) -> None:
    """Waits for what came of some ranks."""
    stop = time.monotonic() + PATIENCE_SECONDS
    while waiting:
        ready = multiprocessing.connection.wait(waiting.values(), timeout=stop - time.monotonic())
        assert ready, f"{case} hangs on ranks {list(waiting)}; so far: {by_rank}"
        for rank in [rank for rank, connection in waiting.items() if connection in ready]:
            try:
                by_rank[rank] = waiting[rank].recv()
            except EOFError:  # killed
                waiting[rank].close()
            del waiting[rank]


@pytest.fixture
def run(forkserver, tmp_path):
    """Runs a case of `worker` on every rank of a group; the frozen are woken when others have ended."""
    processes = []

    def run(case, *, world_size=4, backend="gloo", frozen=(), **options):
        worker = __import__("tests.distributed.worker", fromlist=["main"]).main
        connections, ranks = [], []
        for rank in range(world_size):
            ours, theirs = forkserver.Pipe()
            arguments = (theirs, rank, world_size, tmp_path, backend, case, options)
            processes.append(forkserver.Process(target=worker, args=arguments, daemon=True))
            processes[-1].start()
            theirs.close()
            connections.append(ours)
            ranks.append(processes[-1])
        by_rank = {}
        _hear({rank: connections[rank] for rank in range(world_size) if rank not in frozen}, by_rank, case)
        for rank in frozen:
            os.kill(ranks[rank].pid, signal.SIGCONT)
        _hear({rank: connections[rank] for rank in frozen}, by_rank, case)
        for connection in connections:
            if not connection.closed:
                connection.close()
        for process in processes:
            process.join(10)
        return Outcomes(by_rank, tmp_path)

    yield run
    for process in processes:
        process.kill()
        process.join()
        process.close()
