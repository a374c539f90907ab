"""From the start of a process to its first batch: a run with its lock, compared with builders of cached orders.

Each row is the median over new processes, which alternate; the page cache contains all files. `cold` builds every index
in a new folder, `warm` finds the indices. `files` are the files opened after the imports, as counted by Python. `kB per
source` is the resident memory of an additional source, from our smallest and largest runs.
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
from typing import Any

import common
import peers

BATCH = 16
LENGTH = 128
DOCUMENTS = 40
SAMPLES_EACH = 50
RUN, BUILDER = "run", "builder"


def write_sources(folder: Path, count: int) -> list[str]:
    """Writes equal small pairs, named by number; returns their prefixes."""
    import numpy as np

    import tokenloom

    folder.mkdir(parents=True, exist_ok=True)
    prefixes = [str(folder / f"{number:05d}") for number in range(count)]
    if not os.path.exists(f"{prefixes[0]}.idx"):
        rng = np.random.default_rng(0)
        lengths = rng.integers(100, 500, size=DOCUMENTS).astype(np.int32)
        with tokenloom.IndexedDatasetBuilder(f"{prefixes[0]}.bin", dtype=np.uint16) as builder:
            builder.append_block(rng.integers(1, 1000, size=int(lengths.sum())), lengths)
            builder.finalize(f"{prefixes[0]}.idx")
    for prefix in prefixes[1:]:
        for end in (".bin", ".idx"):
            if not os.path.exists(prefix + end):
                shutil.copyfile(prefixes[0] + end, prefix + end)
    return prefixes


def write_run(folder: Path, prefixes: list[str]) -> tuple[str, float]:
    """Writes a run over the sources and its lock; returns its path and the seconds of locking."""
    from tokenloom.run.locking import lock_run

    names = {f"source-{number:05d}": prefix for number, prefix in enumerate(prefixes)}
    lines = ["order = 1", "seed = 1", "[sources]", *(f'{name} = "{prefix}"' for name, prefix in names.items())]
    weights = ", ".join(f"{name} = 1" for name in names)
    lines += ["[[stages]]", f"sequence_length = {LENGTH}", f"samples = {SAMPLES_EACH * len(prefixes)}"]
    path = folder / f"run-{len(prefixes)}.toml"
    path.write_text("\n".join([*lines, f"weights = {{ {weights} }}\n"]))
    path.with_suffix(".lock").unlink(missing_ok=True)
    started = time.perf_counter()
    lock_run(path)
    return str(path), time.perf_counter() - started


class Watch:
    """Seconds since the start of the process by part, and opened files."""

    def __init__(self, began: float) -> None:
        self.last = began
        self.seconds: dict[str, float] = {}
        self.files: list[str] = []
        self._counts = False
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self._counts and event == "open" and isinstance(arguments[0], str):
            self.files.append(arguments[0])

    def lap(self, name: str) -> None:
        now = time.time()
        self.seconds[name] = now - self.last
        self.last, self._counts = now, True

    def data_files(self) -> int:
        """Returns the number of opened files that are not modules."""
        code = (sys.prefix, sys.base_prefix, str(Path(__file__).parents[1] / "src"), "/proc")
        return sum(not name.startswith(code) for name in self.files)


def child(began: str, kind: str, side: str, target: str, cache: str) -> None:
    """Starts like a training script, and prints the measurements."""
    watch = Watch(float(began))
    if kind == RUN:
        from tokenloom import Run

        watch.lap("imports")
        run = Run.open(target)
        watch.lap("open")
        dataset = run.dataset()
        watch.lap("dataset")
        dataset.batch(range(BATCH))
    else:
        build = builder(side, [str(Path(target) / name) for name in prefixes_in(target)], cache)
        watch.lap("imports")
        dataset = build()[0]
        watch.lap("build")
        if side == peers.OURS:
            dataset.batch(range(BATCH))
        else:
            for position in range(BATCH):
                dataset[position]
    watch.lap("batch")
    resident = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS"))
    print(json.dumps({"seconds": watch.seconds, "files": watch.data_files(), "kilobytes": int(resident.split()[1])}))


def prefixes_in(folder: str) -> list[str]:
    return sorted(path.name.removesuffix(".idx") for path in Path(folder).glob("*.idx"))


def builder(side: str, prefixes: list[str], cache: str) -> Any:
    """Returns a function that builds the blend of one side."""
    if side == peers.PEER:
        import torch.distributed as dist

        dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    blend = [(prefixes, [1.0] * len(prefixes)), None, None]
    settings = {"sequence_length": LENGTH, "path_to_cache": cache, "blend_per_split": blend}
    return peers.run_builder(side, SAMPLES_EACH * len(prefixes), **settings)


def start(kind: str, side: str, target: str, cache: str) -> dict[str, Any]:
    """Returns the measurements of one process."""
    call = [sys.executable, __file__, "--child", str(time.time()), kind, side, target, cache]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(call, check=True, capture_output=True, text=True, env=environment)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def median_of(outcomes: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the outcome whose seconds are the median."""
    return sorted(outcomes, key=lambda each: sum(each["seconds"].values()))[len(outcomes) // 2]


def measure(options: argparse.Namespace, folder: Path) -> None:
    cases: dict[str, tuple[int, str, str, str, str]] = {}
    locking: list[list[object]] = []
    for count in options.sources:
        data = folder / f"sources-{count}"
        path, seconds = write_run(folder, write_sources(data, count))
        locking.append([count, f"{seconds:.2f}", os.path.getsize(Path(path).with_suffix(".lock")) // count])
        cases[f"run, {count} sources"] = (count, RUN, peers.OURS, path, "")
    least = min(options.sources)
    data = str(folder / f"sources-{least}")
    for side in peers.SIDES:
        warm = tempfile.mkdtemp(dir=folder)
        cases[f"{side} builder, cold"] = (least, BUILDER, side, data, "")
        cases[f"{side} builder, warm"] = (least, BUILDER, side, data, warm)
    outcomes: dict[str, list[dict[str, Any]]] = {name: [] for name in cases}
    for _, kind, side, target, cache in cases.values():
        start(kind, side, target, cache or tempfile.mkdtemp(dir=folder))  # so that all modules are compiled
    for turn in range(options.rounds):
        for name, (_, kind, side, target, cache) in cases.items():
            if not turn or kind == RUN or side == peers.OURS or turn < options.peer_rounds:
                outcomes[name].append(start(kind, side, target, cache or tempfile.mkdtemp(dir=folder)))
    found = {name: median_of(each) for name, each in outcomes.items()}
    peer = sum(found[f"{peers.PEER} builder, cold"]["seconds"].values())
    rows: list[list[object]] = []
    for name, (count, *_) in cases.items():
        laps = found[name]["seconds"]
        total = sum(laps.values())
        shown = " + ".join(f"{lap} {seconds:.3f}" for lap, seconds in laps.items())
        memory = f"{found[name]['kilobytes'] / 1024:.0f}"
        rows.append([name, count, f"{total:.3f}", f"{peer / total:.1f}", found[name]["files"], memory, shown])
    common.print_rows(
        f"from the start of a process to its first batch of {BATCH}",
        ["side", "sources", "seconds", "peer, cold, x", "files", "MB", "of which"],
        rows,
    )
    most = max(options.sources)
    if most > least:
        costs = [
            statistics.median(each["kilobytes"] for each in outcomes[f"run, {count} sources"])
            for count in (least, most)
        ]
        print(f"\nkB per source: {(costs[1] - costs[0]) / (most - least):.2f}")
    common.print_rows("locking (once)", ["sources", "seconds", "bytes per source"], locking)


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        child(*sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer sources and rounds: a minute")
    parser.add_argument("--folder", type=Path, default=Path(__file__).parent / "output" / "run")
    parser.add_argument("--sources", type=int, nargs="+")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--peer-rounds", type=int, default=3)
    options = parser.parse_args()
    options.sources = options.sources or ([200, 2000] if options.quick else [1000, 10_000])
    options.rounds = options.rounds or (3 if options.quick else 7)
    options.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        measure(options, Path(folder))


if __name__ == "__main__":
    main()
