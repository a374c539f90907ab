"""`make bench`: all benchmarks, at sizes that take minutes on two cores. Each script alone takes larger ones."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPTS = (
    ("index_build.py", "--documents", "10000000", "--rounds", "3"),
    ("samples.py",),
    ("loader.py",),
    ("masked.py",),
    ("packing_documents.py", "--documents", "1000000"),
    ("fim.py",),
    ("builder.py", "--documents", "2000000"),
    ("merge.py", "--megabytes", "1000"),
    ("blending.py",),
    ("startup.py",),
    ("pack_plan.py",),
    ("pack_exchange.py",),
    ("preprocess.py",),
    ("sft.py",),
    ("streaming.py", "--megabytes", "256", "--compare-samples", "128"),
)


def main() -> int:
    folder = Path(__file__).parent
    for script, *arguments in SCRIPTS:
        print(f"== {script} {' '.join(arguments)}", flush=True)
        subprocess.run([sys.executable, str(folder / script), *arguments], check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
