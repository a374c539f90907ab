"""Samples per second compared with megatron-core, in all settings; rows of `make bench` are in `rows/samples.py`."""

from __future__ import annotations

import argparse
import sys

from harness.session import run_script
from rows.samples import SETTINGS, sample_row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=130_000_000, help="of each corpus")
    parser.add_argument("--mean-tokens", type=int, nargs="+", default=[100, 400, 2000], help="of the documents")
    parser.add_argument("--lengths", type=int, nargs="+", default=[2048, 8192])
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--seconds", type=float, default=0.5, help="of each round")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    cases = [
        (way, setting, length, mean)
        for length in options.lengths
        for mean in options.mean_tokens
        for setting in options.settings
        for way in ("single", "batched")
    ]
    sizes = {"num_tokens": options.tokens, "rounds": options.rounds, "seconds": options.seconds}
    return run_script([sample_row(*case, **sizes) for case in cases])


if __name__ == "__main__":
    sys.exit(main())
