"""Memory by number of sources: the cost of an additional source in each process that reads from all sources.

A rank opens a blend of many small pairs, with a cached order or as a run with a computed order, and forks workers like
a loader; then all processes read samples from nearly all sources. `start` is the resident memory of the rank after its
first batch; `resident` is that of each process at the end, on average. Both include file pages, which processes share.
`own` is memory that a process has written and does not share.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import common
import peers
from run_start import LENGTH, SAMPLES_EACH, prefixes_in, write_run, write_sources

KINDS = ("cached order", "computed order")
READ_SAMPLES_EACH = 2  # per source: every source is read from in nearly every process
BATCH = 16


def opened(kind: str, target: str, cache: str) -> Any:
    """Returns the dataset of a rank."""
    if kind == "computed order":
        from tokenloom import Run

        return Run.open(target).dataset()
    prefixes = [str(Path(target) / name) for name in prefixes_in(target)]
    settings = {"sequence_length": LENGTH, "path_to_cache": cache}
    blend = [(prefixes, [1.0] * len(prefixes)), None, None]
    build = peers.run_builder(peers.OURS, SAMPLES_EACH * len(prefixes), blend_per_split=blend, **settings)
    return build()[0]


def read_all_over(dataset: Any, num_sources: int, seed: int) -> None:
    import numpy as np

    positions = np.random.default_rng(seed).permutation(len(dataset))[: READ_SAMPLES_EACH * num_sources]
    for start in range(0, len(positions), BATCH):
        dataset.batch(positions[start : start + BATCH].tolist())


def memory_of(process: str) -> dict[str, int]:
    """Returns the resident kilobytes of a process, and those that it does not share."""
    found = {"resident": 0, "own": 0}
    for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()[1:]:
        name, kilobytes = line.split()[:2]
        if name == "Rss:":
            found["resident"] += int(kilobytes)
        if name == "Private_Dirty:":
            found["own"] += int(kilobytes)
    return found


def child(kind: str, target: str, cache: str, num_sources: int, num_workers: int) -> None:
    """Prints the memory of a rank and of each of its workers."""
    context = multiprocessing.get_context("fork")
    results, over = context.Queue(), context.Event()
    dataset = opened(kind, target, cache)
    dataset.batch(list(range(BATCH)))
    start = memory_of("self")["resident"]

    def work(seed: int) -> None:
        read_all_over(dataset, num_sources, seed)
        results.put(memory_of("self"))
        over.wait()

    workers = [context.Process(target=work, args=(seed,)) for seed in range(num_workers)]
    for worker in workers:
        worker.start()
    found = [results.get(timeout=600) for _ in workers]
    over.set()
    for worker in workers:
        worker.join()
    read_all_over(dataset, num_sources, num_workers)
    print(json.dumps([{"start": start, **each} for each in (*found, memory_of("self"))]))


def measured(kind: str, target: str, cache: str, num_sources: int, num_workers: int) -> dict[str, float]:
    """Returns the mean over the processes of one rank, after another one that built the cache."""
    call = [sys.executable, __file__, "--child", kind, target, cache, str(num_sources), str(num_workers)]
    for _ in range(2):
        done = subprocess.run(call, check=True, stdout=subprocess.PIPE, text=True)
    processes = json.loads(done.stdout.splitlines()[-1])
    return {name: statistics.mean(each[name] for each in processes) for name in processes[0]}


def plot(found: dict[str, dict[int, dict[str, float]]], path: Path) -> None:
    """Plots resident memory over the number of sources."""
    import matplotlib as mpl

    mpl.use("agg")
    mpl.rcParams["svg.hashsalt"] = "tokenloom"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    for number, (kind, by_count) in enumerate(found.items()):
        for name, style in (("resident", "-"), ("start", ":")):
            megabytes = [each[name] / 1024 for each in by_count.values()]
            when = "having read from all" if name == "resident" else "at the first batch"
            axes.plot(list(by_count), megabytes, style, color=f"C{number}", marker="o", label=f"{kind}, {when}")
    axes.set_xlabel("sources")
    axes.set_ylabel("resident MB per process")
    axes.set_ylim(bottom=0)
    axes.legend()
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    pyplot.close(figure)


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        kind, target, cache, num_sources, num_workers = sys.argv[2:]
        child(kind, target, cache, int(num_sources), int(num_workers))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sources", type=int, nargs="+", default=[10, 250, 500, 1000])
    parser.add_argument("--workers", type=int, default=4, help="of the rank")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="where to draw it, such as memory.svg")
    options = parser.parse_args()
    found: dict[str, dict[int, dict[str, float]]] = {kind: {} for kind in KINDS}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for count in sorted(options.sources):
            data = folder / f"sources-{count}"
            run, _ = write_run(folder, write_sources(data, count))
            for kind in KINDS:
                target = run if kind == "computed order" else str(data)
                cache = str(folder / f"cache-{kind.replace(' ', '-')}")
                found[kind][count] = measured(kind, target, cache, count, options.workers)
    least, most = min(options.sources), max(options.sources)
    rows: list[list[object]] = []
    for kind, by_count in found.items():
        for count, each in by_count.items():
            rows.append([kind, count, *(f"{megabytes / 1024:.1f}" for megabytes in each.values()), "", "", ""])
        growth = [by_count[most][name] - kilobytes for name, kilobytes in by_count[least].items()]
        rows[-1][-3:] = [f"{kilobytes / max(most - least, 1):.2f}" for kilobytes in growth]
    common.print_rows(
        f"a rank and {options.workers} workers, per process",
        ["order", "sources", "MB: start", "resident", "own", "kB per source: start", "resident", "own"],
        rows,
    )
    if options.plot:
        plot(found, options.plot)


if __name__ == "__main__":
    main()
