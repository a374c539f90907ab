"""A corpus as a job of shards: processes, threads and Ray on the same input, and memory for growing inputs.

The text is that of `rows/preprocess.py`; larger inputs repeat the largest generated text. Variants alternate. Each
number covers the whole call in a new process, without imports; Ray starts before. All variants must write identical
bytes.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import logging
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import common
from rows.data import write_text

sys.path.insert(0, str(Path(__file__).parent / "sides"))
from serve import PeakOfTree
from texts import tokenizer_path, whole_path

MOST_GENERATED_MEGABYTES = 500


def child(path: str, prefix: str, tokenizer: str, way: str, shard_bytes: int) -> None:
    """Tokenizes and prints seconds and bytes of text."""
    from tokenloom import CorpusSettings, RayRunner, load_tokenizer, preprocess_corpus

    logging.disable(logging.WARNING)
    options: dict[str, object] = {"num_processes": 1}
    if way == "processes":
        options = {"num_processes": len(os.sched_getaffinity(0)), "num_workers": 1}
    if way == "ray":
        options = {"runner": RayRunner(address=os.environ["RAY_ADDRESS"])}
    settings = CorpusSettings(append_eod=True, shard_bytes=shard_bytes)
    loaded = load_tokenizer(tokenizer)
    if way == "ray":
        import ray

        ray.init(address=os.environ["RAY_ADDRESS"], log_to_driver=False)
    started = time.perf_counter()
    summary = preprocess_corpus(path, prefix, loaded, settings, restart=True, **options)
    print(json.dumps([time.perf_counter() - started, summary.num_text_bytes]))


def run(path: str, prefix: str, tokenizer: str, way: str, shard_bytes: int) -> tuple[float, int, str]:
    """Returns MB/s, the peak memory of all processes, and a hash of the dataset."""
    command = [sys.executable, __file__, "--child", path, prefix, tokenizer, way, str(shard_bytes)]
    with PeakOfTree() as tree:
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    seconds, num_bytes = json.loads(done.stdout.splitlines()[-1])
    with open(f"{prefix}_text_document.bin", "rb") as tokens, open(f"{prefix}_text_document.idx", "rb") as index:
        state = hashlib.file_digest(tokens, "sha256").hexdigest() + hashlib.file_digest(index, "sha256").hexdigest()
    return num_bytes / seconds / 1e6, tree.peak_bytes, state


def write_input(folder: Path, megabytes: int) -> str:
    """Writes text of the given size; returns its path."""
    generated = min(megabytes, MOST_GENERATED_MEGABYTES)
    write_text(folder, generated, 1)
    if generated == megabytes:
        return whole_path(str(folder), megabytes)
    path = folder / f"repeated-{megabytes}.jsonl"
    with open(path, "wb") as target:
        for _ in range(-(-megabytes // generated)):
            with open(whole_path(str(folder), generated), "rb") as source:
                shutil.copyfileobj(source, target, 16 << 20)
    return str(path)


def bench_ways(folder: Path, megabytes: int, rounds: int, ways: list[str], shard_bytes: int) -> None:
    """Prints the speed of each variant."""
    path = write_input(folder, megabytes)
    results: dict[str, list[tuple[float, int, str]]] = {way: [] for way in ways}
    for _ in range(rounds):
        for way in ways:
            results[way].append(run(path, str(folder / "out"), tokenizer_path(str(folder)), way, shard_bytes))
    if len({found[2] for runs in results.values() for found in runs}) != 1:
        raise RuntimeError("the ways came to different datasets")
    first = statistics.median(found[0] for found in results[ways[0]])
    common.print_rows(
        f"{megabytes} MB in shards of {shard_bytes / 1e6:.0f} MB (medians of {rounds}; the same bytes)",
        ("", "MB/s", "range", f"of {ways[0]}", "peak MB"),
        [
            [
                way,
                f"{(speed := statistics.median(found[0] for found in runs)):.0f}",
                f"{min(found[0] for found in runs):.0f} to {max(found[0] for found in runs):.0f}",
                f"{speed / first:.2f}",
                # A Ray that runs is a child of this process, and would be counted.
                "" if "ray" in ways else f"{statistics.median(found[1] for found in runs) / 1e6:.0f}",
            ]
            for way, runs in results.items()
        ],
    )


def bench_memory(folder: Path, sizes: list[int], shard_bytes: int) -> None:
    """Prints the peak memory for inputs of several sizes."""
    rows = []
    for megabytes in sizes:
        path = write_input(folder, megabytes)
        speed, peak, _ = run(path, str(folder / "out"), tokenizer_path(str(folder)), "threads", shard_bytes)
        rows.append([f"{megabytes} MB", f"{speed:.0f}", f"{peak / 1e6:.0f}"])
        if megabytes > MOST_GENERATED_MEGABYTES:
            os.unlink(path)
    common.print_rows("Memory as the input grows, one process", ("", "MB/s", "peak MB"), rows)


@contextlib.contextmanager
def ray_cluster() -> Iterator[None]:
    """Runs Ray with this number of processors, and sets its address in the environment."""
    os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_AUTH_MODE="disabled")  # it listens on this machine alone
    code = (
        "import ray, sys\n"
        f"context = ray.init(num_cpus={len(os.sched_getaffinity(0))}, include_dashboard=False, "
        "_node_ip_address='127.0.0.1', log_to_driver=False)\n"
        "print(context.address_info['address'], flush=True)\n"
        "sys.stdin.read()\n"
    )
    cluster = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert cluster.stdin is not None
    assert cluster.stdout is not None
    os.environ["RAY_ADDRESS"] = cluster.stdout.readline().strip()
    try:
        yield
    finally:
        cluster.stdin.close()
        cluster.wait()
        del os.environ["RAY_ADDRESS"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--shard-megabytes", type=int, default=64)
    parser.add_argument("--memory-sizes", type=int, nargs="*", default=[100, 1000, 4000])
    parser.add_argument("--ray", action="store_true", help="also on Ray, started on this machine")
    parser.add_argument("--child", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        path, prefix, tokenizer, way, shard_bytes = options.child
        child(path, prefix, tokenizer, way, int(shard_bytes))
        return
    shard_bytes = options.shard_megabytes * 10**6
    with tempfile.TemporaryDirectory(dir=os.getcwd()) as name:
        ways = ["threads", "processes"]
        with ray_cluster() if options.ray else contextlib.nullcontext():
            ways += ["ray"] if options.ray else []
            bench_ways(Path(name), options.megabytes, options.rounds, ways, shard_bytes)
        bench_memory(Path(name), options.memory_sizes, 256 << 20)


if __name__ == "__main__":
    main()
