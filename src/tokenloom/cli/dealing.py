"""How positions were dealt to steps and ranks: options of commands that tell both."""

from __future__ import annotations

import argparse

from tokenloom.cli.run_common import add_batch_sizes, batch_sizes_of, lengths_of, refuse_usage
from tokenloom.cli.values import count
from tokenloom.loading.topology import Topology
from tokenloom.run.lock import RunLock


def add_dealing(parser: argparse.ArgumentParser) -> None:
    """Declares batch sizes and ranks."""
    add_ranks(parser, with_batch_sizes=True)


def add_ranks(parser: argparse.ArgumentParser, *, with_batch_sizes: bool = False) -> None:
    """Declares ranks alone, where batch sizes are declared with a position; or both."""
    group = parser.add_argument_group("how positions were dealt (as in the training run)")
    if with_batch_sizes:
        add_batch_sizes(group)
    group.add_argument("--micro-batch-size", type=count, metavar="B", help="samples of a rank and micro-batch")
    group.add_argument("--data-parallel-size", type=count, metavar="D", help="data-parallel ranks")


def has_batch_sizes(options: argparse.Namespace) -> bool:
    """Whether the options tell batch sizes."""
    return options.global_batch_size is not None or options.batch_size_schedule is not None


def check_dealing(options: argparse.Namespace) -> None:
    """Ends with status 2 if ranks are told by half, or without batch sizes."""
    ranks = options.micro_batch_size, options.data_parallel_size
    if (ranks[0] is None) != (ranks[1] is None):
        refuse_usage(options, "--micro-batch-size and --data-parallel-size belong together")
    if ranks[0] is not None and not has_batch_sizes(options):
        refuse_usage(options, "ranks need --global-batch-size or --batch-size-schedule")


def topology_of(options: argparse.Namespace, lock: RunLock) -> Topology | None:
    """Returns how positions are dealt; None if the options do not tell.

    Raises:
        ConfigError: the schedule of batch sizes is none.
    """
    sizes = batch_sizes_of(options, lengths_of(lock))
    if sizes is None:
        return None
    return Topology(
        batch_sizes=sizes, micro_batch_size=options.micro_batch_size, data_parallel_size=options.data_parallel_size
    )
