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
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from threading import Thread
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tokenloom.datasets.protocols import order_of
from tokenloom.distributed.meeting import Attempt, Decision, all_well, meeting_of
from tokenloom.distributed.membership import Record
from tokenloom.distributed.ranks import current_ranks, name_ranks
from tokenloom.errors import ConfigError, DivergenceError
from tokenloom.kernels import DigestSums
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
from tokenloom.loading.state import InOrder, in_order

_MOST_PIECES = 64
_SHOWN_POSITIONS = 8
_HINT = "look for a bad disk, memory or cache on these ranks; go on from the checkpoint before this one"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Batches that a rank has handed out one after the other, and what it says they were.

    Attributes:
        sampler: whose batches they are.
        start: first position of all ranks.
        stop: position behind the last one of all ranks.
        sums: uint64[num_batches, 2], (lower half, upper half) of the digest of each batch.
    """

    sampler: Any
    start: int
    stop: int
    sums: NDArray[np.uint64]

    def batches(self, rank: int) -> Iterator[Batch]:
        """Yields the positions of these batches as a data-parallel rank is to read them."""
        sampler = copy.copy(self.sampler)
        sampler.data_parallel_rank = rank
        sampler.begin_at(self.start)
        return itertools.islice(iter(sampler), len(self.sums))

    def reread(self, dataset: Any, rank: int | None, num_threads: int) -> NDArray[np.uint64]:
        """Returns the digests of these batches as a data-parallel rank is to read them, from the data; none of None."""
        batches = () if rank is None else self.batches(rank)
        found: NDArray[np.uint64] = digest_batches(dataset, batches, num_threads=num_threads).sums().reshape(-1, 2)
        return found

    @property
    def claim(self) -> Record:
        """What a rank reports of it."""
        return {
            "rank": self.sampler.data_parallel_rank,
            "size": self.sampler.data_parallel_size,
            "start": self.start,
            "stop": self.stop,
            "batches": len(self.sums),
            "sum": _hex(self.sums),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Rereading:
    """What is read again since the last check.

    Attributes:
        rank: the data-parallel rank whose batches this rank reads again; None if another rank does all.
        stretch: what this rank has read itself.
        sums: the digests that it finds, uint64[num_batches, 2].
    """

    rank: int | None
    stretch: Stretch
    sums: Future[NDArray[np.uint64]]


class ReadBatches:
    """The digest of every batch that a loader has handed out since the last check, and the sum since it began.

    16 bytes per batch since the last check.

    Args:
        dataset: what is read.
        sampler: yields the positions of the batches.
        keeps: whether the loader tells of its batches at all.
    """

    def __init__(self, dataset: Any, sampler: Any, *, keeps: bool = True) -> None:
        self.dataset = dataset
        self.sampler = sampler
        self.keeps = keeps
        self.rereading: Rereading | None = None
        """What is read again, where that was not compared yet."""
        self.go_on(None)

    def go_on(self, read: RangeDigest | None) -> None:
        """Begins anew at a state, which says what all ranks had read; None if it does not."""
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
        """Takes the next batch that was handed out.

        Args:
            positions: positions of its samples.
            digests: of the tokens of each, uint64[num_samples, 2]; None if they have no tokens.
        """
        if digests is None:
            self._has_tokens = False
            return
        try:
            self._sums.add(positions, digests)
        except (TypeError, OverflowError):  # what a dataset of a user's own is asked by
            self._has_tokens = False

    @property
    def total(self) -> ReadingDigest:
        """The sum over all batches since the loader began, or went on from a state.

        Raises:
            ConfigError: batches have no tokens.
        """
        if not self.keeps:
            message = "expected a loader that keeps a digest, found one made without"
            raise ConfigError(message, hint="make it with `digest=True`")
        if not self._has_tokens:
            message = (
                "expected batches with `tokens` [samples, tokens] at positions of 64 bits for a digest, found others "
                f"in those of {type(self.dataset).__name__}"
            )
            raise ConfigError(message, hint="add what you read to a `ReadingDigest` yourself")
        return self._checked + total_of(self._sums)

    def stretch(self) -> Stretch:
        """Returns the batches since the last check.

        Raises:
            ConfigError: a position does not say what the sampler has yielded, or batches have no tokens.
        """
        _ = self.total
        sampler = in_order(self.sampler, self.dataset)
        if not isinstance(sampler, DataParallelSampler):
            message = f"expected a sampler that knows its data-parallel rank, found {type(sampler).__name__}"
            raise ConfigError(message, hint="derive it from one of this package, such as `MegatronPretrainingSampler`")
        return Stretch(
            sampler=self.sampler,
            start=sampler.position_after(self._num_checked),
            stop=sampler.position_after(self._num_checked + self._sums.num_batches),
            sums=self._sums.sums().reshape(-1, 2),
        )

    def claim(self, stretch: Stretch) -> Record:
        """Returns what this rank reports at a check."""
        before = None if self.before is None else str(self.before)
        return {**stretch.claim, "samples": self._sums.num_samples, "run": self._run, "before": before}

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
        is_in_order = isinstance(self.sampler, DataParallelSampler) and isinstance(self.sampler, InOrder)
        if not self.keeps or not is_in_order or not self._has_tokens:
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
        sampler: yields the positions of one batch after the other; it is iterated beside the loader.
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


def check_reading(
    loader: Any, *, reread: Literal["now", "later", "never"] = "now", num_threads: int = 1
) -> RangeDigest | None:
    """Raises on every rank of `torch.distributed` unless all have read what the order says; for every checkpoint.

    All ranks must call this after as many samples, those without a loader with None. Ranks whose samplers have one
    data-parallel rank have to have read the same. With `reread`, what each data-parallel rank has read since the last
    check is read again by another one, from the data that this one sees; alone, by itself.

    Args:
        loader: a `ThreadLoader` or `DigestedBatches` over samples in order; None on a rank that reads nothing.
        reread: "now" waits for what is read again; "later" reads it in the background, and compares at the next check;
            "never" only compares ranks that read the same, and what was left for later stays so.
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
    if reread not in ("now", "later", "never"):
        message = f'expected "now", "later" or "never" as reread, found {reread!r}'
        raise ConfigError(message)
    read = getattr(loader, "read", None)
    if loader is not None and not isinstance(read, ReadBatches):
        message = f"expected a loader that keeps what it has read, found {type(loader).__name__}"
        raise ConfigError(message, hint="wrap it: DigestedBatches(loader, dataset, sampler)")
    if reread != "never":
        _settle(read, num_threads)
    stretch: Stretch | None = None

    def claim() -> Record:
        nonlocal stretch
        if read is None:
            return {}
        stretch = read.stretch()
        claimed: Record = read.claim(stretch)
        return claimed

    answer = _meet("comparing what was read", claim, _compare)
    if answer.get("suspects"):
        _raise_for(answer, read, stretch, num_threads)
    if "read" not in answer:
        return None
    found = RangeDigest.parse(answer["read"])
    if read is not None and stretch is not None and reread != "never":
        target = answer.get("target")
        work = partial(stretch.reread, read.dataset, target, num_threads)
        read.rereading = Rereading(rank=target, stretch=stretch, sums=_begin(work))
    if reread == "now":
        _settle(read, num_threads)
    if read is not None:
        read.checked(found)
    return found


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


