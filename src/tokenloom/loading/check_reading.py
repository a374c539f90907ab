"""Checks at checkpoints that ranks have read what the order says.

Each loader keeps the digest of every batch since the last check. Replicas compare theirs, and another rank reads each
data-parallel rank's part again. Where digests differ, all ranks reread that part and halve it until one batch is left;
the majority decides.
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
from tokenloom.loading.digest import RangeDigest, ReadingDigest, digest_batches, digests_of_batch, name_of_run, total_of
from tokenloom.loading.read_ahead import Batch
from tokenloom.loading.samplers import DataParallelSampler
from tokenloom.loading.state import in_order, is_in_order

_SHOWN_POSITIONS = 8
_HINT = "look for a bad disk, memory or cache on these ranks; go on from the checkpoint before this one"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Consecutive batches of a rank over positions [start, stop) of all ranks; sums: uint64[num_batches, 2]."""

    sampler: Any
    start: int
    stop: int
    sums: NDArray[np.uint64]
    claim: Record = field(default_factory=dict)

    def batches(self, rank: int) -> Iterator[Batch]:
        """Yields the positions of these batches for one data-parallel rank."""
        sampler = copy.copy(self.sampler)
        sampler.data_parallel_rank = rank
        sampler.begin_at(self.start)
        return itertools.islice(iter(sampler), len(self.sums))

    def reread(self, dataset: Any, rank: int, num_threads: int) -> NDArray[np.uint64]:
        """Returns the digests of these batches for one data-parallel rank, from the data."""
        found = digest_batches(dataset, self.batches(rank), num_threads=num_threads)
        return found.sums().reshape(-1, 2)


