"""`tokenloom report` on pairs of a million documents and more: seconds, memory, page size.

    .venv/bin/python benchmarks/report.py /tmp/reported --documents 1000000 10000000

Creates the pairs if they do not exist: lognormal lengths of about 220 tokens, random ids, EOD at the end. Each number
is the median over new processes, including the start of Python; CPU seconds do not depend on other load.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from common import print_rows

from tokenloom import IndexedDatasetBuilder

BYTES_EOD = 256
"""Of the tokenizer `byte`."""

_BLOCK = 100_000


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the pairs are, or are made")
    parser.add_argument("--documents", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for num_documents in options.documents:
        prefix = options.folder / f"pair-{num_documents}"
        if not Path(f"{prefix}.idx").exists():
            write_pair(prefix, num_documents)
        rounds = [report(prefix) for _ in range(options.rounds)]
        seconds, busy, memory, size = (statistics.median(each[place] for each in rounds) for place in range(4))
        rows.append((f"{num_documents:,}", f"{seconds:.1f}", f"{busy:.1f}", f"{memory / 1e6:.0f}", f"{size / 1e3:.0f}"))
    columns = ("documents", "seconds", "of the processor", "peak memory MB", "page kB")
    print_rows("tokenloom report", columns, rows)
    return 0


def write_pair(prefix: Path, num_documents: int) -> None:
    """Writes documents of random bytes."""
    rng = np.random.default_rng(0)
    with IndexedDatasetBuilder(f"{prefix}.bin", dtype=np.uint16) as builder:
        for start in range(0, num_documents, _BLOCK):
            count = min(_BLOCK, num_documents - start)
            lengths = np.clip(rng.lognormal(4.7, 1.2, count), 1, 10**6).astype(np.int32)
            tokens = rng.integers(32, 127, int(lengths.sum()), dtype=np.uint16)
            tokens[np.cumsum(lengths) - 1] = BYTES_EOD
            builder.append_block(tokens, lengths)
        builder.finalize(f"{prefix}.idx")


def report(prefix: Path) -> tuple[float, float, int, int]:
    """Writes a report; returns elapsed and CPU seconds, peak bytes of memory, and bytes of the page."""
    page = prefix.with_suffix(".html")
    command = [sys.executable, "-m", "tokenloom", "report", str(prefix), "-o", str(page), "--overwrite", "--json"]
    started = time.perf_counter()
    process = subprocess.Popen([*command, "--tokenizer", "byte"], stdout=subprocess.PIPE)
    assert process.stdout is not None
    told = json.loads(process.stdout.read())
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.perf_counter() - started
    assert process.returncode == 0, told
    return seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024, page.stat().st_size


if __name__ == "__main__":
    sys.exit(main())
