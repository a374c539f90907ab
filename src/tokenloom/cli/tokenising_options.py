"""The options of all commands that turn records into a pair, and what they stand for."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from tokenloom.cli.parser import CommandParser
from tokenloom.cli.reference_options import add_reference_tokenizer, reference_tokenizer_of
from tokenloom.cli.values import byte_count, signed_number
from tokenloom.inputs.limits import ReadLimits
from tokenloom.numbers import bytes_text
from tokenloom.tokenizers.kinds import ENGINES, KINDS  # whose names cost nothing: help must not import the engines

if TYPE_CHECKING:
    from tokenloom.tokenizers.text_tokenizer import TextTokenizer


def add_tokenising_options(parser: CommandParser, *, bad: str = "lines", has_engines: bool = True) -> None:
    """Declares where the pair goes and how text is tokenized.

    Args:
        parser: parser of the command.
        bad: what is set aside when it is bad.
        has_engines: whether there is a choice of engines.
    """
    parser.add_argument("--output-prefix", required=True, metavar="PREFIX", help="path of the outputs without suffix")
    parser.add_argument("--overwrite", action="store_true", help="replace outputs that another run made")
    add_tokenizer_options(parser)
    parser.add_argument(
        "--workers", type=signed_number, metavar="N", help="number of threads (default one per processor)"
    )
    if has_engines:
        parser.add_argument(
            "--engine",
            choices=ENGINES,
            default="auto",
            help="what encodes texts; auto: gigatoken if it gives the same ids, else the tokenizer's own library "
            "(default auto)",
        )
    parser.add_argument(
        "--skip-bad-lines",
        action="store_true",
        help=f"set bad {bad} aside in PREFIX.rejected.jsonl instead of stopping",
    )
    parser.add_argument(
        "--no-origins",
        action="store_true",
        help="write no PREFIX.origins, which says of which file and record each document is",
    )
    parser.add_argument(
        "--document-hashes",
        action="store_true",
        help="write PREFIX.hashes, a hash of each document's text, by which a text is found again",
    )


def add_read_limits(parser: Any) -> None:
    """Declares what reading the input may take; `read_limits_of` reads it."""
    kept = ReadLimits()
    parser.add_argument(
        "--max-record-size",
        type=byte_count,
        default=kept.max_record_bytes,
        metavar="SIZE",
        help=f"longest record; longer ones are bad (default {bytes_text(kept.max_record_bytes)})",
    )
    parser.add_argument(
        "--max-window",
        type=byte_count,
        default=kept.max_window_bytes,
        metavar="SIZE",
        help=f"most memory for what zstd and xz look back on (default {bytes_text(kept.max_window_bytes)})",
    )
    parser.add_argument(
        "--memory",
        type=byte_count,
        default=kept.memory_bytes,
        metavar="SIZE",
        help=f"largest record batch of a table, decoded (default {bytes_text(kept.memory_bytes)})",
    )


def read_limits_of(options: argparse.Namespace) -> ReadLimits:
    """Returns what `add_read_limits` asks for."""
    return ReadLimits(
        max_record_bytes=options.max_record_size, max_window_bytes=options.max_window, memory_bytes=options.memory
    )


def add_tokenizer_options(parser: CommandParser) -> None:
    """Declares which tokenizer to load; `tokenizer_of` loads it."""
    parser.add_argument(
        "--tokenizer",
        metavar="PATH|byte|null:N",
        help="a tokenizer.json, a SentencePiece .model, a .tiktoken, GPT-2's vocab.json or BERT's vocab.txt, or a "
        "folder with one; byte: bytes are ids; null:N: texts are lists of ids below N",
    )
    parser.add_argument(
        "--tokenizer-kind",
        choices=("auto", *KINDS),
        default="auto",
        help="kind of tokenizer; auto: told from the file's content (default auto)",
    )
    parser.add_argument(
        "--tiktoken-pattern",
        metavar="PATTERN",
        help="how tiktoken cuts texts into words: r50k, p50k, cl100k, o200k or an expression (default: what PATH.json "
        "or PATH.toml says, or what belongs to a published file); v1 or v2 of TikTokenizer",
    )
    parser.add_argument(
        "--eod-token", metavar="TOKEN", help="token that ends a document, where the tokenizer does not say"
    )
    add_reference_tokenizer(parser)
    named = ("tokenizer", "tokenizer_type", "tokenizer_model", "vocab_file", "merge_file", "vocab_size")
    parser.require_any(*named, words="--tokenizer PATH (or --tokenizer-type)")


def add_document_options(parser: argparse.ArgumentParser) -> None:
    """Declares what is made of each document; `tokenizer_of` reads the last."""
    parser.add_argument("--append-eod", action="store_true", help="end each document with the end-of-document token")
    parser.add_argument(
        "--prepend-bos", action="store_true", help="begin each document with the beginning-of-document token"
    )
    parser.add_argument(
        "--bos-token", metavar="TOKEN", help="token that begins a document, where the tokenizer does not say"
    )
    parser.add_argument(
        "--template-tokens",
        action="store_true",
        help="put the special tokens of the tokenizer's own template around each text, before those",
    )
    parser.add_argument(
        "--split-sentences", action="store_true", help="write a sequence per sentence, to PREFIX_KEY_sentence"
    )
    parser.add_argument(
        "--keep-newlines", action="store_true", help="with --split-sentences: keep the white space between sentences"
    )


def tokenizer_of(options: argparse.Namespace) -> TextTokenizer:
    """Returns the tokenizer that `add_tokenizer_options` asks for."""
    from tokenloom.tokenizers.load import load_tokenizer

    if (tokenizer := reference_tokenizer_of(options)) is not None:
        return tokenizer
    return load_tokenizer(
        options.tokenizer,
        kind=options.tokenizer_kind,
        eod_token=options.eod_token,
        bos_token=getattr(options, "bos_token", None),  # only commands that can add it have it,
        pattern=options.tiktoken_pattern,
    )
