"""`tokenloom preprocess-chat`: conversations into datasets."""

from __future__ import annotations

import argparse
from typing import Any

from tokenloom.cli import console
from tokenloom.cli.job_options import add_job_options, add_record_timeout, job_of
from tokenloom.cli.json_output import add_json, print_json
from tokenloom.cli.reference_options import say_without_effect
from tokenloom.cli.tokenising_options import add_read_limits, add_tokenising_options, read_limits_of, tokenizer_of
from tokenloom.preprocess.settings import CHAT_SHARD_BYTES

# Repeated: asking for help must not import the tokenizers.
_SCHEMAS = ("messages", "sharegpt", "alpaca", "text")


def add_parser(commands: Any) -> None:
    """Declares the command."""
    parser = commands.add_parser(
        "preprocess-chat",
        description="Tokenize conversations into PREFIX.bin, PREFIX.idx and PREFIX.roles, which says what of them the "
        "assistant said. What was interrupted goes on where it was when the same command runs again; on several "
        "machines that share the folder, all take part.",
    )
    parser.add_argument(
        "input", nargs="?", metavar="INPUT", help="JSON lines (.jsonl; also .gz, .zst, .bz2, .xz), .parquet or .arrow"
    )
    parser.add_argument("--input", metavar="PATH", dest="named_input", help="the input, by an option")
    parser.require_any("input", "named_input", words="INPUT (or --input)")
    parser.add_argument(
        "--chat-template",
        metavar="TEMPLATE",
        help="chatml, which is built in, or a file with a Jinja template (default: the tokenizer's own)",
    )
    parser.add_argument("--schema", choices=_SCHEMAS, help="form of the records (default: told from their columns)")
    add_read_limits(parser)
    add_tokenising_options(parser)
    add_record_timeout(add_job_options(parser, threads=4, shard_bytes=CHAT_SHARD_BYTES))
    add_json(
        parser,
        "prefix, num_documents, num_sequences, num_tokens, num_answer_tokens, num_blank_lines, num_rejected, "
        "rejected_path, schema, template, dtype, engine, engine_reason, seconds, was_complete",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Tokenizes and prints the summary."""
    from tokenloom.preprocess.chat import preprocess_chat

    if options.input and options.named_input:
        options.parser.error("expected INPUT or `--input`, found both")
    options.input = options.input or options.named_input
    tokenizer = tokenizer_of(options)
    say_without_effect(options)
    summary = preprocess_chat(
        options.input,
        options.output_prefix,
        tokenizer,
        chat_template=options.chat_template,
        schema=options.schema,
        engine=options.engine,
        skip_bad_lines=options.skip_bad_lines,
        read_limits=read_limits_of(options),
        record_timeout_seconds=options.record_timeout,
        shard_bytes=options.shard_size,
        origins=not options.no_origins,
        document_hashes=options.document_hashes,
        **job_of(options),
    )
    if options.json:
        print_json(summary)
        return 0
    rejected = "0" if summary.rejected_path is None else f"{summary.num_rejected:,} in {summary.rejected_path}"
    share = summary.num_answer_tokens / summary.num_tokens
    console.print_table(
        (options.input, ""),
        [
            *([("nothing to do", "all of it was done before")] if summary.was_complete else []),
            ("schema", summary.schema),
            ("template", summary.template),
            ("lines", f"{summary.num_documents:,}"),
            ("conversations", f"{summary.num_sequences:,}"),
            ("tokens", f"{summary.num_tokens:,}"),
            ("of these to train", f"{summary.num_answer_tokens:,} ({100 * share:.1f} %)"),
            ("dtype", summary.dtype),
            ("rejected lines", rejected),
            ("blank lines", f"{summary.num_blank_lines:,}"),
            ("seconds", f"{summary.seconds:.2f}"),
            *([] if summary.was_complete else [("tokens/s", f"{summary.num_tokens / summary.seconds:,.0f}")]),
            ("engine", summary.engine),
            ("engine chosen", summary.engine_reason),
            ("dataset", summary.prefix),
        ],
    )
    return 0
