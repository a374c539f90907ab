"""Whether ranks have read what the order says, compared at checkpoints.

Each loader keeps the digest of every batch that it has handed out since the last check. Ranks that have to read the
same compare theirs, and of each data-parallel rank another one reads everything again. Where something differs, all
ranks read that part again, halve it until one batch is left, and the majority says what stands there.
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
from tokenloom.loading.digest import (
    RangeDigest,
    ReadingDigest,
    digest_batches,
    digests_of_batch,
    name_of_run,
    total_of,
)
from tokenloom.loading.read_ahead import Batch
from tokenloom.loading.samplers import DataParallelSampler
from tokenloom.loading.state import in_order, is_in_order

_SHOWN_POSITIONS = 8
_HINT = "look for a bad disk, memory or cache on these ranks; go on from the checkpoint before this one"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Batches of a sampler that a rank has handed out one after the other, and what it reports of them.

    Positions of all ranks are [start, stop); sums are uint64[num_batches, 2], the halves of the digest of each batch.
    """

    sampler: Any
    start: int
    stop: int
    sums: NDArray[np.uint64]
    claim: Record = field(default_factory=dict)

    def batches(self, rank: int) -> Iterator[Batch]:
        """Yields the positions of these batches as a data-parallel rank is to read them."""
        sampler = copy.copy(self.sampler)
        sampler.data_parallel_rank = rank
        sampler.begin_at(self.start)
        return itertools.islice(iter(sampler), len(self.sums))

    def reread(self, dataset: Any, rank: int, num_threads: int) -> NDArray[np.uint64]:
        """Returns the digests of these batches as a data-parallel rank is to read them, from the data."""
        found = digest_batches(dataset, self.batches(rank), num_threads=num_threads)
        sums: NDArray[np.uint64] = found.sums().reshape(-1, 2)
        return sums


class ReadBatches:
    """The digest of every batch that a loader has handed out since the last check, 16 bytes each, and the sum of all.

    `keeps` says whether the loader tells of its batches at all.
    """

    def __init__(self, dataset: Any, sampler: Any, *, keeps: bool = True) -> None:
        self.dataset = dataset
        self.sampler = sampler
        self.keeps = keeps
        self.go_on(None)

    def go_on(self, read: RangeDigest | None) -> None:
        """Begins anew at a state, which says what all ranks had read, or None."""
        self._loaded = read
        self.begin(0)

    def begin(self, num_batches: int) -> None:
        """Begins anew, after so many batches of the sampler that are skipped."""
        self.before: RangeDigest | None = self._loaded
        """What all ranks together have read from the start of the run up to the last check; None for nothing."""
        self._num_checked = num_batches
        self._checked = ReadingDigest()
        self._has_tokens = True
        self._sums = DigestSums()

    def add(self, positions: Batch, digests: NDArray[np.uint64] | None) -> None:
        """Takes the next batch that was handed out, with uint64[num_samples, 2] of its tokens; None if it has none."""
        if digests is None:
            self._has_tokens = False
            return
        try:
            self._sums.add(positions, digests)
        except (TypeError, OverflowError):  # what a dataset of a user's own is asked by
            self._has_tokens = False

    @property
    def total(self) -> ReadingDigest:
        """The sum over all batches since the loader began, or went on from a state."""
        if not self.keeps:
            message = "expected a loader that keeps a digest, found one made without"
            raise ConfigError(message, hint="make it with `digest=True`")
        if not self._has_tokens:
            message = "expected batches with `tokens` [samples, tokens] at positions of 64 bits for a digest, found "
            message += f"others in those of {type(self.dataset).__name__}"
            raise ConfigError(message, hint="add what you read to a `ReadingDigest` yourself")
        return self._checked + total_of(self._sums)

    def stretch(self) -> Stretch:
        """Returns the batches since the last check."""
        _ = self.total
        sampler = in_order(self.sampler, self.dataset)
        if not isinstance(self.sampler, DataParallelSampler):
            message = f"expected a sampler that knows its data-parallel rank, found {type(sampler).__name__}"
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
        """What digests say of the run; `-` where the dataset is of none."""
        order = order_of(self.dataset)
        return "-" if order is None else name_of_run(order.order_state(0)["run"])

    def checked(self, found: RangeDigest) -> None:
        """Takes what all ranks together have read up to now; a check ends here."""
        self.before = found
        self._num_checked += self._sums.num_batches
        self._checked += total_of(self._sums)
        self._sums = DigestSums()

    def of_all_ranks(self) -> RangeDigest | None:
        """Returns what all ranks together have read since the start of the run; None where this rank cannot know.

        It knows at a check, and always where there is one data-parallel rank.
        """
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
    """Returns the digest of two ranges as one if they follow each other; else that of the second."""
    return found if before is None or before.stop != found.start else before + found


