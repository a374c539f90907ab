"""`tokenloom replay`: read positions of a run again, and compare with what was read."""

from __future__ import annotations

import argparse
import itertools
import re
from collections.abc import Sequence
from typing import Any

from tokenloom.cli.json_output import print_json
from tokenloom.cli.run_common import add_batch_sizes, add_run_path, batch_sizes_of, lengths_of, refuse_usage
from tokenloom.cli.values import count, whole_number
from tokenloom.errors import ConfigError, DatasetNotFoundError
from tokenloom.loading.batch_digest import RangeDigest, ReadingDigest, Share, name_of_run
from tokenloom.loading.replay import digest_of_positions, positions_of_share
from tokenloom.run.run import Run


def add_parser(commands: Any) -> None:
    """Declares the command."""
    parser = commands.add_parser(
        "replay",
        description="Read a range of positions again and print its digest: a sum over positions and tokens, the same "
        "for any ranks, micro-batches and threads, as `check_reading` gives it at a checkpoint. With --expect the exit "
        "status is 0 if it is that one, and 1 if it is not. --json prints digest, run, start, stop and num_samples, "
        "and with --expect also expected and matches.",
    )
    add_run_path(parser)
    group = parser.add_argument_group("which positions (default: those of --expect, else all before the end)")
    for end, what in (("from", "first one"), ("to", "one behind the last")):
        either = group.add_mutually_exclusive_group()
        either.add_argument(f"--{end}-position", type=whole_number, metavar="N", help=f"the {what}")
        either.add_argument(f"--{end}-step", type=whole_number, metavar="N", help="the same as a step from 0 on")
    add_batch_sizes(group)
    share = parser.add_argument_group("a rank's share of them (default: all)")
    share.add_argument("--rank", type=whole_number, metavar="R", help="data-parallel rank")
    share.add_argument("--data-parallel-size", type=count, metavar="D", help="data-parallel ranks in all")
    share.add_argument("--micro-batch-size", type=count, metavar="B", help="samples of a micro-batch")
    expected = parser.add_mutually_exclusive_group()
    expected.add_argument("--expect", metavar="DIGEST", help="what it should be")
    expected.add_argument(
        "--expect-file",
        metavar="FILE",
        help="a digest per line, one for each range to read, such as of each checkpoint",
    )
    parser.add_argument("--threads", type=count, default=1, metavar="N", help="threads that read (default 1)")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Reads, prints, and compares."""
    opened = Run.open(options.run_path)
    name = name_of_run(opened.identity)
    wanted, expectations = _wanted(options, opened, name)
    dataset = opened.dataset()
    for asked, expected in zip(wanted, expectations, strict=True):
        if asked.stop > len(dataset):
            message = f"expected a range of the {len(dataset):,} positions of `{opened.path}`, found "
            message += f"{asked.start}-{asked.stop}"
            raise ConfigError(message)
        digest = ReadingDigest()
        if asked.share is None:
            digest.take(digest_of_positions(dataset, range(asked.start, asked.stop), num_threads=options.threads))
        else:
            positions = list(itertools.chain.from_iterable(positions_of_share(asked.start, asked.stop, asked.share)))
            digest.take(digest_of_positions(dataset, positions, num_threads=options.threads))
        found = RangeDigest(run=name, start=asked.start, stop=asked.stop, share=asked.share, digest=digest)
        _print(options, found, expected)
        if expected is not None and expected != digest.hexdigest():
            return 1
    return 0


def _print(options: argparse.Namespace, found: RangeDigest, expected: str | None) -> None:
    if options.json:
        told: dict[str, object] = {
            "digest": str(found),
            "run": found.run,
            "start": found.start,
            "stop": found.stop,
            "num_samples": found.digest.num_samples,
        }
        if expected is not None:
            told |= {"expected": expected, "matches": expected == found.digest.hexdigest()}
        print_json(told)
    elif expected is None:
        print(found)
    elif expected == found.digest.hexdigest():
        print(f"{found}  as expected: {found.digest.num_samples:,} samples")
    else:
        print(f"{found}\nexpected sum {expected}: something else was read, or the data have changed since")


def _wanted(options: argparse.Namespace, opened: Run, name: str) -> tuple[list[RangeDigest], list[str | None]]:
    """Returns the ranges to read, and the sums expected of them, as 32 hex digits."""
    if options.expect_file is not None:
        given = [_parsed(text, name) for text in _lines(options.expect_file)]
        if _range_of(options, opened) != (None, None) or _share_of(options) is not None:
            refuse_usage(options, "--expect-file says itself which positions to read")
        return given, [each.digest.hexdigest() for each in given]
    start, stop = _range_of(options, opened)
    share = _share_of(options)
    if options.expect is None or re.fullmatch("[0-9a-f]{32}", options.expect):
        start = 0 if start is None else start
        stop = opened.num_samples if stop is None else stop
        if stop is None:
            refuse_usage(options, "a run without an end needs --to-position or --to-step")
        if start > stop:
            message = f"expected a range of positions, found {start}-{stop}"
            raise ConfigError(message)
        return [RangeDigest(run=name, start=start, stop=stop, share=share)], [options.expect]
    expected = _parsed(options.expect, name)
    asked = (expected.start if start is None else start, expected.stop if stop is None else stop)
    if asked != (expected.start, expected.stop):
        message = f"expected the digest of positions {asked[0]}-{asked[1]}, found one of "
        raise ConfigError(message + f"{expected.start}-{expected.stop}")
    if share is not None and share != expected.share:
        found = "all ranks" if expected.share is None else str(expected.share)
        message = f"expected the digest of the share {share} of a rank, found one of {found}"
        raise ConfigError(message)
    return [expected], [expected.digest.hexdigest()]


def _parsed(text: str, name: str) -> RangeDigest:
    """Returns a digest of this run.

    Raises:
        ConfigError: it is none, or of another run.
    """
    found = RangeDigest.parse(text)
    if found.run != name:
        message = f"expected a digest of this run, {name}, found one of {found.run}"
        raise ConfigError(message, hint="another seed, another order or other data at its beginning make another run")
    return found


def _lines(path: str) -> Sequence[str]:
    try:
        with open(path, encoding="utf-8") as stream:
            found = [line.strip() for line in stream if line.strip()]
    except FileNotFoundError as error:
        message = f"expected a file of digests at `{path}`, found no such file"
        raise DatasetNotFoundError(message) from error
    if not found:
        message = f"expected a digest per line in `{path}`, found none"
        raise ConfigError(message)
    return found


def _range_of(options: argparse.Namespace, opened: Run) -> tuple[int | None, int | None]:
    """Returns the first position and the one behind the last; None for what was not said."""
    sizes = batch_sizes_of(options, lengths_of(opened.lock))
    found: list[int | None] = []
    for position, step in ((options.from_position, options.from_step), (options.to_position, options.to_step)):
        if step is None:
            found.append(position)
        elif sizes is None:
            refuse_usage(options, "a step needs --global-batch-size or --batch-size-schedule")
        else:
            found.append(sizes.position_of_step(step))
    return found[0], found[1]


def _share_of(options: argparse.Namespace) -> Share | None:
    given = (options.rank, options.data_parallel_size, options.micro_batch_size)
    if given == (None, None, None):
        return None
    if None in given:
        refuse_usage(options, "--rank, --data-parallel-size and --micro-batch-size go together")
    share = Share(rank=options.rank, size=options.data_parallel_size, micro_batch_size=options.micro_batch_size)
    if share.rank >= share.size:
        refuse_usage(options, f"--rank has to be below --data-parallel-size, {share.size}")
    return share
