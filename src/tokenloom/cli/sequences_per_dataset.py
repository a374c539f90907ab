"""`tokenloom sequences-per-dataset`: record the counts of a blend's datasets."""

from __future__ import annotations

import argparse
import json
from typing import Any

from tokenloom.cli.json_output import add_json, print_json
from tokenloom.cli.run_options import add_data_options, data_settings
from tokenloom.indexed.prefixes import sequence_counts
from tokenloom.storage.publishing import write_report


def add_parser(commands: Any) -> None:
    """Declares the command."""
    parser = commands.add_parser(
        "sequences-per-dataset",
        description="Record the sequences and document boundaries of each dataset of a blend as JSON, for the setting "
        "`sequences_per_dataset`: a run refuses data whose counts have changed, and with `fast_cache_load` opens each "
        "dataset with its first sample.",
    )
    add_data_options(parser)
    parser.add_argument(
        "--output", "--per-dataset-sequences-path", metavar="FILE", help="path of the output (default: standard output)"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace a file that holds something else")
    add_json(parser, "path, num_datasets, written; on standard output the counts are JSON anyway")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Writes the JSON."""
    settings = data_settings(options)
    blends = [settings.get("blend"), *settings.get("blend_per_split", [])]
    prefixes = dict.fromkeys(prefix for blend in blends if blend is not None for prefix in blend[0])
    text = json.dumps(sequence_counts(list(prefixes)), indent=4)
    if options.output is None:
        print(text)
        return 0
    is_new = write_report(options.output, text.encode() + b"\n", overwrite=options.overwrite)
    if options.json:
        print_json({"path": options.output, "num_datasets": len(prefixes), "written": is_new})
    else:
        print(f"{options.output}: {len(prefixes)} datasets" + ("" if is_new else ", nothing to do: it says so already"))
    return 0
