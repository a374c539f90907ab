"""The start of a run on several ranks at once, joined by gloo: the seconds of the slowest."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable

import peers
from serve import Outcome, serve
from start import blend_builder, cache_of

LONGEST_SECONDS = 300


def prepare(*, folder: str, side: str, mode: str, ranks: int, count: int) -> Callable[[], Outcome]:
    """Imports one side; for the modes see `start.prepare`. More ranks than there are cores share these."""
    import torch.distributed as dist

    prefixes = [os.path.join(folder, "many", f"{number:05d}") for number in range(count)]
    build = blend_builder(side, mode, prefixes, cache_of(folder, side, cold=mode == "cold"))
    context = multiprocessing.get_context("fork")
    seconds = context.Queue()
    store = f"{tempfile.mkdtemp(dir=folder)}/store"

    def rank_main(rank: int) -> None:
        dist.init_process_group("gloo", rank=rank, world_size=ranks, init_method=f"file://{store}")
        dist.barrier()
        started = time.perf_counter()
        build()
        seconds.put(time.perf_counter() - started)
        dist.barrier()

    def round_() -> Outcome:
        processes = [context.Process(target=rank_main, args=(rank,)) for rank in range(ranks)]
        for process in processes:
            process.start()
        slowest = max(seconds.get(timeout=LONGEST_SECONDS) for _ in processes)
        for process in processes:
            process.join()
        return {"work": count, "seconds": slowest, "memory_bytes": 0}

    return round_


if __name__ == "__main__":
    serve(prepare, imports=peers.imports)
