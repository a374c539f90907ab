"""`tokenloom preprocess`: text into datasets."""

from __future__ import annotations

import argparse
from typing import Any

from tokenloom.cli import console
from tokenloom.cli.tokenising_options import add_tokenising_options


def add_parser(commands: Any) -> None:
    """Declares the command."""
    parser = commands.add_parser(
        "preprocess",
        help="turn JSON lines into tokenised datasets",
        description="Tokenise a file of JSON lines into PREFIX_KEY_document.bin and .idx.",
    )
    parser.add_argument(
        "input", metavar="INPUT", help="file with one JSON object per line: .jsonl; also .gz, .zst, .bz2, .xz"
    )
    parser.add_argument("--json-keys", nargs="+", default=["text"], metavar="KEY", help="keys to tokenise (text)")
    parser.add_argument("--append-eod", action="store_true", help="end each document with the end-of-document token")
    add_tokenising_options(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Tokenises and prints the summary."""
    from tokenloom.preprocess.pipeline import preprocess_jsonl
    from tokenloom.preprocess.tokenizers import load_tokenizer

    tokenizer = load_tokenizer(options.tokenizer, eod_token=options.eod_token)
    with console.token_progress("preprocess") as show:
        summary = preprocess_jsonl(
            options.input,
            options.output_prefix,
            tokenizer,
            keys=options.json_keys,
            append_eod=options.append_eod,
            num_workers=options.workers,
            engine=options.engine,
            skip_bad_lines=options.skip_bad_lines,
            progress=None if show is None else lambda at: show(at.num_file_bytes, at.total_file_bytes, at.num_tokens),
        )
    rejected = "0" if summary.rejected_path is None else f"{summary.num_rejected:,} in {summary.rejected_path}"
    console.print_table(
        (options.input, ""),
        [
            ("documents", f"{summary.num_documents:,}"),
            ("tokens", f"{summary.num_tokens:,}"),
            ("bytes written", f"{sum(output.num_bytes for output in summary.outputs):,}"),
            ("dtype", summary.dtype),
            ("rejected lines", rejected),
            ("blank lines", f"{summary.num_blank_lines:,}"),
            ("text bytes read", f"{summary.num_text_bytes:,}"),
            ("seconds", f"{summary.seconds:.2f}"),
            ("MB/s", f"{summary.num_text_bytes / summary.seconds / 1e6:.1f}"),
            ("tokens/s", f"{summary.num_tokens / summary.seconds:,.0f}"),
            ("engine", summary.engine),
            ("engine chosen", summary.engine_reason),
            *((f"dataset of {output.key!r}", output.prefix) for output in summary.outputs),
        ],
    )
    return 0
