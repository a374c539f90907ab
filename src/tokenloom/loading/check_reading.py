"""Whether ranks have read what the order says, compared at checkpoints.

Each loader keeps the digest of every batch that it has handed out since the last check. Ranks that have to read the
same compare theirs, and of each data-parallel rank another one reads everything again. Where something differs, all
ranks read that part again, halve it until one batch is left, and the majority says what stands there.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from threading import Thread
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tokenloom.distributed.meeting import Attempt, Decision, all_well, meeting_of
from tokenloom.distributed.membership import Record
from tokenloom.distributed.ranks import current_ranks, name_ranks
from tokenloom.errors import ConfigError, DivergenceError
from tokenloom.loading.batch_digest import RangeDigest, ReadingDigest
from tokenloom.loading.read_batches import HasReadBatches, ReadBatches, Rereading, Stretch, behind
from tokenloom.loading.replay import digests_of_batches

_MOST_PIECES = 64
_SHOWN_POSITIONS = 8
_HINT = "look for a bad disk, memory or cache on these ranks; go on from the checkpoint before this one"


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
    read = _read_of(loader)
    if reread != "never":
        _settle(read, num_threads)
    stretch, answer = _meet_claims(read)
    if answer.get("suspects"):
        _raise_for(answer["suspects"], read, stretch, answer["batches"], num_threads)
    if "read" not in answer:
        return None
    target = answer.get("target")
    if reread != "never" and read is not None and stretch is not None:
        work = partial(_reread, read, stretch, target, num_threads)
        read.rereading = Rereading(rank=target, stretch=stretch, sums=_begun(work))
    if reread == "now":
        _settle(read, num_threads)
    found = RangeDigest.parse(answer["read"])
    if read is not None:
        read.checked(found)
    return found


def _read_of(loader: Any) -> ReadBatches | None:
    if loader is None:
        return None
    if not isinstance(loader, HasReadBatches):
        message = f"expected a loader that keeps what it has read, found {type(loader).__name__}"
        raise ConfigError(message, hint="wrap it: DigestedBatches(loader, dataset, sampler)")
    return loader.read


# --- what ranks say they have read --------------------------------------------------------------------------------


def _meet_claims(read: ReadBatches | None) -> tuple[Stretch | None, Record]:
    """Has all ranks say what they have read since the last check; returns this rank's, and what follows from all."""
    stretches: list[Stretch] = []

    def claim() -> Record:
        if read is None:
            return {}
        stretch = read.stretch()
        stretches.append(stretch)
        before = None if read.before is None else str(read.before)
        return {**_claim(read, stretch), "samples": read.since_check.num_samples, "run": read.run, "before": before}

    answer = _meet("comparing what was read", claim, _compare)
    return stretches[0] if stretches else None, answer


def _claim(read: ReadBatches, stretch: Stretch) -> Record:
    sampler = read.sampler
    return {
        "rank": sampler.data_parallel_rank,
        "size": sampler.data_parallel_size,
        "start": stretch.start,
        "stop": stretch.stop,
        "batches": stretch.num_batches,
        "sum": _hex(stretch.sums),
    }


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
    for _, ranks in sorted(holders.items()):
        first = readers[ranks[0]]
        total.take(ReadingDigest.from_hex(first["sum"], num_samples=first["samples"]))
    found = RangeDigest(run=run, start=start, stop=stop, digest=total)
    answer = {"batches": num_batches, "read": str(behind(before and RangeDigest.parse(before), found))}
    answers: list[Record] = [{**answer, "suspects": sorted(suspects)} for _ in records]
    for number in range(size):
        others = [rank for rank in holders[(number - 1) % size] if rank != holders[number][0]]
        answers[others[0] if others else holders[number][0]]["target"] = number
    return answers


# --- reading again ------------------------------------------------------------------------------------------------


def _reread(read: ReadBatches, stretch: Stretch, target: int | None, num_threads: int) -> NDArray[np.uint64]:
    if target is None:
        return np.empty((0, 2), dtype=np.uint64)
    return digests_of_batches(read.dataset, stretch.batches(target), num_threads=num_threads)


def _begun(work: Callable[[], NDArray[np.uint64]]) -> Future[NDArray[np.uint64]]:
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
        if read is None or rereading is None:
            return {}
        found = rereading.sums.result()
        record = _claim(read, rereading.stretch)
        return record if rereading.rank is None else {**record, "target": rereading.rank, "found": _hex(_sum(found))}

    answer = _meet("comparing what was read again", result, _compare_again)
    if answer.get("suspects"):
        stretch = None if rereading is None else rereading.stretch
        _raise_for(answer["suspects"], read, stretch, answer["batches"], num_threads)
    if read is not None:
        read.rereading = None


