"""The cost of a loader's digest: rounds with and without it alternate; numbers are medians of ratios.

Each round has its own loader, since the placement of its memory matters more than the digest.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tokenloom import IndexedDatasetBuilder, MegatronPretrainingSampler, Run, ThreadLoader
from tokenloom.loading.sample_digests import digests_of

RUN = """\
order = 1
seed = 1
[sources]
web = "web"
[[stages]]
sequence_length = {length}
samples = 20_000_000
weights = {{ web = 1 }}
"""
BATCH = 16


def write_run(folder: Path, length: int, num_documents: int) -> Path:
    """Writes a pair of documents of 100 to 2,000 tokens, and a run over it."""
    if not (folder / "web.idx").exists():
        rng = np.random.default_rng(0)
        with IndexedDatasetBuilder(str(folder / "web.bin"), dtype=np.uint16) as builder:
            for size in rng.integers(100, 2000, num_documents):
                builder.add_document(rng.integers(1, 50_000, size).astype(np.uint16), [int(size)])
            builder.finalize(str(folder / "web.idx"))
    path = folder / f"run{length}.toml"
    path.write_text(RUN.format(length=length))
    return path


def seconds_of(batches: Iterator[Any], count: int) -> tuple[float, float]:
    """Returns elapsed and CPU seconds of some batches, after a warm-up."""
    for _ in itertools.islice(batches, 6):
        pass
    started, busy = time.perf_counter(), time.process_time()
    for _ in itertools.islice(batches, count):
        pass
    return time.perf_counter() - started, time.process_time() - busy


def compare(dataset: Any, length: int, rounds: int, **settings: Any) -> str:
    """Returns the ratios of a loader with a digest to one without, and of two without, which shows the noise."""
    names = ("without", "again without", "with")
    walls: dict[str, list[float]] = {name: [] for name in names}
    cpus: dict[str, list[float]] = {name: [] for name in names}
    count = max(8, 192 * 2048 // length)
    for number in range(rounds):
        for name in list(itertools.permutations(names))[number % 6]:
            sampler = MegatronPretrainingSampler(len(dataset), number * count * BATCH, BATCH, 0, 1)
            batches = iter(ThreadLoader(dataset, sampler, digest=name == "with", **settings))
            wall, cpu = seconds_of(batches, count)
            walls[name].append(wall)
            cpus[name].append(cpu)
    told = [f"{statistics.median(walls['without']) / count * 1e6:.0f} us per batch without"]
    for name in names[1:]:
        ratios = [
            statistics.median(after / before for after, before in zip(times[name], times["without"], strict=True))
            for times in (walls, cpus)
        ]
        told.append(f"{name}: time x {ratios[0]:.4f}, CPU x {ratios[1]:.4f}")
    return "; ".join(told)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=100_000)
    parser.add_argument("--lengths", type=int, nargs="+", default=[2048, 8192])
    parser.add_argument("--rounds", type=int, default=200)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for length in options.lengths:
            dataset = Run.open(write_run(Path(folder), length, options.documents)).dataset()
            for name, settings in (("new batches", {}), ("reuse_after=1", {"reuse_after": 1})):
                print(f"S = {length}, {name}: {compare(dataset, length, options.rounds, **settings)}", flush=True)
            tokens = dataset.batch(range(BATCH))["tokens"]
            started = time.perf_counter()
            for _ in range(1000):
                digests_of(tokens)
            each = (time.perf_counter() - started) / 1000
            print(f"S = {length}, hashing a finished batch: {each * 1e6:.0f} us, {tokens.nbytes / each / 1e9:.0f} GB/s")


if __name__ == "__main__":
    main()
