"""The command line: one module per command, each with `add_parser` and `run`. No logic lives here."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

from tokenloom.errors import TokenloomError

COMMANDS = (
    "preprocess",
    "preprocess-chat",
    "preprocess-multimodal",
    "merge",
    "catalogue",
    "info",
    "plan",
    "pack-report",
    "prepare-cache",
    "sequences-per-dataset",
    "show",
    "stream",
    "verify",
    "demo",
)


def build_parser(names: Sequence[str] = COMMANDS) -> argparse.ArgumentParser:
    """Returns the parser of some commands; only their modules are imported, which takes most of a short run."""
    parser = argparse.ArgumentParser(
        prog="tokenloom", description="The data pipeline that feeds large-language-model training."
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name in names:
        import_module(f"{__name__}.{name.replace('-', '_')}").add_parser(commands)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit status: 0 success, 1 a reported problem, 2 wrong usage, 130 interrupted."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    named = words[:1] if words[:1] and words[0] in COMMANDS else COMMANDS
    options = build_parser(named).parse_args(words)
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
