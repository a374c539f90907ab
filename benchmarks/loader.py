"""Tokens per second of loaders, compared with all peers; rows of `make bench` are in `rows/loader.py`."""

from __future__ import annotations

import argparse
import sys

from harness.session import run_script
from rows.loader import memory_row, sequential_row, shuffled_row

KINDS = {"shuffled": shuffled_row, "sequential": sequential_row, "memory": memory_row}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=130_000_000, help="of the corpus")
    parser.add_argument("--lengths", type=int, nargs="+", default=[2048, 8192])
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=["shuffled"])
    parser.add_argument("--seconds", type=float, default=0.7, help="of each round")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    sizes = (options.tokens, options.rounds, options.seconds)
    return run_script([KINDS[kind](length, *sizes) for kind in options.kinds for length in options.lengths])


if __name__ == "__main__":
    sys.exit(main())
