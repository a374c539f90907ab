"""Index build beside megatron-core, at sizes of your own. `make bench` has a row of it: see `rows/index_build.py`."""

from __future__ import annotations

import argparse
import sys

from harness.session import run_script
from rows.index_build import index_row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, nargs="+", default=[10_000_000])
    parser.add_argument("--epochs", type=int, nargs="+", default=[1, 3])
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    sizes = [(documents, epochs) for documents in options.documents for epochs in options.epochs]
    return run_script([index_row(documents, epochs, options.rounds) for documents, epochs in sizes])


if __name__ == "__main__":
    sys.exit(main())
