"""Index build compared with megatron-core, at chosen sizes; rows of `make bench` are in `rows/index_build.py`."""

from __future__ import annotations

import argparse
import itertools
import sys

from harness.session import run_script
from rows.index_build import index_row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, nargs="+", default=[10_000_000])
    parser.add_argument("--epochs", type=int, nargs="+", default=[1, 3])
    parser.add_argument("--mean-tokens", type=int, nargs="+", default=[100, 400, 2000], help="of the documents")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    cases = itertools.product(options.documents, options.epochs, options.mean_tokens)
    return run_script([index_row(*case, options.rounds) for case in cases])


if __name__ == "__main__":
    sys.exit(main())
