"""`tokenloom doctor`: what of this machine, its disks, buckets and settings is fit for the work."""

from __future__ import annotations

import argparse
import shutil
import sys
import textwrap
from collections import Counter
from typing import Any

from tokenloom.cli.json_output import add_json, print_json
from tokenloom.cli.stopping import say
from tokenloom.doctor.check import Asked, Finding, Verdict
from tokenloom.doctor.checks import Checked, made_checks
from tokenloom.rendering.terminal import plain_text
from tokenloom.storage.addresses import is_remote

_WIDTH = 80
"""Columns where there is no terminal."""

_NARROWEST = 40
_VERDICT = 9
_SUBJECT = 15
"""Columns of the words at the left."""


def add_parser(commands: Any) -> None:
    """Declares the command."""
    parser = commands.add_parser(
        "doctor",
        description="Look at Python and the machine, the compiled code, optional packages, limits, the folder of the "
        "cache, credentials, and the paths and buckets that are named: what they are, what works there, and how fast "
        "they are. A verdict per line: ok, warning (slower or less than it could be), or problem (it will not work), "
        "with what to do. Secrets are never printed. Nothing is left behind; disks are measured with 64 MB and 2 s at "
        "most, in a file that goes away. The exit status is 1 if there is a problem.",
    )
    parser.add_argument(
        "targets",
        nargs="*",
        metavar="PATH|ADDRESS",
        help="folders, files and prefixes to be read or written, also s3://, gs://, az:// and https:// addresses",
    )
    parser.add_argument("--no-speed", action="store_true", help="measure neither disks nor buckets")
    add_json(
        parser,
        "ok, num_warnings, num_problems, and in checks id, title, seconds and findings of each: subject, verdict, "
        "text, hint, facts",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Prints each check once it is made; 1 if there is a problem."""
    asked = Asked(
        paths=tuple(target for target in options.targets if not is_remote(target)),
        addresses=tuple(target for target in options.targets if is_remote(target)),
        measures_speed=not options.no_speed,
        encoding=sys.stdout.encoding,
        say=say,
    )
    width = max(_NARROWEST, shutil.get_terminal_size((_WIDTH, 24)).columns) if sys.stdout.isatty() else _WIDTH
    made = []
    for checked in made_checks(asked):
        made.append(checked)
        if not options.json and checked.findings:
            _print(checked, width)
    counts = Counter(finding.verdict for checked in made for finding in checked.findings)
    warnings, problems = counts[Verdict.warning], counts[Verdict.problem]
    if options.json:
        head = {"ok": not problems, "num_warnings": warnings, "num_problems": problems}
        print_json({**head, "checks": [_described(checked) for checked in made]})
    else:
        print(f"\n{counts[Verdict.ok]} ok, warnings: {warnings}, problems: {problems}")
    return 1 if problems else 0


def _print(checked: Checked, width: int) -> None:
    print(f"\n{checked.listed.title}")
    for finding in checked.findings:
        for line in _lines(finding, width):
            print(plain_text(line, sys.stdout.encoding or "ascii"))


def _lines(finding: Finding, width: int) -> list[str]:
    """Returns a finding: verdict, subject and text, folded below each other, and the hint below these."""
    indent = " " * (2 + _VERDICT + _SUBJECT)
    head = f"  {finding.verdict.name:<{_VERDICT}}{finding.subject:<{_SUBJECT - 1}} "
    lines = _folded(finding.text, width, head, indent)
    if finding.hint is not None:
        lines += _folded(finding.hint, width, f"{indent}hint: ", f"{indent}  ")
    return lines


def _folded(text: str, width: int, first: str, others: str) -> list[str]:
    return textwrap.wrap(text, width, initial_indent=first, subsequent_indent=others, break_on_hyphens=False)


def _described(checked: Checked) -> dict[str, Any]:
    findings = [
        {
            "subject": finding.subject,
            "verdict": finding.verdict,
            "text": finding.text,
            "hint": finding.hint,
            "facts": finding.facts,
        }
        for finding in checked.findings
    ]
    listed = checked.listed
    return {"id": listed.id, "title": listed.title, "seconds": round(checked.seconds, 3), "findings": findings}
