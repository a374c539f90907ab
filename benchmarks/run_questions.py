"""The time of questions about a run, such as the rows at a step.

Sources are pairs of documents of about 400 tokens, in sparse files, since no question reads tokens. Each number is the
median over new processes; `first` includes opening all pairs, `again` repeats the question in the same process.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tokenloom.indexed.layout import DType, Header
from tokenloom.run.locking import lock_run
from tokenloom.run.run import Run

TOKENS = 400


def write_source(prefix: Path, num_documents: int, seed: int) -> None:
    """Writes a pair of documents of 1 to 799 tokens."""
    lengths = np.random.default_rng(seed).integers(1, 2 * TOKENS, size=num_documents).astype(np.int32)
    pointers = np.cumsum(lengths, dtype=np.int64) * 2 - lengths * 2
    header = Header(dtype_code=DType.uint16.value, num_sequences=num_documents, num_boundaries=num_documents + 1)
    arrays = lengths, pointers, np.arange(num_documents + 1, dtype=np.int64)
    prefix.with_suffix(".idx").write_bytes(header.pack() + b"".join(array.tobytes() for array in arrays))
    with prefix.with_suffix(".bin").open("wb") as file:
        file.truncate(2 * int(lengths.sum()))


def write_run(folder: Path, num_sources: int, num_documents: int, sequence_length: int, head: str) -> Path:
    """Writes a run of a billion samples over this number of sources, and its lock; returns its path."""
    names = [f"source-{number}" for number in range(num_sources)]
    for number, name in enumerate(names):
        if not (folder / f"{name}.idx").exists():
            write_source(folder / name, num_documents, number)
    path = folder / f"run-{num_sources}-{sequence_length}.toml"
    weights = ", ".join(f"{name} = {1 + number % 7}" for number, name in enumerate(names))
    lines = [head, "seed = 1", "[sources]", *(f'{name} = "{name}"' for name in names), "[[stages]]"]
    path.write_text("\n".join([*lines, f"sequence_length = {sequence_length}", f"weights = {{ {weights} }}\n"]))
    path.with_suffix(".lock").unlink(missing_ok=True)
    lock_run(path)
    return path


def trace(path: str, num_positions: int, below: int) -> dict[str, Any]:
    """Traces random positions of a run, twice."""
    run = Run.open(path)
    positions = np.random.default_rng(0).integers(0, below, size=(2, num_positions))
    started = time.perf_counter()
    table = run.trace(positions[0])
    first = time.perf_counter() - started
    started = time.perf_counter()
    run.trace(positions[1])
    return {"first": first, "again": time.perf_counter() - started, "spans": len(table)}


def when(path: str, num_passes: int) -> dict[str, Any]:
    """Finds documents of a run of one source over this number of passes."""
    run = Run.open(path)
    num_windows = run.timeline.walk_of(0, 0).num_windows
    num_documents = run.lock.sources[0].pairs[0].num_documents
    run.occurrences({0: [0]}, stop=1)  # opens the pair
    taken = []
    for document in np.random.default_rng(0).integers(0, num_documents, size=11).tolist():
        started = time.perf_counter()
        table = run.occurrences({0: [document]}, stop=num_windows * num_passes)
        taken.append(time.perf_counter() - started)
    return {"one": statistics.median(taken), "spans": len(table)}


def measured(repeats: int, question: str, *words: object) -> dict[str, float]:
    """Returns the medians of the numbers that a question prints in new processes."""
    command = [sys.executable, __file__, "--one", question, *map(str, words)]
    found = [json.loads(subprocess.run(command, check=True, capture_output=True).stdout) for _ in range(repeats)]
    return {name: statistics.median(each[name] for each in found) for name in found[0]}


def print_trace(folder: Path, repeats: int) -> None:
    """Prints the time of 10,000 random positions, within one pass and over a run of a billion samples."""
    print(f"{'sources':>8} {'documents':>10} {'S':>6} {'positions':>22} {'spans':>9} {'first s':>8} {'again s':>8}")
    for num_sources, num_documents in ((10, 1_000_000), (100, 100_000)):
        data = folder / f"{num_sources}"
        data.mkdir(exist_ok=True)
        for sequence_length in (2048, 8192):
            path = write_run(data, num_sources, num_documents, sequence_length, "order = 1")
            one_pass = num_sources * num_documents * TOKENS // sequence_length
            for below in (one_pass // 2, 10**9):
                found = measured(repeats, "trace", path, 10_000, below)
                print(
                    f"{num_sources:>8} {num_documents:>10,} {sequence_length:>6} {below:>22,} {found['spans']:>9,.0f} "
                    f"{found['first']:>8.3f} {found['again']:>8.3f}"
                )


def print_when(folder: Path, repeats: int) -> None:
    """Prints the time to find one document in 1,000 passes over a pair."""
    print(f"{'documents':>12} {'order':>10} {'ms':>8} {'spans':>8}")
    for num_documents in (10_000, 1_000_000, 10_000_000, 100_000_000):
        data = folder / f"when-{num_documents}"
        data.mkdir(exist_ok=True)
        for documents in ("shuffled", "file"):
            path = write_run(data, 1, num_documents, 4096, f'order = 1\ndocuments = "{documents}"')
            found = measured(repeats, "when", path, 1000)
            print(f"{num_documents:>12,} {documents:>10} {1000 * found['one']:>8.2f} {found['spans']:>8,.0f}")


def ledger(path: str, until: int) -> dict[str, Any]:
    """Closes the ledger of a run at a position, and writes it as JSON."""
    run = Run.open(path)
    started = time.perf_counter()
    found = run.ledger(until=until)
    closed = time.perf_counter() - started
    json.dumps(found.as_json())
    return {"closed": closed, "written": time.perf_counter() - started}


def print_ledger(folder: Path, repeats: int) -> None:
    """Prints the time of the ledger of a trillion samples."""
    print(f"{'sources':>8} {'documents':>10} {'S':>6} {'ledger s':>9} {'and JSON':>9}")
    for num_sources, num_documents in ((10, 1_000_000), (100, 100_000), (1000, 10_000)):
        data = folder / f"{num_sources}"
        data.mkdir(exist_ok=True)
        path = write_run(data, num_sources, num_documents, 2048, "order = 1")
        found = measured(repeats, "ledger", path, 10**12)
        print(f"{num_sources:>8} {num_documents:>10,} {2048:>6} {found['closed']:>9.3f} {found['written']:>9.3f}")


QUESTIONS = {"trace": print_trace, "when": print_when, "ledger": print_ledger}
ONE: dict[str, Callable[..., dict[str, Any]]] = {"trace": trace, "when": when, "ledger": ledger}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=sorted(QUESTIONS), default=sorted(QUESTIONS))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="where data are written, and kept")
    parser.add_argument("--one", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        question, path, *numbers = options.one
        print(json.dumps(ONE[question](path, *map(int, numbers))))
        return
    with tempfile.TemporaryDirectory() as folder:
        for question in options.only:
            print(question)
            QUESTIONS[question](options.folder or Path(folder), options.repeats)


if __name__ == "__main__":
    main()
