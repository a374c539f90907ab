"""Reading positions again, to compare with what was read."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.datasets.protocols import Composed, KnowsLengths
from tokenloom.datasets.shortcuts import makes_batches, sample_of
from tokenloom.errors import ConfigError
from tokenloom.kernels import DigestSums
from tokenloom.loading.batch_digest import ReadingDigest, Share, digests_of_batch, total_of
from tokenloom.loading.read_ahead import announce_ahead
from tokenloom.numbers import checked_integer
from tokenloom.progress import task

Batch = Sequence[int | None]

_TOKENS_AT_ONCE = 1 << 19
_MOST_AT_ONCE = 256
_UNKNOWN_AT_ONCE = 16
_LOCATED_AT_ONCE = 1 << 14


def digest_of_positions(dataset: Any, positions: Sequence[int], *, num_threads: int = 1) -> ReadingDigest:
    """Returns the digest of what stands at positions, read from the data.

    Args:
        dataset: gives samples by position, as to a loader.
        positions: the positions, such as a range.
        num_threads: threads that read.

    Raises:
        ConfigError: samples have no tokens.
    """
    return total_of(_read(dataset, _cut(dataset, positions), num_threads, total=len(positions)))


def digests_of_batches(dataset: Any, batches: Iterable[Batch], *, num_threads: int = 1) -> NDArray[np.uint64]:
    """Returns the digest of each batch, uint64[num_batches, 2], lower half first, read from the data.

    Args:
        dataset: gives samples by position, as to a loader.
        batches: positions of the samples of each; None does not count.
        num_threads: threads that read.

    Raises:
        ConfigError: samples have no tokens.
    """
    found: NDArray[np.uint64] = _read(dataset, batches, num_threads).sums().reshape(-1, 2)
    return found


def positions_of_share(start: int, stop: int, share: Share) -> Iterator[range]:
    """Yields the micro-batches that a data-parallel rank reads of a range of positions."""
    chunk = share.micro_batch_size * share.size
    for first in range(start + share.rank * share.micro_batch_size, stop, chunk):
        yield range(first, min(first + share.micro_batch_size, stop))


def _read(dataset: Any, batches: Iterable[Batch], num_threads: int, *, total: int | None = None) -> DigestSums:
    """Returns the digests of batches, read by threads that are a few batches ahead."""
    num_threads = checked_integer("num_threads", num_threads, at_least=1)
    known = ([position for position in batch if position is not None] for batch in batches)
    upcoming: Iterator[Any] = iter(announce_ahead(dataset, known))
    executor = ThreadPoolExecutor(max_workers=num_threads, thread_name_prefix="tokenloom-replay")
    pending: deque[tuple[list[int], Future[NDArray[np.uint64]]]] = deque()
    sums = DigestSums()
    try:
        with task("replay", unit="samples", total=total) as advance:
            while True:
                for batch in itertools.islice(upcoming, 2 * num_threads - len(pending)):
                    positions = list(batch)
                    pending.append((positions, executor.submit(partial(_digests, dataset, positions))))
                if not pending:
                    return sums
                positions, digests = pending.popleft()
                sums.add(positions, digests.result())
                advance(len(positions))
    finally:
        executor.shutdown(cancel_futures=True)


def _digests(dataset: Any, positions: list[int]) -> NDArray[np.uint64]:
    """Returns digests of the tokens of samples, uint64[num_samples, 2], read from the finished batch."""
    if not positions:
        return np.empty((0, 2), dtype=np.uint64)
    batch = dataset.batch(positions) if makes_batches(dataset) else [sample_of(dataset, each) for each in positions]
    digests = digests_of_batch(batch, len(positions))
    if digests is None:
        message = f"expected samples with `tokens` for a digest, found none in those of {type(dataset).__name__}"
        raise ConfigError(message)
    return digests


def _cut(dataset: Any, positions: Sequence[int]) -> Iterator[Sequence[int]]:
    """Yields positions in batches of some 2**19 tokens, each of samples of one length as far as that is known."""
    for start in range(0, len(positions), _LOCATED_AT_ONCE):
        part = positions[start : start + _LOCATED_AT_ONCE]
        if not isinstance(dataset, KnowsLengths) or isinstance(dataset, Composed):  # a blend has one length
            yield from (part[at : at + _UNKNOWN_AT_ONCE] for at in range(0, len(part), _UNKNOWN_AT_ONCE))
            continue
        lengths = dataset.lengths(np.asarray(part, dtype=np.int64))
        bounds = [0, *(np.flatnonzero(np.diff(lengths)) + 1).tolist(), len(part)]
        for begin, end in itertools.pairwise(bounds):
            size = max(1, min(_MOST_AT_ONCE, _TOKENS_AT_ONCE // max(1, int(lengths[begin]))))
            yield from (part[at : min(at + size, end)] for at in range(begin, end, size))
