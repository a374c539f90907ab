"""`tokenloom run check`: whether the data of a run are what was locked."""

from __future__ import annotations

import dataclasses
import sys
from dataclasses import dataclass

from tokenloom.cli.json_output import print_json
from tokenloom.cli.run_common import RunPath
from tokenloom.rendering.words import counted
from tokenloom.run.run import Run
from tokenloom.run.sources import check_sources


@dataclass(frozen=True, kw_only=True)
class Options(RunPath):
    """Compare the data of a run with its lock: sizes, counts, the start of each index, and the checksums in manifests.
    The exit status is 1 if anything differs.

    Attributes:
        full: read all data, and compare the checksums of all bytes.
        json: print one JSON object: path, run, num_pairs, full and problems.
    """

    full: bool = False
    json: bool = False


def run(options: Options) -> int:
    """Prints what is wrong, and returns 1 if anything is."""
    opened = Run.open(options.run_path)
    lock = opened.lock
    num_pairs = sum(len(source.pairs) for source in lock.sources)
    problems = check_sources(lock, full=options.full)
    wrong = [problem for problem in problems if not problem.is_unknown]
    unknown = len(problems) - len(wrong)
    if options.json:
        found = [dataclasses.asdict(problem) for problem in problems]
        head = {"path": options.run_path, "run": opened.identity, "num_pairs": num_pairs, "full": options.full}
        print_json({**head, "problems": found})
        return 1 if wrong else 0
    for problem in problems:
        print(f"{'unknown' if problem.is_unknown else 'problem'}: {problem.message}", file=sys.stderr)
    what = "every byte" if options.full else "sizes, counts and manifests"
    said = f"{counted(num_pairs, 'pair')} of {counted(len(lock.sources), 'source')}, {what}: "
    said += counted(len(wrong), "problem") if wrong else "ok"
    print(f"run {opened.identity}")
    print(said + (f", {counted(unknown, 'file')} without a checksum to compare with" if unknown else ""))
    return 1 if wrong else 0