class DigestedBatches:
    """Keeps what any other loader hands out, such as torch's DataLoader, for `check_reading`.

    Args:
        batches: yields a batch for each list of positions of the sampler, in its order.
        dataset: what is read.
        sampler: yields the positions of one batch after the other; is iterated beside the loader.
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

    All ranks must call this after as many samples, those without a loader with None. Ranks of one data-parallel rank
    have to have read the same. With `reread`, what each data-parallel rank has read since the last check is read again
    by another one, by `num_threads`, from the data that this one sees; alone, by itself.

    Args:
        loader: a `ThreadLoader` or `DigestedBatches` over samples in order; None on a rank that reads nothing.
        reread: "now" waits for what is read again; "never" only compares ranks that read the same.
        num_threads: threads that read again.

    Returns:
        The digest of what all data-parallel ranks have read, from where the run, or what its state says, begins; None
        where no rank has read anything. From now on states have it.

    Raises:
        DivergenceError: ranks are not at the same position, or one has handed out something else; the message names it
            and the first batch, if all ranks can be asked.
        BuildError: a rank failed to read, or died.
        ConfigError: the loader keeps no digest, or a position does not say what it has read.
    """
    if reread not in ("now", "never"):
        message = f'expected "now" or "never" as reread, found {reread!r}'
        raise ConfigError(message)
    read = getattr(loader, "read", None)
    if loader is not None and not isinstance(read, ReadBatches):
        message = f"expected a loader that keeps what it has read, found {type(loader).__name__}"
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
    """Returns who reads what again, the sum, and the data-parallel ranks of which ranks say different things."""
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
        message = f"expected what {size} data-parallel ranks have read, found nothing of {name_ranks(missing)} of these"
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


# --- naming the rank ----------------------------------------------------------------------------------------------


def _find(suspect: int, dataset: Any, stretch: Stretch | None, num_batches: int, num_threads: int) -> str:
    """Has every rank read the part of a data-parallel rank again; returns what is wrong with its first wrong batch."""
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
    """Returns whether ranks say different things of the first half of the batches; of one batch in words."""
    said = {record[name] for record in records for name in ("again", "claimed") if name in record}
    told = None if batch is None else _told(batch, records)
    return [{"differs": len(said) > 1, "told": told} for _ in records]


def _told(batch: int, records: list[Record]) -> str:
    """Returns who has handed out something else than what most read in a batch, in words."""
    again = {rank: record["again"] for rank, record in enumerate(records) if "again" in record}
    claimed = {rank: record["claimed"] for rank, record in enumerate(records) if "claimed" in record}
    if len({*again.values(), *claimed.values()}) == 1:
        return "what was read since the last check differed, and does not any more"
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
    """Returns the sum of the digests of batches as hex digits."""
    low, high = sums.sum(axis=0, dtype=np.uint64).tolist()
    return ReadingDigest(low=low, high=high).hexdigest()


def _meet(step: str, work: Callable[[], Record], decide: Decision) -> Record:
    """Returns the answer to what this rank reports, of all ranks; alone, of this one."""
    if (meeting := current_meeting()) is None:
        return decide([work()])[0]

    def rounds() -> Rounds[Record]:
        return (yield Round(step, work, decide))

    return meeting.take(rounds())
