"""Checks, at every checkpoint, that all ranks have read the right batches.

Each loader stores the digest of every batch since the last check. Replicas of a data-parallel rank read the same
batches and compare digests. Another data-parallel rank rereads these batches. If digests differ, all ranks reread the
batches, and find the first wrong batch by bisection; the majority of ranks decides which digest is right.
"""

from __future__ import annotations

import copy
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tokenloom._native import DigestSums
from tokenloom.datasets.protocols import order_of
from tokenloom.distributed.meeting import Round, Rounds, current_meeting
from tokenloom.distributed.membership import Decision, Record
from tokenloom.distributed.ranks import name_ranks
from tokenloom.errors import ConfigError, DivergenceError
from tokenloom.loading.read_ahead import Batch
from tokenloom.loading.sample_digests import (
    RangeDigest,
    ReadingDigest,
    digest_batches,
    digests_of_batch,
    name_of_run,
    total_of,
)
from tokenloom.loading.samplers import DataParallelSampler
from tokenloom.loading.state import in_order, is_in_order

_SHOWN_POSITIONS = 8
_HINT = "check disk, memory and caches of these ranks, and resume from the previous checkpoint"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRange:
    """The batches of one rank in positions [start, stop), with their digests `sums`, uint64[num_batches, 2]."""

    sampler: Any
    start: int
    stop: int
    sums: NDArray[np.uint64]
    record: Record = field(default_factory=dict)

    def batches(self, rank: int) -> Iterator[Batch]:
        """Yields the positions of each batch that the data-parallel rank `rank` reads in this range."""
        sampler = copy.copy(self.sampler)
        sampler.data_parallel_rank = rank
        sampler.begin_at(self.start)
        return itertools.islice(iter(sampler), len(self.sums))

    def reread(self, dataset: Any, rank: int, num_threads: int) -> NDArray[np.uint64]:
        """Reads the batches of a data-parallel rank from the data; returns their digests, uint64[num_batches, 2]."""
        found = digest_batches(dataset, self.batches(rank), num_threads=num_threads)
        return found.sums().reshape(-1, 2)


