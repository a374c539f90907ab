"""Start-up over many small datasets compared with megatron-core, on one or several ranks; see `rows/startup.py`.

More ranks than cores share the cores.
"""

from __future__ import annotations

import argparse
import sys

from harness.session import run_script
from rows.startup import import_row, ranks_row, start_row

MODES = ("cold", "warm", "fast")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datasets", type=int, default=1000)
    parser.add_argument("--ranks", type=int, nargs="*", default=[1, 2, 4])
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    rows = [import_row(options.rounds)]
    rows += [start_row(mode, options.datasets, options.rounds) for mode in MODES]
    rows += [ranks_row(mode, ranks, options.datasets, options.rounds) for mode in MODES for ranks in options.ranks]
    return run_script(rows)


if __name__ == "__main__":
    sys.exit(main())
