"""Text into tokens on disk, compared with all peers, and large inputs alone; rows are in `rows/preprocess.py`."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from harness.results import write_results
from harness.session import exit_status, measure_all, report
from rows.preprocess import large_row, peers_row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[50, 200, 500], help="megabytes of text")
    parser.add_argument("--peer-size", type=int, default=10, help="megabytes of text for the peers")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--json", type=Path, metavar="PATH", help="also write the results there")
    options = parser.parse_args()
    rows = [peers_row(options.peer_size, options.workers, options.rounds)]
    rows += [large_row(size, options.workers, options.rounds) for size in options.sizes]
    results = measure_all("script", rows, ())
    report(results)
    if options.json:
        write_results(options.json, results)
    return exit_status(results)


if __name__ == "__main__":
    sys.exit(main())
