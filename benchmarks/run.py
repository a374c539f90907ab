"""`make bench`: every job compared with its peers, as a table, JSON, a plot and the results page.

`--mode quick` takes minutes and checks that everything works; `--only JOB` measures some jobs. A full run over all jobs
writes the results page in docs/; other runs write to benchmarks/output/ unless `--output` is given. `--against
CHECKOUT` compares this checkout with another one in which `make test` has run.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from harness.before import rows_beside, slower_rows
from harness.page import results_page
from harness.plot import plot_results
from harness.results import read_results
from harness.row import FULL, SCALES
from harness.session import exit_status, measure_all, report, write_all
from rows.jobs import JOBS, PROFILE, all_rows
from rows.profiles import profiles

HERE = Path(__file__).parent
DOCS, OUTPUT = HERE.parent / "docs", HERE / "output"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", choices=sorted(SCALES), default=FULL.name)
    parser.add_argument(
        "--only", nargs="+", choices=(*JOBS, PROFILE), default=[], metavar="JOB", help=", ".join((*JOBS, PROFILE))
    )
    parser.add_argument(
        "--against", type=Path, metavar="CHECKOUT", help="exit status 1 where a row is below 0.95 of it"
    )
    parser.add_argument("--output", type=Path, metavar="FOLDER", help="for benchmarks.json, .svg and .md")
    parser.add_argument(
        "--render", type=Path, metavar="FOLDER", help="only make plot and page again from the JSON there"
    )
    options = parser.parse_args()
    if options.render:
        results = read_results(options.render / "benchmarks.json")
        plot_results(results, options.render / "benchmarks.svg")
        (options.render / "benchmarks.md").write_text(results_page(results), encoding="utf-8")
        return 0
    scale = SCALES[options.mode]
    wanted = [job for job in options.only if job != PROFILE]
    rows = all_rows(scale, wanted) if wanted or not options.only else []
    if options.against:
        results = measure_all(scale.name, rows_beside(rows, options.against.resolve()), ())
        report(results)
        slower = slower_rows(results.rows)
        print("", *slower, sep="\n")
        return exit_status(results) or int(bool(slower))
    paths = profiles(scale) if PROFILE in options.only or not options.only else []
    results = measure_all(scale.name, rows, paths)
    report(results)
    folder = options.output or (DOCS if scale is FULL and not options.only else OUTPUT)
    write_all(results, folder)
    return exit_status(results)


if __name__ == "__main__":
    sys.exit(main())