class ReadBatches:
    """The digest of each batch since the last check, and the sum of all; without `keeps`, neither."""

    def __init__(self, dataset: Any, sampler: Any, *, keeps: bool = True) -> None:
        self.dataset = dataset
        self.sampler = sampler
        self.keeps = keeps
        self.go_on(None)

    def go_on(self, read: RangeDigest | None) -> None:
        """Starts over from a state; `read` is the digest of all ranks in it."""
        self._loaded = read
        self.begin(0)

    def begin(self, num_batches: int) -> None:
        """Starts over after `num_batches` batches of the sampler."""
        self.before: RangeDigest | None = self._loaded
        """Digest of all ranks up to the last check; None for nothing."""
        self._num_checked = num_batches
        self._checked = ReadingDigest()
        self._has_tokens = True
        self._sums = DigestSums()

    def add(self, positions: Batch, digests: NDArray[np.uint64] | None) -> None:
        """Adds the next batch, with digests uint64[num_samples, 2] of its tokens; None if it has none."""
        try:
            if digests is not None:
                self._sums.add(positions, digests)
                return
        except (TypeError, OverflowError):  # positions of a user's own dataset
            pass
        self._has_tokens = False

    @property
    def total(self) -> ReadingDigest:
        """The sum over all batches since the loader began or resumed."""
        if not self.keeps:
            raise ConfigError("the loader keeps no digest", hint="make it with `digest=True`")
        if not self._has_tokens:
            name = type(self.dataset).__name__
            message = f"batches of {name} lack `tokens` [samples, tokens] at positions of 64 bits, which a digest needs"
            raise ConfigError(message, hint="add what you read to a `ReadingDigest` yourself")
        return self._checked + total_of(self._sums)

    def stretch(self) -> Stretch:
        """Returns the batches since the last check."""
        _ = self.total
        sampler = in_order(self.sampler, self.dataset)
        if not isinstance(self.sampler, DataParallelSampler):
            message = f"{type(sampler).__name__} has no data-parallel rank"
            raise ConfigError(message, hint="derive it from one of this package, such as `MegatronPretrainingSampler`")
        start = sampler.position_after(self._num_checked)
        stop = sampler.position_after(self._num_checked + self._sums.num_batches)
        sums = self._sums.sums().reshape(-1, 2)
        claim = {
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
        return Stretch(sampler=sampler, start=start, stop=stop, sums=sums, claim=claim)

    @property
    def _run(self) -> str:
        """Name of the run in digests; `-` without one."""
        order = order_of(self.dataset)
        return "-" if order is None else name_of_run(order.order_state(0)["run"])

    def checked(self, found: RangeDigest) -> None:
        """Ends a check, with the digest of all ranks."""
        self.before = found
        self._num_checked += self._sums.num_batches
        self._checked += total_of(self._sums)
        self._sums = DigestSums()

    def of_all_ranks(self) -> RangeDigest | None:
        """Returns the digest of all ranks; None if unknown: between checks of several data-parallel ranks."""
        is_known = isinstance(self.sampler, DataParallelSampler) and is_in_order(self.sampler)
        if not self.keeps or not self._has_tokens or not is_known:
            return None
        if not self._sums.num_batches:
            return self.before
        stretch = self.stretch()
        if self.sampler.data_parallel_size != 1 or self._sums.num_samples != stretch.stop - stretch.start:
            return None
        found = RangeDigest(run=self._run, start=stretch.start, stop=stretch.stop, digest=total_of(self._sums))
        return _behind(self.before, found)


def _behind(before: RangeDigest | None, found: RangeDigest) -> RangeDigest:
    """Returns the sum of two ranges that follow each other; else the second."""
    return found if before is None or before.stop != found.start else before + found


class DigestedBatches:
    """Wraps any other loader, such as torch's DataLoader, for `check_reading`.

    Args:
        batches: yields a batch for each list of positions of the sampler, in its order.
        dataset: the dataset of the loader.
        sampler: yields the positions of each batch; is iterated beside the loader.
    """

    def __init__(self, batches: Iterable[Any], dataset: Any, sampler: Iterable[Batch]) -> None:
        self.batches = batches
        self.read: ReadBatches = ReadBatches(dataset, sampler)

    def __iter__(self) -> Iterator[Any]:
        """Yields the batches."""
        self.read.begin(0)
        for positions, batch in zip(self.read.sampler, self.batches, strict=False):
            self.read.add(positions, digests_of_batch(batch, len(positions)))
            yield batch


def check_reading(loader: Any, *, reread: Literal["now", "never"] = "now", num_threads: int = 1) -> RangeDigest | None:
    """Raises on every rank of `torch.distributed` unless all have read what the order says; for every checkpoint.

    All ranks must call this after the same number of samples, those without a loader with None. Replicas of a
    data-parallel rank are compared. With `reread`, another data-parallel rank reads each one's part since the last
    check again, from its own data; a single rank rereads its own.

    Args:
        loader: a `ThreadLoader` or `DigestedBatches` over samples in order; None on a rank that reads nothing.
        reread: "now" waits for rereading; "never" only compares replicas.
        num_threads: threads that reread.

    Returns:
        The digest of all data-parallel ranks since the start of the run or of the sum in its state; None where no rank
        has read anything. States include it from now on.

    Raises:
        DivergenceError: ranks are at different positions, or batches differ; the message names rank and first batch.
        BuildError: a rank failed to read, or died.
        ConfigError: the loader keeps no digest, or its sampler is in no order of positions.
    """
    if reread not in ("now", "never"):
        raise ConfigError(f'`reread` must be "now" or "never", got {reread!r}')
    read = getattr(loader, "read", None)
    if loader is not None and not isinstance(read, ReadBatches):
        message = f"{type(loader).__name__} keeps no digest of its batches"
        raise ConfigError(message, hint="wrap it: DigestedBatches(loader, dataset, sampler)")
    stretch: Stretch | None = None

    def claim() -> Record:
        nonlocal stretch
        if read is None:
            return {}
        stretch = read.stretch()
        return stretch.claim

    def again() -> Record:
        if read is None or stretch is None:
            return {}
        if (target := answer.get("target")) is None:
            return stretch.claim
        found = stretch.reread(read.dataset, target, num_threads)
        return {**stretch.claim, "target": target, "found": _hex(found)}

    answer = _meet("comparing what was read", claim, _compare)
    if "read" not in answer:
        return None
    if not answer["suspects"] and reread == "now":
        answer |= _meet("comparing what was read again", again, _compare_again)
    if answer["suspects"]:
        dataset = None if read is None else read.dataset
        found = [_find(suspect, dataset, stretch, answer["batches"], num_threads) for suspect in answer["suspects"][:8]]
        raise DivergenceError("; ".join(found), hint=_HINT)
    total = RangeDigest.parse(answer["read"])
    if read is not None:
        read.checked(total)
    return total


def _compare(records: list[Record]) -> list[Record]:
    """Returns which rank rereads which, the sum, and the data-parallel ranks whose replicas differ."""
    readers = {rank: record for rank, record in enumerate(records) if "rank" in record}
    if not readers:
        return [{} for _ in records]
    places: dict[tuple[Any, ...], list[int]] = {}
    for rank, record in readers.items():
        names = ("run", "start", "stop", "size", "batches", "before")
        places.setdefault(tuple(record[name] for name in names), []).append(rank)
    if len(places) > 1:
        shown = (
            f"positions {start}-{stop} of run {run} as {size} data-parallel ranks"
            f"{f' after {before}' if before else ''} on {name_ranks(ranks)}"
            for (run, start, stop, size, _, before), ranks in places.items()
        )
        message = f"ranks have not read the same range since the last check: {', '.join(itertools.islice(shown, 8))}"
        raise DivergenceError(message, hint="call `check_reading` on all ranks after the same number of steps")
    [(run, start, stop, size, num_batches, before)] = places
    holders: dict[int, list[int]] = {}
    for rank, record in readers.items():
        holders.setdefault(record["rank"], []).append(rank)
    if missing := sorted(set(range(size)) - set(holders)):
        message = f"no loader of data-parallel {name_ranks(missing)} of {size}"
        raise DivergenceError(message, hint="give `check_reading` the loader on all ranks that have one")
    suspects = [number for number, ranks in holders.items() if len({readers[rank]["sum"] for rank in ranks}) > 1]
    total = ReadingDigest()
    for ranks in holders.values():
        first = readers[ranks[0]]
        total += ReadingDigest.from_hex(first["sum"], num_samples=first["samples"])
    found = RangeDigest(run=run, start=start, stop=stop, digest=total)
    answer = {"batches": num_batches, "read": str(_behind(before and RangeDigest.parse(before), found))}
    answers: list[Record] = [{**answer, "suspects": sorted(suspects)} for _ in records]
    for number in range(size):
        others = [rank for rank in holders[(number - 1) % size] if rank != holders[number][0]]
        answers[others[0] if others else holders[number][0]]["target"] = number
    return answers


def _compare_again(records: list[Record]) -> list[Record]:
    claimed = {record["rank"]: record for record in records if "rank" in record}
    again = {record["target"]: record["found"] for record in records if "target" in record}
    suspects = sorted(number for number, found in again.items() if claimed[number]["sum"] != found)
    return [{"suspects": suspects} for _ in records]


def _find(suspect: int, dataset: Any, stretch: Stretch | None, num_batches: int, num_threads: int) -> str:
    """Rereads the part of a data-parallel rank on every rank; describes its first wrong batch."""
    again: NDArray[np.uint64] | None = None
    start, middle, stop = 0, 0, num_batches

    def said() -> Record:
        nonlocal again
        if stretch is None:
            return {}
        if again is None:
            again = stretch.reread(dataset, suspect, num_threads)
        record: Record = {"again": _hex(again[start:middle])}
        if stretch.sampler.data_parallel_rank == suspect:
            record["claimed"] = _hex(stretch.sums[start:middle])
        if stop - start == 1:
            [batch] = itertools.islice(stretch.batches(suspect), start, stop)
            record["positions"] = list(batch[:_SHOWN_POSITIONS])
        return record

    while True:
        middle = start + max(1, (stop - start) // 2)
        step = f"finding batch {start}-{stop} of data-parallel rank {suspect} that differs"
        answer = _meet(step, said, partial(_compare_half, start if stop - start == 1 else None))
        if answer["told"] is not None:
            return f"data-parallel rank {suspect}: {answer['told']}"
        start, stop = (start, middle) if answer["differs"] else (middle, stop)


def _compare_half(batch: int | None, records: list[Record]) -> list[Record]:
    """Returns whether ranks differ in the first half of the batches; describes a single batch."""
    said = {record[name] for record in records for name in ("again", "claimed") if name in record}
    told = None if batch is None else _told(batch, records)
    return [{"differs": len(said) > 1, "told": told} for _ in records]


def _told(batch: int, records: list[Record]) -> str:
    """Describes which ranks differ from the majority in a batch."""
    again = {rank: record["again"] for rank, record in enumerate(records) if "again" in record}
    claimed = {rank: record["claimed"] for rank, record in enumerate(records) if "claimed" in record}
    if len({*again.values(), *claimed.values()}) == 1:
        return "batches since the last check differed, and do not any more"
    positions = next(record["positions"] for record in records if "positions" in record)
    shown = ", ".join(map(str, positions)) + (", …" if len(positions) == _SHOWN_POSITIONS else "")
    where = f"at positions [{shown}], batch {batch} since the last check"
    (truth, votes), *others = Counter(again.values()).most_common()
    if others and others[0][1] == votes:
        holders = {value: [rank for rank in again if again[rank] == value] for value in again.values()}
        differing = ", ".join(f"{value[:16]}… on {name_ranks(ranks)}" for value, ranks in holders.items())
        return f"ranks find different tokens in their data {where}: {differing}"
    told = []
    if liars := [rank for rank, value in claimed.items() if value != truth]:
        told.append(f"{name_ranks(liars)} read other tokens than the data hold {where}")
    if strayed := [rank for rank, value in again.items() if value != truth]:
        told.append(f"{name_ranks(strayed)} see other tokens in the data than other ranks do {where}")
    found = next(value for value in (*claimed.values(), *again.values()) if value != truth)
    return f"{', and '.join(told)}: expected digest {truth}, found {found}"


def _hex(sums: NDArray[np.uint64]) -> str:
    low, high = sums.sum(axis=0, dtype=np.uint64).tolist()
    return ReadingDigest(low=low, high=high).hexdigest()


def _meet(step: str, work: Callable[[], Record], decide: Decision) -> Record:
    """Returns the answer to this rank, decided over all ranks; without `torch.distributed`, over this one."""
    if (meeting := current_meeting()) is None:
        return decide([work()])[0]

    def rounds() -> Rounds[Record]:
        return (yield Round(step, work, decide))

    return meeting.take(rounds())
