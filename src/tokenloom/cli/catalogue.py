"""`tokenloom catalogue`: many datasets as one, without copying their tokens."""

from __future__ import annotations

import argparse
import time
from typing import Any

from tokenloom.cli.dataset_options import RESULT_KEYS, add_dataset_options, chosen_prefixes, origin_words, result_of
from tokenloom.cli.json_output import add_json, print_json
from tokenloom.indexed.writing.catalogue_builder import build_catalogue


def add_parser(commands: Any) -> None:
    """Declares the command."""
    parser = commands.add_parser(
        "catalogue",
        description="Write PREFIX.idx and PREFIX.catalogue, which together act as one dataset over all datasets named, "
        "in the order given. Their tokens stay where they are.",
    )
    add_dataset_options(parser, what="list")
    parser.add_argument("--verify", action="store_true", help="read all tokens and compare them with the manifests")
    add_json(parser, f"{RESULT_KEYS}; num_pairs, seconds and notices")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Writes the catalogue and prints what it holds."""
    prefixes = chosen_prefixes(options)
    notices: list[str] = []
    started = time.perf_counter()
    dataset = build_catalogue(
        prefixes,
        options.output_prefix,
        multimodal=options.multimodal,
        overwrite=options.overwrite,
        notice=notices.append,
        verify=options.verify,
    )
    seconds = time.perf_counter() - started
    if options.json:
        beside = {"num_pairs": len(dataset.sections), "seconds": seconds, "notices": notices}
        print_json({**result_of(dataset), **beside})
        return 0
    for notice in notices:
        print(notice)
    print(
        f"{dataset.path_prefix}: {len(dataset.sections)} pairs, "
        f"{dataset.num_documents} documents{origin_words(dataset.path_prefix)}, "
        f"{len(dataset)} sequences, {dataset.num_tokens} tokens, {dataset.dtype.name}, "
        f"{dataset.extents.num_held_bytes:,} bytes of tokens in {seconds:.1f} s"
    )
    return 0
