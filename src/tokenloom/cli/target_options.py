"""The options by which commands learn what to look at."""

from __future__ import annotations

import argparse

from tokenloom.cli.run_options import add_window_policy
from tokenloom.cli.values import count, whole_number
from tokenloom.inspect.target import SampleSettings, Target, open_target


def add_target(parser: argparse.ArgumentParser) -> None:
    """Declares what is looked at, and how samples of a prefix are made."""
    parser.add_argument(
        "targets",
        nargs="+",
        metavar="TARGET",
        help="a prefix, several or weights and prefixes, a catalogue, a run.toml, or the folder of a job",
    )
    parser.add_argument("--tokenizer", metavar="PATH", help="tokenizer (default: what made the data)")
    kept = SampleSettings()
    group = parser.add_argument_group("samples of a prefix, of which nothing else says how they are made")
    group.add_argument(
        "--sequence-length",
        type=count,
        default=kept.sequence_length,
        metavar="S",
        help="tokens of a sample (default %(default)s)",
    )
    add_window_policy(group)
    group.add_argument("--seed", type=whole_number, default=kept.seed, help="seed of the run (default %(default)s)")


def target_of(options: argparse.Namespace) -> Target:
    """Returns what the options name, opened.

    Raises:
        TokenloomError: it is not there, or cannot be used.
    """
    settings = SampleSettings(
        sequence_length=options.sequence_length, seed=options.seed, window_policy=options.window_policy
    )
    return open_target(options.targets, tokenizer=options.tokenizer, settings=settings)
