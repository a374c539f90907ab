"""`tokenloom replay`: read positions of a run again, and compare with what was read."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from tokenloom.cli.json_output import print_json
from tokenloom.cli.options import Either, UsageError, Written
from tokenloom.cli.run_common import BatchSizes, RunPath
from tokenloom.errors import ConfigError, DatasetNotFoundError
from tokenloom.loading.digest import RangeDigest, Share, digest_of_positions, name_of_run
from tokenloom.run.run import Run
from tokenloom.setting_types import Count, Number

_SHARE = "a rank's share of the positions (default: all)"


@dataclass(frozen=True, kw_only=True)
class Options(RunPath, BatchSizes):
    """Read a range of positions again and print its digest: a sum over positions and tokens, the same for any ranks,
    micro-batches and threads, as `check_reading` gives it at a checkpoint. With --expect the exit status is 0 if it is
    that one, and 1 if it is not.

    Attributes:
        from_position: the first position (default: that of --expect, else 0).
        from_step: the same as a step from 0 on.
        to_position: the position behind the last (default: that of --expect, else the end).
        to_step: the same as a step from 0 on.
        rank: data-parallel rank.
        data_parallel_size: data-parallel ranks in all.
        micro_batch_size: samples of a micro-batch.
        expect: what it should be.
        expect_file: a digest per line, one for each range to read, such as of each checkpoint.
        threads: threads that read.
        json: print one JSON object: digest, run, start, stop and num_samples, and with --expect also expected and
            matches.
    """

    EITHER: ClassVar[Either] = (("from_position", "from_step"), ("to_position", "to_step"), ("expect", "expect_file"))

    from_position: Number | None = None
    from_step: Number | None = None
    to_position: Number | None = None
    to_step: Number | None = None
    rank: Annotated[Number | None, Written(metavar="R", group=_SHARE)] = None
    data_parallel_size: Annotated[Count | None, Written(metavar="D", group=_SHARE)] = None
    micro_batch_size: Annotated[Count | None, Written(metavar="B", group=_SHARE)] = None
    expect: Annotated[str | None, Written(metavar="DIGEST")] = None
    expect_file: Annotated[str | None, Written(metavar="FILE")] = None
    threads: Count = 1
    json: bool = False

    @property
    def share(self) -> Share | None:
        """The share of a rank; None if all is read.

        Raises:
            UsageError: it is told by half, or there is no such rank.
        """
        rank, size, micro_batch_size = self.rank, self.data_parallel_size, self.micro_batch_size
        if rank is None and size is None and micro_batch_size is None:
            return None
        if rank is None or size is None or micro_batch_size is None:
            message = "--rank, --data-parallel-size and --micro-batch-size go together"
            raise UsageError(message)
        if rank >= size:
            message = f"--rank has to be below --data-parallel-size, {size}"
            raise UsageError(message)
        return Share(rank=rank, size=size, micro_batch_size=micro_batch_size)


def run(options: Options) -> int:
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
        positions: Sequence[int] = range(asked.start, asked.stop)
        if asked.share is not None:
            positions = list(itertools.chain.from_iterable(asked.share.positions(asked.start, asked.stop)))
        digest = digest_of_positions(dataset, positions, num_threads=options.threads)
        found = RangeDigest(run=name, start=asked.start, stop=asked.stop, share=asked.share, digest=digest)
        _print(options, found, expected)
        if expected is not None and expected != digest.hexdigest():
            return 1
    return 0


def _print(options: Options, found: RangeDigest, expected: str | None) -> None:
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


def _wanted(options: Options, opened: Run, name: str) -> tuple[list[RangeDigest], list[str | None]]:
    """Returns the ranges to read, and the sums expected of them, as 32 hex digits."""
    start = options.position_of(options.from_position, options.from_step, opened.lock)
    stop = options.position_of(options.to_position, options.to_step, opened.lock)
    share = options.share
    if options.expect_file is not None:
        given = [_parsed(text, name) for text in _lines(options.expect_file)]
        if (start, stop, share) != (None, None, None):
            message = "--expect-file says itself which positions to read"
            raise UsageError(message)
        return given, [each.digest.hexdigest() for each in given]
    if options.expect is None or re.fullmatch("[0-9a-f]{32}", options.expect):
        start = 0 if start is None else start
        stop = opened.num_samples if stop is None else stop
        if stop is None:
            message = "a run without an end needs --to-position or --to-step"
            raise UsageError(message)
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
