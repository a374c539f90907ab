"""Runs the data tests of a Megatron checkout twice: with Megatron's own data modules, and with tokenloom's.

    python -m peer_suite.run PATH [--python PYTHON] [--files FILE …]

Prints for each file how many tests pass, how many fail with Megatron itself too (no GPU, data or network), which names
tokenloom lacks, and the errors of other failures. If no test of a file passes with Megatron, prints its errors.
"""

from __future__ import annotations

import argparse
import os
import re
import socket
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass, field
from pathlib import Path

FOLDER = Path(__file__).parent
USES_DATA = re.compile(r"megatron\.(core|training)\.datasets|megatron\.legacy\.data|datasets/")
MISSING = re.compile(
    r"cannot import name '(\w+)' from 'tokenloom|(?:type object|module) '\S*' has no attribute '(\w+)'"
    r"|'\w+' object has no attribute '(\w+)'"
)


@dataclass
class Outcomes:
    """The outcomes of the tests in a file.

    Attributes:
        passed, skipped: names of tests.
        failed: first line of the error by name of test; by name of the file if it cannot be imported.
    """

    passed: set[str] = field(default_factory=set)
    skipped: set[str] = field(default_factory=set)
    failed: dict[str, str] = field(default_factory=dict)


def run_file(file: str, *, checkout: Path, python: str, plain: bool, seconds: float) -> Outcomes:
    """Runs the tests of a file in a new process."""
    with tempfile.TemporaryDirectory(prefix="peer-suite-") as scratch:
        report = Path(scratch) / "report.xml"
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(FOLDER), *filter(None, [os.environ.get("PYTHONPATH")])]),
            "HF_HUB_OFFLINE": "1",
            "MASTER_PORT": str(free_port()),
        }
        environment |= {"PEER_SUITE_PLAIN": "1"} if plain else {}
        options = ["-q", "-p", "redirect_to_tokenloom", "-p", "no:cacheprovider", f"--junitxml={report}"]
        command = [python, "-m", "pytest", *options, file]
        try:
            done = subprocess.run(
                command, cwd=checkout, env=environment, capture_output=True, text=True, timeout=seconds
            )
        except subprocess.TimeoutExpired:
            return Outcomes(failed={file: f"no end within {seconds:g} s"})
        if not report.exists():
            return Outcomes(failed={file: (done.stdout + done.stderr).strip().splitlines()[-1]})
        return read_report(report.read_text(), file)


def free_port() -> int:
    """Returns a free local port."""
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        port: int = listener.getsockname()[1]
        return port


def read_report(text: str, file: str) -> Outcomes:
    """Returns the outcomes in a JUnit report."""
    outcomes = Outcomes()
    for case in ElementTree.fromstring(text).iter("testcase"):
        name = case.get("name") or file
        problem = next((child for child in case if child.tag in ("failure", "error")), None)
        if problem is not None:
            body = problem.text or ""
            lines = (problem.get("message") or "").strip().splitlines() or [""]
            if lines[0] == "collection failure":
                lines = [line[1:].strip() for line in body.splitlines() if line.startswith("E ")][-1:] or lines
            found = MISSING.search(body)
            lacks = f" [{found.group(0)}]" if found and found.group(0) not in lines[0] else ""
            outcomes.failed[name] = lines[0] + lacks
        elif case.find("skipped") is not None:
            outcomes.skipped.add(name)
        else:
            outcomes.passed.add(name)
    return outcomes


def missing_names(outcomes: Outcomes) -> list[str]:
    """Returns the missing names that made tests fail."""
    found = (MISSING.search(text) for text in outcomes.failed.values())
    return sorted({next(filter(None, match.groups())) for match in found if match})


def data_tests(checkout: Path) -> list[str]:
    """Returns the files of tests that use data modules, relative to the checkout."""
    files = sorted((checkout / "tests" / "unit_tests").rglob("test_*.py"))
    chosen = (file for file in files if file.parent.name == "data" or USES_DATA.search(file.read_text()))
    return [str(file.relative_to(checkout)) for file in chosen]


def main(arguments: list[str]) -> int:
    """Runs all tests and prints the results; returns 1 if a test passes with Megatron only, or none passes with it."""
    parser = argparse.ArgumentParser(prog="make peer-suite", description=__doc__)
    parser.add_argument("checkout", type=Path, help="a checkout of Megatron-LM")
    parser.add_argument("--python", default=sys.executable, help="a Python with tokenloom and Megatron's dependencies")
    parser.add_argument("--files", nargs="+", help="test files, relative to the checkout; default: all that use data")
    parser.add_argument("--seconds", type=float, default=900, help="time limit for each run of a file")
    options = parser.parse_args(arguments)
    checkout = options.checkout.resolve()
    total = {"passed": 0, "expected": 0}
    for file in options.files or data_tests(checkout):
        settings = {"checkout": checkout, "python": options.python, "seconds": options.seconds}
        theirs = run_file(file, plain=True, **settings)
        ours = run_file(file, plain=False, **settings)
        lost = {name: text for name, text in ours.failed.items() if name not in theirs.failed}
        both = len(ours.failed) - len(lost)
        print(
            f"{file}: {len(ours.passed)} pass, {len(lost)} fail, {both} fail with Megatron too, "
            f"{len(ours.skipped)} are skipped; Megatron itself: {len(theirs.passed)} pass, {len(theirs.failed)} fail",
            flush=True,
        )
        if names := missing_names(Outcomes(failed=lost)):
            print(f"  missing names: {', '.join(names)}")
        for name, text in sorted((lost if theirs.passed else theirs.failed | lost).items()):
            print(f"  {name}: {text}", flush=True)
        total["passed"] += len(ours.passed & theirs.passed)
        total["expected"] += len(theirs.passed)
    print(f"{total['passed']} of {total['expected']} tests that pass with Megatron pass with tokenloom in its place")
    if not total["expected"]:
        print("nothing was compared: no test passes with Megatron itself")
    return 0 if 0 < total["expected"] == total["passed"] else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
