"""`tokenloom info`: what a dataset holds."""

from __future__ import annotations

import argparse
import dataclasses
import json
from typing import Any

from tokenloom.cli import console
from tokenloom.indexed.dataset import IndexedDataset


def add_parser(commands: Any) -> None:
    """Declares the command."""
    parser = commands.add_parser(
        "info",
        help="documents, tokens and lengths of a dataset",
        description="Documents, tokens and lengths.",
    )
    parser.add_argument("prefixes", nargs="+", metavar="PREFIX", help="path of the pair without .bin or .idx")
    parser.add_argument("--multimodal", action="store_true", help="the index holds sequence modes")
    parser.add_argument("--json", action="store_true", help="print one JSON object per dataset")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Prints the numbers of `IndexedDataset.statistics()` for each dataset."""
    for prefix in options.prefixes:
        statistics = IndexedDataset(prefix, multimodal=options.multimodal).statistics()
        if options.json:
            print(json.dumps({"prefix": prefix, **dataclasses.asdict(statistics)}))
            continue
        console.print_table(
            (prefix, ""),
            [
                ("documents", f"{statistics.num_documents:,}"),
                ("sequences", f"{statistics.num_sequences:,}"),
                ("tokens", f"{statistics.num_tokens:,}"),
                ("bytes", f"{statistics.num_bytes:,}"),
                ("dtype", statistics.dtype),
                ("empty sequences", f"{statistics.num_empty:,}"),
                ("shortest", f"{statistics.shortest:,}"),
                ("mean length", f"{statistics.mean_length:,.1f}"),
                ("longest", f"{statistics.longest:,}"),
                *(
                    (f"sequences of mode {mode}", f"{count:,} with {tokens:,} tokens")
                    for mode, count, tokens in statistics.modes
                ),
                *((f"percentile {percent}", f"{tokens:,}") for percent, tokens in statistics.percentiles),
            ],
        )
        if statistics.histogram:
            most = max(count for _, _, count in statistics.histogram)
            console.print_table(
                ("tokens", "sequences", ""),
                [
                    (f"{start:,} to {stop - 1:,}", f"{count:,}", console.bar(count / most))
                    for start, stop, count in statistics.histogram
                ],
            )
    return 0
