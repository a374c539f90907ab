"""`merge_datasets` compared with `cp` of the same files, and catalogues of many pairs.

Copies go from cached files to new files on the same disk, each in a new process; sides alternate. `cp` leaves writing
to the operating system, as `--no-sync` does; a merge is durable, like `cp` followed by `sync`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import common
import numpy as np

from tokenloom import (
    ConcatenatedPart,
    IndexedDataset,
    IndexedDatasetBuilder,
    build_catalogue,
    merge_datasets,
    write_concatenated,
)

SIDES = ("merge", "merge --no-sync", "cp", "cp and sync", "merge, every second document", "merge --verify")
MEAN_LENGTH = 800
"""Tokens of a document: web text."""


def write_pairs(folder: Path, *, num_pairs: int, num_bytes: int) -> list[str]:
    """Writes pairs of about `num_bytes` of uint16 each; returns their prefixes."""
    rng = np.random.default_rng(1)
    tokens = rng.integers(0, 50_000, size=num_bytes // 2, dtype=np.uint16)
    prefixes = []
    for number in range(num_pairs):
        cuts = np.unique(rng.integers(1, len(tokens), size=max(1, len(tokens) // MEAN_LENGTH)))
        lengths = np.diff(cuts, prepend=0, append=len(tokens)).astype(np.int32)
        with IndexedDatasetBuilder(f"{folder}/part_{number:05}.bin", dtype=np.uint16) as builder:
            builder.append_block(tokens, lengths)
            builder.finalize(f"{folder}/part_{number:05}.idx")
        prefixes.append(f"{folder}/part_{number:05}")
    return prefixes


def copy(side: str, prefixes: list[str], folder: Path) -> float:
    """Copies once; returns the seconds."""
    target = folder / "target"
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    subprocess.run(["sync"], check=True)  # what the side before left to write
    started = time.perf_counter()
    if side.startswith("cp"):
        files = [prefix + suffix for prefix in prefixes for suffix in (".bin", ".idx")]
        subprocess.run(["cp", *files, str(target)], check=True)
        if side == "cp and sync":
            subprocess.run(["sync", *map(str, target.iterdir())], check=True)
    elif side == "merge, every second document":
        kept = [np.arange(IndexedDataset(prefix).num_documents) % 2 == 0 for prefix in prefixes]
        parts = [
            ConcatenatedPart(prefix=prefix, kept_documents=mask) for prefix, mask in zip(prefixes, kept, strict=True)
        ]
        write_concatenated(parts, f"{target}/all")
    else:
        merge_datasets(prefixes, f"{target}/all", verify=side == "merge --verify", durable=side != "merge --no-sync")
    return time.perf_counter() - started


def bench_merge(num_pairs: int, num_bytes: int, rounds: int) -> None:
    """Prints one table."""
    with tempfile.TemporaryDirectory(dir=os.getcwd()) as name:
        folder = Path(name)
        prefixes = write_pairs(folder, num_pairs=num_pairs, num_bytes=num_bytes // num_pairs)
        total = sum(os.path.getsize(prefix + suffix) for prefix in prefixes for suffix in (".bin", ".idx"))
        times: dict[str, list[float]] = {side: [] for side in SIDES}
        for _ in range(rounds):
            for side in SIDES:
                times[side].append(copy(side, prefixes, folder))
    medians = {side: statistics.median(found) for side, found in times.items()}
    rows = []
    for side, seconds in medians.items():
        rows.append(
            [
                side,
                f"{seconds:.2f}",
                f"{min(times[side]):.2f} to {max(times[side]):.2f}",
                f"{total / seconds / 1e6:,.0f}",
                f"{medians['cp'] / seconds:.2f}",
                f"{medians['cp and sync'] / seconds:.2f}",
            ]
        )
    common.print_rows(
        f"{num_pairs} pairs, {total / 1e6:,.0f} MB with their indexes (medians of {rounds})",
        ("", "s", "range", "MB/s of input", "of cp", "of cp and sync"),
        rows,
    )


def child(prefix: str) -> None:
    """Opens a catalogue, reads a token of its first pair, which maps all pairs, and a token of each pair."""
    started = time.perf_counter()
    dataset = IndexedDataset(prefix)
    opened = time.perf_counter()
    dataset[0]
    mapped = time.perf_counter()
    for section in dataset.sections:
        dataset.get(section.rows.start, 0, 1)
    times = (opened - started, mapped - opened, time.perf_counter() - mapped)
    num_descriptors = len(os.listdir("/proc/self/fd"))
    print(json.dumps([*times, num_descriptors]))


def bench_catalogue(num_pairs: int, rounds: int) -> None:
    """Prints the time to write, open and map a catalogue of many small pairs."""
    with tempfile.TemporaryDirectory(dir=os.getcwd()) as name:
        (first,) = write_pairs(Path(name), num_pairs=1, num_bytes=40_000)
        prefixes = []
        for number in range(num_pairs):  # copied: making each durable would take most of the time
            prefixes.append(f"{name}/pair_{number:05}")
            for suffix in (".bin", ".idx"):
                shutil.copyfile(first + suffix, prefixes[-1] + suffix)
        started = time.perf_counter()
        build_catalogue(prefixes, f"{name}/all")
        built = time.perf_counter() - started
        size = os.path.getsize(f"{name}/all.catalogue")
        command = [sys.executable, __file__, "--child", f"{name}/all"]
        runs = [json.loads(subprocess.check_output(command)) for _ in range(rounds)]
    opened, mapped, read, descriptors = (float(np.median(column)) for column in zip(*runs, strict=True))
    common.print_rows(
        f"Catalogue of {num_pairs} pairs, a fresh process each time (medians of {rounds})",
        ("written s", "MB", "opened s", "mapped s", "a token of each s", "descriptors"),
        [[f"{built:.2f}", f"{size / 1e6:.1f}", f"{opened:.3f}", f"{mapped:.3f}", f"{read:.3f}", f"{descriptors:.0f}"]],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=2000)
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--catalogue-pairs", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.child)
        return
    bench_merge(options.pairs, options.megabytes * 1_000_000, options.rounds)
    bench_catalogue(options.catalogue_pairs, options.rounds)


if __name__ == "__main__":
    main()
