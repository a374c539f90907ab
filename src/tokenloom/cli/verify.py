"""`tokenloom verify`: check pairs completely."""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any

from tokenloom.cli.json_output import add_json, print_json
from tokenloom.cli.values import count
from tokenloom.errors import DatasetFormatError, DatasetNotFoundError
from tokenloom.indexed.verify import VerifyReport, verify_dataset


def add_parser(commands: Any) -> None:
    """Declares the command."""
    parser = commands.add_parser(
        "verify",
        description="Check every row and token of a dataset.",
    )
    parser.add_argument("prefixes", nargs="+", metavar="PREFIX", help="path of the pair without .bin or .idx")
    parser.add_argument("--multimodal", action="store_true", help="the index holds sequence modes")
    parser.add_argument("--vocab-size", type=count, metavar="N", help="check that every token is below N")
    add_json(
        parser,
        "ok, and in datasets prefix, ok, num_tokens, smallest_token, largest_token, problems and has_manifest of each",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Prints one line per dataset and one per problem; 1 if there was any."""
    found = []
    for prefix in options.prefixes:
        try:
            report = verify_dataset(prefix, multimodal=options.multimodal, vocab_size=options.vocab_size)
        except (DatasetFormatError, DatasetNotFoundError) as error:  # the datasets after it are still checked
            nothing = VerifyReport(num_tokens=0, smallest_token=None, largest_token=None, problems=(str(error),))
            found.append((prefix, nothing))
        else:
            found.append((prefix, report))
        if not options.json:
            _print(*found[-1])
    sound = all(report.ok for _, report in found)
    if options.json:
        datasets = [{"prefix": prefix, "ok": report.ok, **dataclasses.asdict(report)} for prefix, report in found]
        print_json({"ok": sound, "datasets": datasets})
    return 0 if sound else 1


def _print(prefix: str, report: VerifyReport) -> None:
    for problem in report.problems:
        print(f"{prefix}: {problem}")
    if report.ok:
        of_what = " of text and images" if report.has_images else ""
        tokens = (
            "no tokens"
            if report.largest_token is None
            else (f"{report.num_tokens} tokens{of_what} from {report.smallest_token} to {report.largest_token}")
        )
        print(f"{prefix}: ok, {tokens}" + (", as the manifest says" if report.has_manifest else ""))
