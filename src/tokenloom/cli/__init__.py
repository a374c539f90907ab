"""The command line: one module per command, each with `add_parser` and `run`. No logic lives here."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from tokenloom.cli import (
    catalogue,
    demo,
    info,
    merge,
    pack_report,
    plan,
    prepare_cache,
    preprocess,
    preprocess_chat,
    preprocess_multimodal,
    sequences_per_dataset,
    show,
    stream,
    verify,
)
from tokenloom.errors import TokenloomError

COMMANDS = (
    preprocess,
    preprocess_chat,
    preprocess_multimodal,
    merge,
    catalogue,
    info,
    plan,
    pack_report,
    prepare_cache,
    sequences_per_dataset,
    show,
    stream,
    verify,
    demo,
)


def build_parser() -> argparse.ArgumentParser:
    """Returns the parser with all commands."""
    parser = argparse.ArgumentParser(
        prog="tokenloom", description="The data pipeline that feeds large-language-model training."
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.add_parser(commands)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit status: 0 success, 1 a reported problem, 2 wrong usage, 130 interrupted."""
    options = build_parser().parse_args(arguments)
    try:
        status: int = options.run(options)
    except TokenloomError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output has seen enough, as `head` does
        sys.stderr.close()
        return 0
    return status
