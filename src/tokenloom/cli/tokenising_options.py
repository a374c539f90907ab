"""The options of all commands that turn records into a pair."""

from __future__ import annotations

import argparse

_ENGINES = ("auto", "gigatoken", "tokenizers")  # repeated: asking for help must not import the engines


def add_tokenising_options(parser: argparse.ArgumentParser, *, bad: str = "lines", has_engines: bool = True) -> None:
    """Declares where the pair goes and how text is tokenised.

    Args:
        parser: of the command.
        bad: what is set aside when it is bad.
        has_engines: whether there is a choice of engines.
    """
    parser.add_argument("--output-prefix", required=True, metavar="PREFIX", help="the output paths without suffix")
    parser.add_argument("--tokenizer", required=True, metavar="PATH", help="a tokenizer.json, or a folder with one")
    parser.add_argument("--eod-token", metavar="TOKEN", help="what ends a document, where the tokenizer does not say")
    parser.add_argument("--workers", type=int, metavar="N", help="threads (one per processor)")
    if has_engines:
        parser.add_argument(
            "--engine", choices=_ENGINES, default="auto", help="auto: gigatoken if it gives the same ids"
        )
    parser.add_argument(
        "--skip-bad-lines",
        action="store_true",
        help=f"set bad {bad} aside in PREFIX.rejected.jsonl instead of stopping",
    )
