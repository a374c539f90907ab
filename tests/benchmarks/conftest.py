"""The benchmarks are scripts, not a package: their folder is on the path when they run, and here."""

import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.append(str(BENCHMARKS))  # last: it has modules of common names
