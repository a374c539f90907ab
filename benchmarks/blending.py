"""Blending indices compared with megatron-core, by number of datasets; rows are in `rows/blending.py`."""

from __future__ import annotations

import argparse
import sys

from harness.session import run_script
from rows.blending import blend_row

MANY = 1000  # datasets: from here on the peer takes minutes


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--datasets", type=int, nargs="+", default=[2, 5, 10, 100, 1000, 5000])
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    return run_script(
        [
            blend_row(count, 1 << (20 if count >= MANY else 22), weights, mode, 1 if count >= MANY else options.rounds)
            for mode in ("weighted", "exhaustive")
            for weights in ("dirichlet", "equal")
            for count in options.datasets
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
