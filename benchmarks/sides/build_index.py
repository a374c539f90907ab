"""The three index arrays of a training run, from nothing, written to the cache; or only the writing of their bytes."""

from __future__ import annotations

import os
import shutil
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import peers
from serve import Outcome, serve

LENGTH = 2048
BLOCK_ELEMENTS = 1 << 22


def prepare(*, folder: str, side: str, prefix: str, num_samples: int, work: int) -> Callable[[], Outcome]:
    """Imports one side; the limit reads what tokenloom built before."""
    cache = os.path.join(folder, f"{prefix}-{side}")
    shutil.rmtree(cache, ignore_errors=True)
    if side == "limit":
        return writing(os.path.join(folder, f"{prefix}-{peers.OURS}"), cache, work)
    build = peers.prefix_builder(
        side, os.path.join(folder, prefix), num_samples, path_to_cache=cache, sequence_length=LENGTH
    )

    def round_() -> Outcome:
        dataset, _, _ = build()
        arrays = (dataset.document_index, dataset.sample_index, dataset.shuffle_index)
        return {"work": work, "digest": partial(digest, arrays)}

    return round_


def digest(arrays: Sequence[Any]) -> str:
    """Returns a checksum of the values: sides may differ in dtypes."""
    found = 0
    for array in arrays:
        flat = np.asarray(array).reshape(-1)
        for start in range(0, len(flat), BLOCK_ELEMENTS):
            found = zlib.crc32(flat[start : start + BLOCK_ELEMENTS].astype(np.int64), found)
    return f"{found:08x}"


def writing(source: str, target: str, work: int) -> Callable[[], Outcome]:
    """Returns a round that writes the same bytes, held in memory, into new files."""
    contents = [path.read_bytes() for path in sorted(Path(source).rglob("*.npy"))]

    def round_() -> Outcome:
        os.mkdir(target)
        for number, content in enumerate(contents):
            Path(target, f"{number}.npy").write_bytes(content)
        return {"work": work}

    return round_


if __name__ == "__main__":
    serve(prepare, imports=peers.imports)
