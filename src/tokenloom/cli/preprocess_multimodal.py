"""`tokenloom preprocess-multimodal`: texts and images into a dataset."""

from __future__ import annotations

import argparse
from typing import Any

from tokenloom.cli import console
from tokenloom.cli.job_options import add_job_options, job_of
from tokenloom.cli.json_output import add_json, print_json
from tokenloom.cli.reference_options import add_without_effect, refuse_template, say_without_effect
from tokenloom.cli.tokenising_options import add_read_limits, add_tokenising_options, read_limits_of, tokenizer_of
from tokenloom.cli.values import count
from tokenloom.numbers import bytes_text
from tokenloom.preprocess.settings import IMAGE_FOLDER_SHARD_BYTES, IMAGE_RECORD_SHARD_BYTES


def add_parser(commands: Any) -> None:
    """Declares the command."""
    parser = commands.add_parser(
        "preprocess-multimodal",
        description="Tokenize texts and store the images that go with them in PREFIX.bin and .idx: a document is the "
        "text (mode 0), then the bytes of the image file (mode 1). What was interrupted goes on where it was when the "
        "same command runs again; on several machines that share the folder, all take part.",
    )
    parser.add_argument(
        "inputs",
        nargs="*",
        metavar="INPUT",
        help="JSON lines, or a folder of pairs with equal names, such as cat.txt and cat.jpg",
    )
    parser.add_argument("--text-key", default="text", metavar="KEY", help="key of the text (default text)")
    parser.add_argument("--image-key", default="image", metavar="KEY", help="key of the image's path (default image)")
    parser.add_argument("--append-eod", action="store_true", help="end each text with the end-of-document token")
    parser.add_argument("--pad-length", type=count, metavar="N", help="cut or fill texts to N tokens")
    add_read_limits(parser)
    add_tokenising_options(parser, bad="pairs", has_engines=False)
    shards = f"{bytes_text(IMAGE_RECORD_SHARD_BYTES)} of records, {bytes_text(IMAGE_FOLDER_SHARD_BYTES)} of a folder"
    add_job_options(parser, threads=8, shard_bytes=None, shards=shards)
    group = parser.add_argument_group("as Megatron's preprocess_mmdata.py calls it")
    group.add_argument("--input", metavar="FILE", dest="named_input", help="the input")
    group.add_argument(
        "--input-image",
        metavar="FOLDER",
        help="images that go with the records by their order, sorted by name; PREFIX.pairs.jsonl says which with which",
    )
    for name in ("--log-interval", "--lang"):
        add_without_effect(group, name, reason="texts are not cut, and progress is shown by time")
    for name in ("--split-sentences", "--keep-newlines"):
        add_without_effect(group, name, nargs=0, reason="texts are not cut")
    add_json(
        parser,
        "prefix, num_documents, num_text_tokens, num_image_bytes, num_truncated, num_rejected, rejected_path, seconds, "
        "was_complete",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Writes the dataset and prints the summary."""
    from tokenloom.preprocess.multimodal import preprocess_multimodal

    tokenizer = tokenizer_of(options)
    refuse_template(options, tokenizer)
    say_without_effect(options)
    named = _input(options)
    summary = preprocess_multimodal(
        named,
        options.output_prefix,
        tokenizer,
        text_key=options.text_key,
        image_key=options.image_key,
        append_eod=options.append_eod,
        pad_length=options.pad_length,
        skip_bad_lines=options.skip_bad_lines,
        read_limits=read_limits_of(options),
        shard_bytes=options.shard_size,
        origins=not options.no_origins,
        document_hashes=options.document_hashes,
        **job_of(options),
    )
    if options.json:
        print_json(summary)
        return 0
    rejected = "0" if summary.rejected_path is None else f"{summary.num_rejected:,} in {summary.rejected_path}"
    console.print_table(
        (named, ""),
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


def _input(options: argparse.Namespace) -> str:
    """Returns the one input; where images come in a folder of their own, the records that name them."""
    from tokenloom.preprocess.multimodal import write_image_records

    names = [*options.inputs, *([options.named_input] if options.named_input else [])]
    if len(names) != 1:
        options.parser.error(f"expected one INPUT, or one --input, found {len(names)}")
    if options.input_image is None:
        return str(names[0])
    records = f"{options.output_prefix}.pairs.jsonl"
    write_image_records(
        names[0], options.input_image, records, image_key=options.image_key, overwrite=options.overwrite
    )
    return records
