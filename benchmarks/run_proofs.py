"""How long commitments to a run, proofs about it and their checks take, and how large proofs are.

One source of one pair, documents of 100 to 900 tokens of uint16. A proof is about all positions of so many passes.
Seconds are medians; the page cache holds the files.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import tokenloom
from tokenloom.run.audit.commitment import commit
from tokenloom.run.audit.proof import parse_proof, proof_bytes, prove
from tokenloom.run.audit.proof_check import check_proof
from tokenloom.run.locking import lock_run

LENGTH = 4096


def write_run(folder: Path, num_documents: int) -> Any:
    """Writes a pair and a run over it; returns its lock."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(100, 900, size=num_documents).astype(np.int32)
    with tokenloom.IndexedDatasetBuilder(f"{folder}/web.bin", dtype=np.uint16) as builder:
        for first in range(0, num_documents, 10_000):
            some = lengths[first : first + 10_000]
            builder.append_block(rng.integers(0, 60_000, size=int(some.sum())).astype(np.uint16), some)
        builder.finalize(f"{folder}/web.idx")
    stage = f"[[stages]]\nsequence_length = {LENGTH}\nweights = {{ web = 1 }}\n"
    (folder / "run.toml").write_text(f'order = 1\nseed = 1\n[sources]\nweb = "web"\n{stage}')
    return lock_run(str(folder / "run.toml")).lock


def timed(repeats: int, work: Callable[[], Any]) -> tuple[float, Any]:
    """Returns the median of the seconds that something takes, and what it returns."""
    found = []
    for _ in range(repeats):
        started = time.perf_counter()
        result = work()
        found.append(time.perf_counter() - started)
    return statistics.median(found), result


def print_row(folder: Path, num_documents: int, repeats: int) -> None:
    lock = write_run(folder, num_documents)
    pair = lock.sources[0].pairs[0]
    committed, commitment = timed(repeats, lambda: commit(lock))
    for passes in (1, 1000):
        where: dict[str, Any] = {"source": "web", "document": num_documents // 2, "begin": 0}
        where["end"] = passes * (pair.num_tokens // LENGTH)
        kept_in = f"{folder}/{passes}.tree"
        first, proof = timed(1, partial(prove, lock, commitment, **where, tree_file=kept_in))
        kept, _ = timed(repeats, partial(prove, lock, commitment, **where, tree_file=kept_in))
        data = proof_bytes(proof)
        checked, _ = timed(repeats, partial(check, data, commitment.root))
        print(
            f"{num_documents:>10,} {pair.num_tokens * 2 / 1e9:>6.2f} {committed:>9.2f} {passes:>7,} "
            f"{first:>8.2f} {kept:>7.3f} {len(data) / 1e3:>6.1f} {checked:>8.3f}"
        )


def check(data: bytes, root: str) -> None:
    check_proof(parse_proof(data, path="proof"), root)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, nargs="+", default=[10_000, 1_000_000])
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    print(" documents     GB  commit s  passes  prove s  kept s     kB  check s")
    for num_documents in options.documents:
        with tempfile.TemporaryDirectory() as folder:
            print_row(Path(folder), num_documents, options.repeats)


if __name__ == "__main__":
    main()
