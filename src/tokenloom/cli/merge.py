"""`tokenloom merge`: several datasets into one pair, or into pairs of a wanted size."""

from __future__ import annotations

import argparse
import time
from typing import Any

from tokenloom.cli.dataset_options import RESULT_KEYS, add_dataset_options, chosen_prefixes, origin_words, result_of
from tokenloom.cli.json_output import add_json, print_json
from tokenloom.cli.values import byte_count
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.writing.concatenate import merge_datasets


def add_parser(commands: Any) -> None:
    """Declares the command."""
    parser = commands.add_parser(
        "merge",
        description="Join datasets, in the order given, into one pair, or into pairs of a wanted size.",
    )
    add_dataset_options(parser, what="join")
    parser.add_argument(
        "--part-bytes",
        type=byte_count,
        metavar="SIZE",
        help="write PREFIX_00000, PREFIX_00001, … of at most so many bytes of tokens, such as 10GB or 512MiB",
    )
    parser.add_argument(
        "--verify",
        action="store_true",
        help="compare the inputs with their manifests, read the result back and compare it with them",
    )
    parser.add_argument(
        "--no-sync", action="store_true", help="leave it to the operating system when bytes reach the disk, as cp does"
    )
    add_json(parser, f"num_inputs, num_input_bytes, seconds, verified, notices, and in datasets {RESULT_KEYS} of each")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Merges and prints what came out."""
    prefixes = chosen_prefixes(options)
    total = sum(IndexedDataset(prefix).extents.num_held_bytes for prefix in prefixes)
    notices: list[str] = []
    started = time.perf_counter()
    merged = merge_datasets(
        prefixes,
        options.output_prefix,
        multimodal=options.multimodal,
        part_bytes=options.part_bytes,
        verify=options.verify,
        durable=not options.no_sync,
        overwrite=options.overwrite,
        notice=notices.append,
    )
    seconds = time.perf_counter() - started
    datasets = [merged] if isinstance(merged, IndexedDataset) else merged
    if options.json:
        print_json(
            {
                "num_inputs": len(prefixes),
                "num_input_bytes": total,
                "seconds": seconds,
                "verified": options.verify,
                "notices": notices,
                "datasets": [result_of(dataset) for dataset in datasets],
            }
        )
        return 0
    for dataset in datasets:
        print(
            f"{dataset.path_prefix}: {dataset.num_documents} documents{origin_words(dataset.path_prefix)}, "
            f"{len(dataset)} sequences, {dataset.num_tokens} tokens, {dataset.dtype.name}"
        )
    for notice in notices:
        print(notice)
    if len(notices) == len(datasets):
        return 0
    compared = ", compared with the inputs" if options.verify else ""
    print(
        f"{len(prefixes)} datasets, {total:,} bytes of tokens in {seconds:.1f} s, "
        f"{total / 1e6 / seconds:,.0f} MB/s{compared}"
    )
    return 0
