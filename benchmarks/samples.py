"""Samples per second beside megatron-core, in all settings. `make bench` has rows of it: see `rows/samples.py`."""

from __future__ import annotations

import argparse
import sys

from harness.session import run_script
from rows.samples import SETTINGS, sample_row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=200_000)
    parser.add_argument("--lengths", type=int, nargs="+", default=[2048, 8192])
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--seconds", type=float, default=0.5, help="of each round")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    cases = [
        (way, setting, length)
        for length in options.lengths
        for setting in options.settings
        for way in ("single", "batched")
    ]
    return run_script([sample_row(*case, options.documents, options.rounds, options.seconds) for case in cases])


if __name__ == "__main__":
    sys.exit(main())
