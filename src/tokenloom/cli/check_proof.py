"""`tokenloom check-proof`: what a proof about a run proves, without its data."""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any

from tokenloom.cli.json_output import add_json, print_json
from tokenloom.cli.run_common import refuse_usage
from tokenloom.errors import ConfigError
from tokenloom.rendering.words import counted
from tokenloom.run.audit.commitment import read_commitment
from tokenloom.run.audit.proof import read_proof
from tokenloom.run.audit.proof_check import Proven, check_proof, check_text

_MOST_SHOWN = 8


def add_parser(commands: Any) -> None:
    """Declares the command."""
    parser = commands.add_parser(
        "check-proof",
        description="Work out again what a proof proves, from the root of a run alone: neither the run nor its data "
        "is needed, and nothing that the proof says is believed. The exit status is 0 if it holds, 1 if not. --json "
        "prints source, document, num_tokens, sha256, begin, end, read, denied and root.",
    )
    parser.add_argument("proof", metavar="PROOF", help="what `tokenloom prove` wrote")
    known = parser.add_mutually_exclusive_group(required=True)
    known.add_argument("--root", metavar="HEX", help="the root that `run commit` printed")
    known.add_argument("--commitment", metavar="FILE", help="the file that it wrote, of which the root is taken")
    group = parser.add_argument_group("whether the document is a certain text")
    group.add_argument("--text-file", metavar="FILE", help="the text, to the byte")
    group.add_argument("--tokenizer", metavar="PATH", help="the tokenizer; null:N takes a list of ids as the text")
    add_json(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Prints what is proven."""
    if (options.text_file is None) != (options.tokenizer is None):
        refuse_usage(options, "--text-file and --tokenizer belong together")
    root = options.root.lower() if options.commitment is None else read_commitment(options.commitment).root
    proven = check_proof(read_proof(options.proof), root)
    if options.text_file is not None:
        from tokenloom.tokenizers.load import load_tokenizer

        check_text(proven, _text(options.text_file), load_tokenizer(options.tokenizer))
    if options.json:
        print_json(described(proven))
    else:
        print(in_words(proven))
    return 0


def described(proven: Proven) -> dict[str, Any]:
    """Returns what is proven, for JSON."""
    return dataclasses.asdict(proven)


def in_words(proven: Proven) -> str:
    """Returns what is proven, in lines of up to 80 columns."""
    lines = [
        f"run of root {proven.root}",
        f"document {proven.document:,} of {proven.source}: {counted(proven.num_tokens, 'token')}",
        f"  sha256 {proven.sha256}",
    ]
    where = f"positions {proven.begin:,} to {proven.end - 1:,}"
    if proven.end == proven.begin + 1:
        where = f"position {proven.begin:,}"
    if not proven.read:
        lines.append(f"is NOT READ at {where}")
    else:
        lines.append(f"is READ at {where}: {counted(len(proven.read), 'time')}, at")
        lines.append(f"  {_some(proven.read)}")
    if proven.denied:
        lines.append(f"is denied, and padding stands for it, {counted(len(proven.denied), 'time')}, at")
        lines.append(f"  {_some(proven.denied)}")
    return "\n".join(lines)


def _some(positions: tuple[int, ...]) -> str:
    shown = ", ".join(map(str, positions[:_MOST_SHOWN]))
    more = len(positions) - _MOST_SHOWN
    return f"{shown} and {more:,} more" if more > 0 else shown


def _text(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return file.read().decode()
    except OSError as error:
        message = f"cannot read `{path}`: {error.strerror}"
        raise ConfigError(message) from error
    except UnicodeDecodeError as error:
        message = f"`{path}`: expected UTF-8, found something else ({error})"
        raise ConfigError(message) from error
