"""`tokenloom run amend`: change a run from a position on."""

from __future__ import annotations

import argparse
import difflib
from typing import Any

from tokenloom.cli.json_output import print_json
from tokenloom.cli.run_common import add_position, add_run_path, lengths_of, position_of, refuse_usage
from tokenloom.cli.run_lock import described, print_locked, status_of
from tokenloom.cli.values import count, named_data, token_count, weights
from tokenloom.errors import ConfigError
from tokenloom.run.amend import Amendment, amend_run
from tokenloom.run.lock import lock_path, read_lock


def add_parser(commands: Any) -> None:
    """Declares the command."""
    parser = commands.add_parser(
        "amend",
        description="Change a run from a position on, which training has not read yet: edit run.toml, as a person "
        "would, and lock the run anew. Prints the edit and what it means. Both files change, or none: what would move "
        "a sample before the position is refused. --json prints path, written, position, diff, and what `run lock` "
        "prints.",
    )
    add_run_path(parser)
    add_position(parser, prefix="at", samples="at-position", what="from where on (needed)")
    group = parser.add_argument_group("a new stage, in place of what is left of the one that it cuts short")
    group.add_argument("--weights", type=weights, default=(), metavar="NAME=W,…", help="shares, such as web=5,code=5")
    group.add_argument("--stage-name", metavar="NAME", help='name of the stage (default "from" and the position)')
    group.add_argument("--sequence-length", type=count, metavar="S", help="tokens per sample")
    size = group.add_mutually_exclusive_group()
    size.add_argument("--tokens", type=token_count, metavar="N", help="its tokens, such as 50B")
    size.add_argument("--samples", type=token_count, metavar="N", help="its samples")
    group = parser.add_argument_group("data")
    group.add_argument(
        "--add-source",
        type=named_data,
        action="append",
        default=[],
        metavar="NAME=DATA",
        help="a new source, such as books='data/books/*'; may be repeated",
    )
    group.add_argument("--deny", metavar="FILE", help="documents to be padding, such as web:12345, one a line")
    group.add_argument("--grow", action="store_true", help="take up pairs that sources did not have")
    parser.add_argument("--dry-run", action="store_true", help="only say what would change")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Amends, and prints the edit and what it means."""
    lengths = lengths_of(read_lock(lock_path(options.run_path)))
    position = position_of(options, lengths)
    if position is None:
        refuse_usage(options, "say from where on: --at-step or --at-position")
    sources = dict(options.add_source)
    if len(sources) < len(options.add_source):
        message = "expected each new source once, found one twice in --add-source"
        raise ConfigError(message, hint="list several data of a source in run.toml")
    amended = amend_run(
        options.run_path,
        Amendment(
            position=position,
            weights=options.weights,
            stage_name=options.stage_name,
            sequence_length=options.sequence_length,
            tokens=options.tokens,
            samples=options.samples,
            sources=sources,
            denied=options.deny,
            grows=options.grow,
        ),
        write=not options.dry_run,
    )
    diff = list(
        difflib.unified_diff(
            amended.before.splitlines(),
            amended.after.splitlines(),
            f"{options.run_path} before",
            f"{options.run_path} from position {position} on",
            n=1,
            lineterm="",
        )
    )
    path = lock_path(options.run_path)
    if options.json:
        described_lock = described(amended.locked, position=position)
        head = {"path": path, "written": not options.dry_run, "position": position, "diff": diff}
        print_json({**head, **described_lock})
        return status_of(amended.locked.lock)
    print(*diff, sep="\n", end="\n\n" if diff else "")
    print_locked(amended.locked, path=path, is_written=not options.dry_run, position=position)
    return status_of(amended.locked.lock)