def _begin(work: Callable[[], NDArray[np.uint64]]) -> Future[NDArray[np.uint64]]:
    """Returns the result that a thread is working on; a daemon, so that nobody waits for it in the end."""
    found: Future[NDArray[np.uint64]] = Future()

    def run() -> None:
        try:
            found.set_result(work())
        except Exception as error:  # noqa: BLE001  it is raised where the result is asked for
            found.set_exception(error)

    Thread(target=run, name="tokenloom-reread", daemon=True).start()
    return found


def _settle(read: ReadBatches | None, num_threads: int) -> None:
    """Compares what was read again with what was said of it, if something was."""
    rereading = None if read is None else read.rereading

    def result() -> Record:
        if rereading is None:
            return {}
        found, claim = rereading.sums.result(), rereading.stretch.claim
        return claim if rereading.rank is None else {**claim, "target": rereading.rank, "found": _hex(found)}

    answer = _meet("comparing what was read again", result, _compare_again)
    if answer["suspects"]:
        _raise_for(answer, read, None if rereading is None else rereading.stretch, num_threads)
    if read is not None:
        read.rereading = None


def _compare_again(records: list[Record]) -> list[Record]:
    claimed = {record["rank"]: record for record in records if "rank" in record}
    again = {record["target"]: record["found"] for record in records if "target" in record}
    suspects = sorted(number for number, found in again.items() if claimed[number]["sum"] != found)
    batches = max((record["batches"] for record in claimed.values()), default=0)
    return [{"suspects": suspects, "batches": batches} for _ in records]


# --- naming the rank ----------------------------------------------------------------------------------------------


def _raise_for(answer: Record, read: ReadBatches | None, stretch: Stretch | None, num_threads: int) -> None:
    """Raises, on all ranks, what was read wrong of the parts of data-parallel ranks, and by which ranks."""
    dataset = None if read is None else read.dataset
    found = [_find(suspect, dataset, stretch, answer["batches"], num_threads) for suspect in answer["suspects"][:8]]
    raise DivergenceError("; ".join(found), hint=_HINT)


