"""`tokenloom export`: documents or samples as files of Parquet or Arrow."""

from __future__ import annotations

import argparse
from typing import Any

from tokenloom.adapters.arrow_files import export_documents, export_samples
from tokenloom.cli.json_output import add_json, print_json
from tokenloom.cli.values import byte_count, count, default_of, whole_number
from tokenloom.loading.from_data import load
from tokenloom.numbers import bytes_text


def add_parser(commands: Any) -> None:
    """Declares the command."""
    parser = commands.add_parser(
        "export",
        description="Write the documents of a dataset as rows of Parquet or Arrow; with --sequence-length, or of a "
        "run.toml, the samples of training instead, whose labels are shifted already.",
    )
    parser.add_argument(
        "data", metavar="DATA", help="path of a pair without .bin or .idx; for samples also a glob, folder or run.toml"
    )
    parser.add_argument(
        "--output",
        required=True,
        metavar="PATH",
        help="a file ending in .parquet or .arrow, or a folder for parts",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace what an export wrote there")
    parser.add_argument(
        "--tokenizer", metavar="PATH", help="add the text of documents; for samples the tokenizer (default: manifest's)"
    )
    parser.add_argument("--sequence-length", type=count, metavar="S", help="write samples of so many tokens")
    parser.add_argument("--samples", type=count, metavar="N", help="write the first N samples (default all)")
    parser.add_argument("--seed", type=whole_number, metavar="N", help="seed of the samples (default 1234)")
    parser.add_argument("--format", default="parquet", choices=("parquet", "arrow"), help="of parts (default parquet)")
    parser.add_argument(
        "--compression",
        default=default_of(export_documents, "compression"),
        metavar="NAME",
        help="such as zstd, snappy, lz4 or none (default %(default)s)",
    )
    for name, what in (("row_group_bytes", "a row group"), ("part_bytes", "a part's tokens")):
        size = default_of(export_documents, name)
        parser.add_argument(
            f"--{name.replace('_', '-')}",
            type=byte_count,
            default=size,
            metavar="SIZE",
            help=f"of {what} (default {bytes_text(size)})",
        )
    add_json(parser, "what, paths, num_rows, num_tokens, num_bytes")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Exports, and prints what was written."""
    settings = {
        "file_format": options.format,
        "row_group_bytes": options.row_group_bytes,
        "part_bytes": options.part_bytes,
        "compression": None if options.compression == "none" else options.compression,
        "overwrite": options.overwrite,
    }
    if options.sequence_length is None and not options.data.endswith(".toml"):
        for name in ("samples", "seed"):
            if getattr(options, name) is not None:
                options.parser.error(f"`--{name}` is of samples: name their `--sequence-length`, too")
        what = "documents"
        report = export_documents(options.data, options.output, tokenizer=options.tokenizer, **settings)
    else:
        what = "samples"
        seed = {} if options.seed is None else {"seed": options.seed}
        dataset = load(options.data, sequence_length=options.sequence_length, tokenizer=options.tokenizer, **seed)
        report = export_samples(dataset, options.output, num_samples=options.samples, **settings)
    if options.json:
        print_json(
            {
                "what": what,
                "paths": report.paths,
                "num_rows": report.num_rows,
                "num_tokens": report.num_tokens,
                "num_bytes": report.num_bytes,
            }
        )
        return 0
    files = report.paths[0] if len(report.paths) == 1 else f"{report.paths[0]} and {len(report.paths) - 1} more files"
    print(f"{files}: {report.num_rows:,} {what}, {report.num_tokens:,} tokens, {report.num_bytes:,} bytes")
    return 0
