"""Origins of documents: bytes per document, and the time to find records of documents and documents of records.

Numbers are medians over several lookups of 10,000 random documents, the first time and again.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from tokenloom.indexed.origins import RUNS, OriginFile, Origins, joined_origins, write_origins

ASKED = 10_000


def records_kept(num_documents: int, share: float, rng: np.random.Generator) -> Origins:
    """Returns the origins of documents of one file of lines, of which a random share was kept."""
    num_records = int(num_documents / share)
    file = OriginFile(path="crawl/0007.jsonl", num_bytes=1 << 40, version="1700000000000000000", unit="line")
    whole = Origins.from_runs([file], [np.array([(0, 1, num_records)], dtype=RUNS)])
    if share == 1:
        return whole
    return Origins.from_runs(*joined_origins([(whole, range(num_records), rng.random(num_records) < share)]))


def a_file_each(num_documents: int) -> Origins:
    """Returns the origins of documents that have one file each."""
    files = [
        OriginFile(path=f"books/{number:09}.txt", num_bytes=1000 + 7919 * number % 9973, unit="file")
        for number in range(num_documents)
    ]
    runs = np.ones(num_documents, dtype=RUNS)
    runs["file"] = np.arange(num_documents)
    return Origins.from_runs(files, [runs])


def measured(origins: Origins, folder: Path, repeats: int, rng: np.random.Generator) -> tuple[float, float, float, int]:
    """Returns seconds to locate documents (first, again) and documents of a record, and the bytes of the file."""
    file, facts = write_origins(str(folder / "pair"), origins.files, origins.pieces())
    file.discard()
    first, again, back = [], [], []
    for _ in range(repeats):
        fresh = Origins.from_runs(origins.files, origins.pieces())
        documents = rng.integers(0, origins.num_documents, ASKED)
        for seconds in (first, again):
            started = time.perf_counter()
            files, records = fresh.locate(documents)
            seconds.append(time.perf_counter() - started)
        started = time.perf_counter()
        assert documents[0] in fresh.documents_of(int(files[0]), int(records[0]))
        back.append(time.perf_counter() - started)
    return statistics.median(first), statistics.median(again), statistics.median(back), facts.num_bytes


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=100_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    num_files = min(options.documents, 1_000_000)
    cases = {
        "plain JSON lines": lambda: records_kept(options.documents, 1, rng),
        "1 % left out": lambda: records_kept(options.documents, 0.99, rng),
        "half of them": lambda: records_kept(options.documents, 0.5, rng),
        "a file each": lambda: a_file_each(num_files),
    }
    print(f"{'':18} {'documents':>12} {'runs':>12} {'bytes/doc':>10} {'locate ms':>10} {'again ms':>9} {'back ms':>8}")
    with tempfile.TemporaryDirectory() as folder:
        for name, make in cases.items():
            origins = make()
            first, again, back, num_bytes = measured(origins, Path(folder), options.repeats, rng)
            print(
                f"{name:18} {origins.num_documents:>12,} {sum(map(len, origins.pieces())):>12,} "
                f"{num_bytes / origins.num_documents:>10.6f} "
                f"{first * 1e3:>10.1f} {again * 1e3:>9.1f} {back * 1e3:>8.2f}"
            )


if __name__ == "__main__":
    main()
