"""`tokenloom verify`: check pairs completely."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Annotated

from tokenloom.cli.json_output import print_json
from tokenloom.cli.options import Written
from tokenloom.errors import DatasetFormatError, DatasetNotFoundError
from tokenloom.indexed.verify import VerifyReport, verify_dataset
from tokenloom.setting_types import Count


@dataclass(frozen=True, kw_only=True)
class Options:
    """Check every row and token of a dataset.

    Attributes:
        prefixes: path of the pair without .bin or .idx.
        multimodal: the index holds sequence modes.
        vocab_size: check that every token is below N.
        json: print one JSON object: ok, and in datasets prefix, ok, num_tokens, smallest_token, largest_token, problems
            and has_manifest of each.
    """

    prefixes: Annotated[tuple[str, ...], Written(metavar="PREFIX", is_positional=True)]
    multimodal: bool = False
    vocab_size: Count | None = None
    json: bool = False


def run(options: Options) -> int:
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