def _find(suspect: int, dataset: Any, stretch: Stretch | None, num_batches: int, num_threads: int) -> str:
    """Has every rank read the part of a data-parallel rank again; returns what is wrong with its first wrong batch."""
    again: NDArray[np.uint64] | None = None
    start, stop = 0, num_batches

    def pieces() -> Record:
        nonlocal again
        if stretch is None:
            return {}
        if again is None:
            again = stretch.reread(dataset, suspect, num_threads)
        bounds = _bounds(start, stop)
        record: Record = {"again": [_hex(again[first:last]) for first, last in itertools.pairwise(bounds)]}
        if stretch.sampler.data_parallel_rank == suspect:
            record["claimed"] = [_hex(stretch.sums[first:last]) for first, last in itertools.pairwise(bounds)]
        if stop - start == 1:
            [batch] = itertools.islice(stretch.batches(suspect), start, stop)
            record["positions"] = list(batch[:_SHOWN_POSITIONS])
        return record

    while True:
        step = f"finding batch {start}-{stop} of data-parallel rank {suspect} that differs"
        answer = _meet(step, pieces, partial(_first_difference, start, stop))
        if "told" in answer:
            return f"data-parallel rank {suspect}: {answer['told']}"
        start, stop = answer["range"]


def _first_difference(start: int, stop: int, records: list[Record]) -> list[Record]:
    """Returns the first piece in which ranks say different things, or what is to be said of a single batch."""
    said = [record[name] for record in records for name in ("again", "claimed") if name in record]
    differing = (
        piece
        for number, piece in enumerate(itertools.pairwise(_bounds(start, stop)))
        if len({each[number] for each in said}) > 1
    )
    if (piece := next(differing, None)) is None:
        told = f"what was read of batches {start}-{stop} since the last check differed, and does not any more"
        return [{"told": told} for _ in records]
    answer: Record = {"range": list(piece)} if stop - start > 1 else {"told": _told(start, records)}
    return [answer for _ in records]


def _told(batch: int, records: list[Record]) -> str:
    """Returns who has handed out something else than what most read in a batch, in words."""
    again = {rank: record["again"][0] for rank, record in enumerate(records) if "again" in record}
    claimed = {rank: record["claimed"][0] for rank, record in enumerate(records) if "claimed" in record}
    positions = next(record["positions"] for record in records if "positions" in record)
    shown = ", ".join(map(str, positions)) + (", …" if len(positions) == _SHOWN_POSITIONS else "")
    where = f"at positions [{shown}], batch {batch} since the last check"
    (truth, votes), *others = Counter(again.values()).most_common()
    if others and others[0][1] == votes:
        differing = ", ".join(
            f"{value[:16]}… on {name_ranks([rank for rank in again if again[rank] == value])}"
            for value in dict.fromkeys(again.values())
        )
        return f"ranks find different tokens in their data {where}: {differing}"
    told = []
    if liars := [rank for rank, value in claimed.items() if value != truth]:
        told.append(f"{name_ranks(liars)} read other tokens than the data hold {where}")
    if strayed := [rank for rank, value in again.items() if value != truth]:
        told.append(f"{name_ranks(strayed)} see other tokens in the data than other ranks do {where}")
    found = next(value for value in (*claimed.values(), *again.values()) if value != truth)
    return f"{', and '.join(told)}: expected digest {truth}, found {found}"


def _bounds(start: int, stop: int) -> list[int]:
    """Returns a range cut into at most 64 pieces, as bounds."""
    count = max(1, min(_MOST_PIECES, stop - start))
    return [start + (stop - start) * k // count for k in range(count + 1)]


def _hex(sums: NDArray[np.uint64]) -> str:
    """Returns the sum of the digests of batches as hex digits."""
    low, high = sums.sum(axis=0, dtype=np.uint64).tolist()
    return ReadingDigest(low=low, high=high).hexdigest()


def _meet(step: str, work: Callable[[], Record], decide: Decision) -> Record:
    """Returns the answer to what this rank reports, of all ranks; alone, of this one."""
    ranks = current_ranks()
    if ranks is None or ranks.world_size == 1:
        return decide([work()])[0]

    def decide_if_well(records: list[Record]) -> list[Record]:
        all_well(step)(records)
        return decide(records)

    meeting = meeting_of(ranks)
    with meeting.attended(step):
        attempt = Attempt(work)
        return meeting.report(step, attempt.result or {}, decide_if_well, attempt)