class BatchDigests:
    """The digests of a loader's batches since the last check, and the total of all batches since the loader started."""

    def __init__(self, dataset: Any, sampler: Any, *, enabled: bool = True) -> None:
        self.dataset = dataset
        self.sampler = sampler
        self.enabled = enabled
        self.restore(None)

    def restore(self, digest: RangeDigest | None) -> None:
        """Clears all digests after a state was loaded; `digest` is the digest of all ranks in the state, or None."""
        self._restored = digest
        self.start_after(0)

    def start_after(self, num_batches: int) -> None:
        """Clears the digests of batches; the next batch is batch `num_batches` of the sampler, counted from 0."""
        self.before: RangeDigest | None = self._restored
        """Digest of all ranks up to the last check; before any check, that in the loaded state; None if unknown."""
        self._num_checked = num_batches
        self._checked = ReadingDigest()
        self._has_tokens = True
        self._sums = DigestSums()

    def add(self, positions: Batch, digests: NDArray[np.uint64] | None) -> None:
        """Adds the next batch; `digests`, uint64[num_samples, 2], are the hashes of its tokens, None without tokens."""
        try:
            if digests is not None:
                self._sums.add(positions, digests)
                return
        except (TypeError, OverflowError):  # a user's dataset may have positions that are not integers
            pass
        self._has_tokens = False

    @property
    def total(self) -> ReadingDigest:
        """The digest of all batches of this rank since the loader started or resumed."""
        if not self.enabled:
            raise ConfigError("the loader has no digest", hint="create the loader with `digest=True`")
        if not self._has_tokens:
            message = f"batches of {type(self.dataset).__name__} have no digest: a digest needs integer `tokens` and "
            raise ConfigError(message + "64-bit positions", hint="add the samples to a `ReadingDigest` yourself")
        return self._checked + total_of(self._sums)

    def unchecked(self) -> BatchRange:
        """Returns the batches of this rank since the last check."""
        _ = self.total  # raises without digests
        sampler = in_order(self.sampler, self.dataset)
        if not isinstance(self.sampler, DataParallelSampler):
            message = f"{type(sampler).__name__} has no data-parallel rank"
            raise ConfigError(message, hint="derive the sampler from `MegatronPretrainingSampler`")
        start = sampler.position_after(self._num_checked)
        stop = sampler.position_after(self._num_checked + self._sums.num_batches)
        sums = self._sums.sums().reshape(-1, 2)
        record = {
            "rank": sampler.data_parallel_rank,
            "size": sampler.data_parallel_size,
            "start": start,
            "stop": stop,
            "batches": len(sums),
            "sum": _hex(sums),
            "samples": self._sums.num_samples,
            "run": self._run,
            "before": None if self.before is None else str(self.before),
        }
        return BatchRange(sampler=sampler, start=start, stop=stop, sums=sums, record=record)

    @property
    def _run(self) -> str:
        order = order_of(self.dataset)
        return "-" if order is None else name_of_run(order.order_state(0)["run"])

    def mark_checked(self, digest: RangeDigest) -> None:
        """Marks all batches as checked; `digest` is the digest of all ranks up to and including these batches."""
        self.before = digest
        self._num_checked += self._sums.num_batches
        self._checked += total_of(self._sums)
        self._sums = DigestSums()

    def global_digest(self) -> RangeDigest | None:
        """Returns the digest of all ranks, or None; several ranks know it only just after a check or a loaded state."""
        has_state = isinstance(self.sampler, DataParallelSampler) and is_in_order(self.sampler)
        if not self.enabled or not self._has_tokens or not has_state:
            return None
        if not self._sums.num_batches:
            return self.before
        unchecked = self.unchecked()
        start, stop = unchecked.start, unchecked.stop
        if self.sampler.data_parallel_size != 1 or self._sums.num_samples != stop - start:
            return None
        return _appended(self.before, RangeDigest(run=self._run, start=start, stop=stop, digest=total_of(self._sums)))


def _appended(before: RangeDigest | None, found: RangeDigest) -> RangeDigest:
    """Returns the digest of both ranges if the range of `found` starts where that of `before` stops, else `found`."""
    return found if before is None or before.stop != found.start else before + found


class DigestedBatches:
    """A wrapper that computes the digests for `check_reading`; wraps any loader, such as torch's DataLoader.

    Args:
        batches: the loader; yields one batch for each list of positions of the sampler, in the same order.
        dataset: the dataset of the loader.
        sampler: yields the positions of each batch; iterated together with the loader.
    """

    def __init__(self, batches: Iterable[Any], dataset: Any, sampler: Iterable[Batch]) -> None:
        self.batches = batches
        self.read: BatchDigests = BatchDigests(dataset, sampler)

    def __iter__(self) -> Iterator[Any]:
        self.read.start_after(0)
        for positions, batch in zip(self.read.sampler, self.batches, strict=False):
            self.read.add(positions, digests_of_batch(batch, len(positions)))
            yield batch