def _compare_again(records: list[Record]) -> list[Record]:
    claimed = {record["rank"]: record for record in records if "rank" in record}
    again = {record["target"]: record["found"] for record in records if "target" in record}
    suspects = sorted(number for number, found in again.items() if claimed[number]["sum"] != found)
    batches = max((record["batches"] for record in claimed.values()), default=0)
    return [{"suspects": suspects, "batches": batches} for _ in records]


# --- naming the rank ----------------------------------------------------------------------------------------------


def _raise_for(
    suspects: list[int], read: ReadBatches | None, stretch: Stretch | None, num_batches: int, num_threads: int
) -> None:
    """Raises, on all ranks, what was read wrong of the parts of data-parallel ranks, and by which ranks."""
    told = [_find(suspect, read, stretch, num_batches, num_threads) for suspect in suspects[:8]]
    raise DivergenceError("; ".join(told), hint=_HINT)


def _find(suspect: int, read: ReadBatches | None, stretch: Stretch | None, num_batches: int, num_threads: int) -> str:
    """Has every rank read the part of a data-parallel rank again; returns what is wrong with its first wrong batch."""
    again: list[NDArray[np.uint64]] = []
    claimed = None
    if read is not None and stretch is not None and read.sampler.data_parallel_rank == suspect:
        claimed = stretch.sums

    def pieces(start: int, stop: int) -> Record:
        if read is None or stretch is None:
            return {}
        if not again:
            again.append(_reread(read, stretch, suspect, num_threads))
        bounds = _bounds(start, stop)
        record: Record = {"again": _hex_of_pieces(again[0], bounds)}
        if claimed is not None:
            record["claimed"] = _hex_of_pieces(claimed, bounds)
        if stop - start == 1:
            [batch] = itertools.islice(stretch.batches(suspect), start, stop)
            record["positions"] = list(batch[:_SHOWN_POSITIONS])
        return record

    start, stop = 0, num_batches
    while True:
        step = f"finding batch {start}-{stop} of data-parallel rank {suspect} that differs"
        answer = _meet(step, partial(pieces, start, stop), partial(_first_difference, start, stop))
        if "told" in answer:
            told: str = answer["told"]
            return f"data-parallel rank {suspect}: {told}"
        start, stop = answer["range"]


def _first_difference(start: int, stop: int, records: list[Record]) -> list[Record]:
    """Returns the first piece in which ranks say different things, or what is to be said of a single batch."""
    bounds = _bounds(start, stop)
    said = [each for record in records for each in (record.get("again"), record.get("claimed")) if each is not None]
    wrong = next((k for k in range(len(bounds) - 1) if len({each[k] for each in said}) > 1), None)
    if wrong is None:
        told = f"what was read of batches {start}-{stop} since the last check differed, and does not any more"
        return [{"told": told} for _ in records]
    piece = [bounds[wrong], bounds[wrong + 1]]
    if stop - start > 1:
        return [{"range": piece} for _ in records]
    return [{"told": _told(start, records)} for _ in records]


def _told(batch: int, records: list[Record]) -> str:
    """Returns who has handed out something else than what most read in a batch, in words."""
    again = {rank: record["again"][0] for rank, record in enumerate(records) if "again" in record}
    claimed = {rank: record["claimed"][0] for rank, record in enumerate(records) if "claimed" in record}
    positions = next(record["positions"] for record in records if "positions" in record)
    shown = ", ".join(map(str, positions))
    where = (
        f"at positions [{shown}{', …' if len(positions) == _SHOWN_POSITIONS else ''}], batch {batch} since the last "
    )
    where += "check"
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
    return ", and ".join(told) + f": expected digest {truth}, found {_found(claimed, again, truth)}"


def _found(claimed: dict[int, str], again: dict[int, str], truth: str) -> str:
    return next(value for value in (*claimed.values(), *again.values()) if value != truth)


# --- numbers and meetings -----------------------------------------------------------------------------------------


def _bounds(start: int, stop: int) -> list[int]:
    """Returns a range cut into at most 64 pieces, as bounds."""
    count = min(_MOST_PIECES, stop - start)
    return [start + (stop - start) * k // count for k in range(count + 1)] if count else [start, stop]


def _sum(sums: NDArray[np.uint64]) -> NDArray[np.uint64]:
    total: NDArray[np.uint64] = sums.sum(axis=0, dtype=np.uint64, keepdims=True)
    return total


def _hex(sums: NDArray[np.uint64]) -> str:
    low, high = _sum(sums)[0].tolist()
    return ReadingDigest(low=low, high=high).hexdigest()


def _hex_of_pieces(sums: NDArray[np.uint64], bounds: list[int]) -> list[str]:
    return [_hex(sums[start:stop]) for start, stop in itertools.pairwise(bounds)]


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
