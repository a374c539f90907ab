"""`tokenloom merge`: several pairs into one."""

from __future__ import annotations

import argparse
from typing import Any

from tokenloom.cli import console
from tokenloom.indexed.layout import bin_path, prefix_of
from tokenloom.indexed.merge import merge_datasets, prefixes_in
from tokenloom.storage.resolve import exists, size_of


def add_parser(commands: Any) -> None:
    """Declares the command."""
    parser = commands.add_parser(
        "merge", help="join datasets into one", description="Join datasets, in the order given, into one."
    )
    parser.add_argument("prefixes", nargs="*", metavar="PREFIX", help="datasets to join")
    parser.add_argument("--input", metavar="FOLDER", help="join all datasets of a folder, sorted by name")
    parser.add_argument("--output-prefix", required=True, metavar="PREFIX", help="where the result goes")
    parser.add_argument("--multimodal", action="store_true", help="the indexes hold sequence modes")
    parser.set_defaults(run=run, parser=parser)


def run(options: argparse.Namespace) -> int:
    """Merges and prints what came out."""
    if bool(options.prefixes) == bool(options.input):
        options.parser.error("name either datasets or a folder with --input")
    prefixes = prefixes_in(options.input) if options.input else [prefix_of(prefix) for prefix in options.prefixes]
    sizes = {prefix: size_of(bin_path(prefix)) for prefix in prefixes if exists(bin_path(prefix))}
    with console.byte_progress(f"merge {len(prefixes)} datasets", total=sum(sizes.values())) as advance:
        merged = merge_datasets(
            prefixes,
            options.output_prefix,
            multimodal=options.multimodal,
            progress=lambda prefix: advance(sizes.get(prefix, 0)),
        )
    print(
        f"{merged.path_prefix}: {merged.num_documents} documents, {len(merged)} sequences, {merged.num_tokens} tokens, "
        f"{merged.dtype.name}"
    )
    return 0