def check_reading(loader: Any, *, reread: Literal["now", "never"] = "now", num_threads: int = 1) -> RangeDigest | None:
    """Checks that all ranks of `torch.distributed` have read the right batches; to be called at every checkpoint.

    All ranks must call this function after the same number of samples; ranks without a loader pass None. Replicas of
    a data-parallel rank compare digests of the batches since the last check. With `reread="now"`, another data-parallel
    rank also rereads these batches from its own files; a single data-parallel rank rereads its own batches.

    Args:
        loader: a `ThreadLoader` or `DigestedBatches` whose sampler follows the order of positions; None on a rank
            that reads nothing.
        reread: "now" rereads all batches before `check_reading` returns; "never" only compares replicas.
        num_threads: number of threads that reread, per rank.

    Returns:
        The digest of all data-parallel ranks since the start of the run, or since the resumed state if that state has
        no digest; None if no rank has a loader. Later loader states contain the digest.

    Raises:
        DivergenceError: ranks are at different positions, or batches differ; the message names ranks and first batch.
        BuildError: a rank failed to read, or died.
        ConfigError: the loader has no digest, or its sampler does not follow the order of positions.
    """
    if reread not in ("now", "never"):
        raise ConfigError(f'`reread`: must be "now" or "never", got {reread!r}')
    read = getattr(loader, "read", None)
    if loader is not None and not isinstance(read, BatchDigests):
        message = f"{type(loader).__name__} has no digests of its batches"
        raise ConfigError(message, hint="pass `DigestedBatches(loader, dataset, sampler)`")
    unchecked: BatchRange | None = None

    def own_record() -> Record:
        nonlocal unchecked
        if read is None:
            return {}
        unchecked = read.unchecked()
        return unchecked.record

    def reread_record() -> Record:
        if read is None or unchecked is None:
            return {}
        if (target := answer.get("target")) is None:
            return unchecked.record
        found = unchecked.reread(read.dataset, target, num_threads)
        return {**unchecked.record, "target": target, "found": _hex(found)}

    answer = _meet("comparing batch digests", own_record, _compare)
    if "read" not in answer:
        return None
    if not answer["suspects"] and reread == "now":
        answer |= _meet("comparing digests of reread batches", reread_record, _compare_reread)
    if suspects := answer["suspects"][:8]:
        dataset = None if read is None else read.dataset
        found = [_find_difference(each, dataset, unchecked, answer["batches"], num_threads) for each in suspects]
        raise DivergenceError("; ".join(found), hint=_HINT)
    total = RangeDigest.parse(answer["read"])
    if read is not None:
        read.mark_checked(total)
    return total


def _compare(records: list[Record]) -> list[Record]:
    """Returns a dict for each rank; all dicts are empty if no rank has a loader.

    `batches` is the number of batches per rank, `read` the digest of all ranks, and `suspects` are the data-parallel
    ranks whose replicas differ. A rank whose dict has `target` must reread the batches of data-parallel rank `target`.
    """
    readers = {rank: record for rank, record in enumerate(records) if "rank" in record}
    if not readers:
        return [{} for _ in records]
    places: dict[tuple[Any, ...], list[int]] = {}
    for rank, record in readers.items():
        names = ("run", "start", "stop", "size", "batches", "before")
        places.setdefault(tuple(record[name] for name in names), []).append(rank)
    if len(places) > 1:
        shown = (
            f"positions {start}-{stop} of run {run} with {size} data-parallel ranks"
            f"{f' after digest {before}' if before else ''} on {name_ranks(ranks)}"
            for (run, start, stop, size, _, before), ranks in places.items()
        )
        message = f"ranks read different ranges since the last check: {', '.join(itertools.islice(shown, 8))}"
        raise DivergenceError(message, hint="call `check_reading` on all ranks after the same number of steps")
    [(run, start, stop, size, num_batches, before)] = places
    holders: dict[int, list[int]] = {}
    for rank, record in readers.items():
        holders.setdefault(record["rank"], []).append(rank)
    if missing := sorted(set(range(size)) - set(holders)):
        message = f"no loader for data-parallel {name_ranks(missing)} of {size}"
        raise DivergenceError(message, hint="pass the loader to `check_reading` on all ranks that have one")
    suspects = [number for number, ranks in holders.items() if len({readers[rank]["sum"] for rank in ranks}) > 1]
    first = [readers[ranks[0]] for ranks in holders.values()]
    total = sum((ReadingDigest.from_hex(one["sum"], num_samples=one["samples"]) for one in first), ReadingDigest())
    found = RangeDigest(run=run, start=start, stop=stop, digest=total)
    answer = {"batches": num_batches, "read": str(_appended(before and RangeDigest.parse(before), found))}
    answers: list[Record] = [{**answer, "suspects": sorted(suspects)} for _ in records]
    for number in range(size):
        others = [rank for rank in holders[(number - 1) % size] if rank != holders[number][0]]
        answers[others[0] if others else holders[number][0]]["target"] = number
    return answers


