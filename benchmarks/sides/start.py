"""The start of a run: a blend of many small datasets, built cold or opened warm; or only the calls that open files."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import peers
from serve import Outcome, serve

DOCUMENTS = 40


def prepare(*, folder: str, side: str, mode: str, count: int) -> Callable[[], Outcome]:
    """Imports one side; `mode` is cold, warm, or fast: warm, with the three settings that the peer has for it."""
    prefixes = [os.path.join(folder, "many", f"{number:05d}") for number in range(count)]
    if side == "limit":
        return opening(prefixes, cache_of(folder, peers.OURS, cold=False), mode)
    build = blend_builder(side, mode, prefixes, cache_of(folder, side, cold=mode == "cold"))
    if side == peers.PEER:  # its blends with a cache need a process group, even of one
        import torch.distributed as dist

        dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())

    def round_() -> Outcome:
        train, _, _ = build()
        if len(train) < 50 * count:
            raise RuntimeError(f"expected {50 * count} samples, found {len(train)}")
        return {"work": count}

    return round_


def cache_of(folder: str, side: str, *, cold: bool) -> str:
    """Returns the folder of a side's cache: the last one, or a new one.

    A new one each time: ext4 creates files twenty times slower for seconds after many were deleted.
    """
    name = Path(folder, f"start-{side}.txt")
    if cold:
        name.write_text(tempfile.mkdtemp(dir=folder))
    return name.read_text()


def blend_builder(side: str, mode: str, prefixes: list[str], cache: str) -> Callable[[], Any]:
    """Returns what builds the blend."""
    count = len(prefixes)
    settings: dict[str, Any] = {
        "sequence_length": 128,
        "path_to_cache": cache,
        "blend_per_split": [(prefixes, [1.0] * count), None, None],
    }
    if side == peers.PEER and mode == "fast":
        settings |= {"fast_cache_load": True, "defer_npy_index_mmap": True}
        settings["sequences_per_dataset"] = {prefix: [DOCUMENTS, DOCUMENTS + 1] for prefix in prefixes}
    return peers.run_builder(side, 50 * count, **settings)


def opening(prefixes: list[str], cache: str, mode: str) -> Callable[[], Outcome]:
    """Returns a round of file-system calls: each header read, each .bin file's size; cold, each cached file written."""
    written = [(entry.name, entry.stat().st_size) for entry in os.scandir(cache) if entry.is_file()]
    target = tempfile.mkdtemp(dir=os.path.dirname(cache))

    def round_() -> Outcome:
        for prefix in prefixes:
            descriptor = os.open(f"{prefix}.idx", os.O_RDONLY)
            os.fstat(descriptor)
            os.read(descriptor, 34)
            os.close(descriptor)
            os.stat(f"{prefix}.bin")
        if mode == "cold":
            for name, size in written:
                with open(os.path.join(target, name), "wb") as file:
                    file.write(bytes(size))
        return {"work": len(prefixes)}

    return round_


if __name__ == "__main__":
    serve(prepare, imports=peers.imports)
