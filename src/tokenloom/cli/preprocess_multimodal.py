"""`tokenloom preprocess-multimodal`: texts and images into a dataset."""

from __future__ import annotations

import argparse
from typing import Any

from tokenloom.cli import console
from tokenloom.cli.job_options import add_job_options, job_of
from tokenloom.cli.tokenising_options import add_read_limits, add_tokenising_options, read_limits_of, tokenizer_of
from tokenloom.cli.values import count


def add_parser(commands: Any) -> None:
    """Declares the command."""
    parser = commands.add_parser(
        "preprocess-multimodal",
        help="turn pairs of text and image into a dataset",
        description="Tokenize texts and store the images that go with them in PREFIX.bin and .idx: a document is the "
        "text (mode 0), then the bytes of the image file (mode 1). What was interrupted goes on where it was when the "
        "same command runs again; on several machines that share the folder, all take part.",
    )
    parser.add_argument(
        "input", metavar="INPUT", help="JSON lines, or a folder of pairs with equal names, such as cat.txt and cat.jpg"
    )
    parser.add_argument("--text-key", default="text", metavar="KEY", help="key of the text (default text)")
    parser.add_argument("--image-key", default="image", metavar="KEY", help="key of the image's path (default image)")
    parser.add_argument("--append-eod", action="store_true", help="end each text with the end-of-document token")
    parser.add_argument("--pad-length", type=count, metavar="N", help="cut or fill texts to N tokens")
    add_read_limits(parser)
    add_tokenising_options(parser, bad="pairs", has_engines=False)
    add_job_options(parser, threads=8, shard_size="1MiB of records, 256MiB of a folder", has_default=False)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Writes the dataset and prints the summary."""
    from tokenloom.corpus.multimodal import preprocess_multimodal

    summary = preprocess_multimodal(
        options.input,
        options.output_prefix,
        tokenizer_of(options),
        text_key=options.text_key,
        image_key=options.image_key,
        append_eod=options.append_eod,
        pad_length=options.pad_length,
        skip_bad_lines=options.skip_bad_lines,
        read_limits=read_limits_of(options),
        shard_bytes=options.shard_size,
        **job_of(options),
    )
    rejected = "0" if summary.rejected_path is None else f"{summary.num_rejected:,} in {summary.rejected_path}"
    console.print_table(
        (options.input, ""),
        [
            *([("nothing to do", "all of it was done before")] if summary.was_complete else []),
            ("documents", f"{summary.num_documents:,}"),
            ("tokens of texts", f"{summary.num_text_tokens:,}"),
            ("bytes of images", f"{summary.num_image_bytes:,}"),
            ("texts cut off", f"{summary.num_truncated:,}"),
            ("rejected pairs", rejected),
            ("seconds", f"{summary.seconds:.2f}"),
            ("dataset", summary.prefix),
        ],
    )
    return 0