def _compare_reread(records: list[Record]) -> list[Record]:
    sums = {record["rank"]: record["sum"] for record in records if "rank" in record}
    reread = {record["target"]: record["found"] for record in records if "target" in record}
    suspects = sorted(number for number, found in reread.items() if sums[number] != found)
    return [{"suspects": suspects} for _ in records]


def _find_difference(suspect: int, dataset: Any, unchecked: BatchRange | None, count: int, num_threads: int) -> str:
    """On every rank, rereads the `count` batches of data-parallel rank `suspect`; describes the first difference."""
    reread: NDArray[np.uint64] | None = None
    start, middle, stop = 0, 0, count

    def half_record() -> Record:
        nonlocal reread
        if unchecked is None:
            return {}
        if reread is None:
            reread = unchecked.reread(dataset, suspect, num_threads)
        record: Record = {"reread": _hex(reread[start:middle])}
        if unchecked.sampler.data_parallel_rank == suspect:
            record["recorded"] = _hex(unchecked.sums[start:middle])
        if stop - start == 1:
            [batch] = itertools.islice(unchecked.batches(suspect), start, stop)
            record["positions"] = list(batch[:_SHOWN_POSITIONS])
        return record

    while True:
        middle = start + max(1, (stop - start) // 2)
        step = f"searching batches {start}-{stop} of data-parallel rank {suspect} for a difference"
        answer = _meet(step, half_record, partial(_compare_half, start if stop - start == 1 else None))
        if answer["description"] is not None:
            return f"data-parallel rank {suspect}: {answer['description']}"
        start, stop = (start, middle) if answer["differs"] else (middle, stop)


def _compare_half(batch: int | None, records: list[Record]) -> list[Record]:
    """Returns equal dicts, one per rank: whether the first halves differ, and a description if only `batch` is left."""
    digests = {record[name] for record in records for name in ("reread", "recorded") if name in record}
    description = None if batch is None else _describe_difference(batch, records)
    return [{"differs": len(digests) > 1, "description": description} for _ in records]


def _describe_difference(batch: int, records: list[Record]) -> str:
    """Returns a text about the ranks whose digest of batch `batch` differs from the digest of the majority."""
    reread = {rank: record["reread"] for rank, record in enumerate(records) if "reread" in record}
    recorded = {rank: record["recorded"] for rank, record in enumerate(records) if "recorded" in record}
    if len({*reread.values(), *recorded.values()}) == 1:
        return "batches differed in the comparison, but not when they were read again"
    positions = next(record["positions"] for record in records if "positions" in record)
    shown = ", ".join(map(str, positions)) + (", …" if len(positions) == _SHOWN_POSITIONS else "")
    where = f"at positions [{shown}], batch {batch} since the last check"
    (truth, votes), *others = Counter(reread.values()).most_common()
    if others and others[0][1] == votes:
        holders = {value: [rank for rank in reread if reread[rank] == value] for value in reread.values()}
        digests = ", ".join(f"{value[:16]}… on {name_ranks(ranks)}" for value, ranks in holders.items())
        return f"ranks have different data {where}: {digests}"
    parts = []
    if misread := [rank for rank, value in recorded.items() if value != truth]:
        parts.append(f"{name_ranks(misread)} read tokens that differ from the data {where}")
    if differing := [rank for rank, value in reread.items() if value != truth]:
        parts.append(f"the data of {name_ranks(differing)} differ from the data of other ranks {where}")
    found = next(value for value in (*recorded.values(), *reread.values()) if value != truth)
    return f"{', and '.join(parts)}: expected digest {truth}, found {found}"


def _hex(sums: NDArray[np.uint64]) -> str:
    low, high = sums.sum(axis=0, dtype=np.uint64).tolist()
    return ReadingDigest(low=low, high=high).hexdigest()


def _meet(step: str, work: Callable[[], Record], decide: Decision) -> Record:
    """Runs `work` on all ranks, passes the results to `decide`, and returns the answer of `decide` for this rank."""
    if (meeting := current_meeting()) is None:
        return decide([work()])[0]

    def rounds() -> Rounds[Record]:
        return (yield Round(step, work, decide))

    return meeting.take(rounds())
