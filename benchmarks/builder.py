"""`IndexedDatasetBuilder` with many small documents, compared with peers; rows are in `rows/builder.py`."""

from __future__ import annotations

import argparse
import sys

from harness.session import run_script
from rows.builder import builder_row

KINDS = ("uint16 arrays", "int64 arrays", "lists")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    return run_script([builder_row(kind, options.documents, options.rounds) for kind in KINDS])


if __name__ == "__main__":
    sys.exit(main())
