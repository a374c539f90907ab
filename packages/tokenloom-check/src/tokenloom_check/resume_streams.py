"""Two readings of one window: what was repeated, left out, or came in another order.

A reading is a list of global batches, each a list of samples by rank. Samples are compared as multisets, since data may
hold a sample twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from tokenloom_check.fingerprints import Sample

GlobalBatch: TypeAlias = Sequence[Sequence[Sample]]
"""The samples of one batch of every rank, by rank."""

ORDERS = ("strict", "batch", "any")
"""What order must be kept: sample by sample, rank after rank; that of global batches; none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstDifference:
    """Where a resumed reading is first another one.

    Attributes:
        kind: "repeated", "missing", "unknown" or "reordered".
        batch: number of the global batch, from 0: in the resumed reading, batches before the kill counted; of what is
            missing, in the unbroken one.
        rank: the rank there.
        expected_batch: the batch of the unbroken reading that has the sample; None if it has none.
        sample: the sample.
    """

    kind: str
    batch: int
    rank: int
    expected_batch: int | None
    sample: Sample

    def as_json(self) -> dict[str, Any]:
        """Returns plain values."""
        return {
            "kind": self.kind, "batch": self.batch, "rank": self.rank, "expected_batch": self.expected_batch,
            "fingerprint": self.sample.fingerprint, "sample": self.sample.words,
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Differences:
    """How a resumed reading of a window differs from the unbroken one, in samples.

    Attributes:
        num_samples: samples of the window.
        repeated: given more often than by the unbroken reading.
        missing: not given, or less often.
        unknown: given, and not in the unbroken reading, nor after the window.
        reordered: given in another place than the order allows, what is repeated or missing aside.
        first: the first difference of the gravest kind; None if there is none.
    """

    num_samples: int
    repeated: int = 0
    missing: int = 0
    unknown: int = 0
    reordered: int = 0
    first: FirstDifference | None = None

    @property
    def any(self) -> bool:
        """Whether there are any."""
        return self.first is not None


@dataclass(frozen=True, slots=True)
class _Placed:
    """A sample of a reading, and where it stands."""

    sample: Sample
    batch: int
    rank: int


def num_samples_of(batches: Iterable[GlobalBatch]) -> int:
    """Returns the samples of all ranks."""
    return sum(len(rank) for batch in batches for rank in batch)


def count_samples(batches: Iterable[GlobalBatch]) -> Counter[str]:
    """Returns how often each fingerprint is there."""
    return Counter(sample.fingerprint for batch in batches for rank in batch for sample in rank)


def enough_batches(batches: Sequence[GlobalBatch], num_samples: int) -> Sequence[GlobalBatch]:
    """Returns the first batches that hold so many samples; all, if they do not."""
    total = 0
    for number, batch in enumerate(batches):
        if total >= num_samples:
            return batches[:number]
        total += num_samples_of([batch])
    return batches


def compare(
    expected: Sequence[GlobalBatch],
    found: Sequence[GlobalBatch],
    *,
    after: Sequence[GlobalBatch] = (),
    order: str = "batch",
    is_end: bool = False,
) -> Differences:
    """Compares readings of one window.

    Args:
        expected: the unbroken reading.
        found: the resumed one, with what it gave before the kill. Its last batch may reach beyond the window, as it
            does where global batches became larger.
        after: what the unbroken reading has after the window.
        order: one of `ORDERS`. With "batch", a sample may stand anywhere in its global batch; where sizes changed,
            in any that overlaps with that of the unbroken reading.
        is_end: whether the data ends with the window, so that whatever `found` has beyond it is a fault.
    """
    found = found if is_end else enough_batches(found, num_samples_of(expected))
    wanted, given = count_samples(expected), count_samples(found)
    missing, surplus = wanted - given, given - wanted
    beyond = count_samples(after)
    for one in list(surplus):  # what comes later anyway is no sample of its own: the gap before it is the fault
        if one not in wanted:
            surplus[one] -= min(surplus[one], beyond[one])
    surplus = +surplus
    repeated = sum(count for one, count in surplus.items() if one in wanted)
    unknown = surplus.total() - repeated
    common = wanted & given
    kept, rest = _split(expected, common)
    kept_found, more = _split(found, common)
    moved = _moved(kept, kept_found, order)
    first = None
    if repeated:
        first = _first("repeated", (place for place in more if place.sample.fingerprint in wanted), expected)
    elif missing:
        first = _first("missing", rest, expected)
    elif unknown:
        first = _first("unknown", (place for place in more if place.sample.fingerprint in surplus), expected)
    elif moved:
        first = _first("reordered", moved, expected)
    return Differences(
        num_samples=num_samples_of(expected),
        repeated=repeated,
        missing=missing.total(),
        unknown=unknown,
        reordered=len(moved),
        first=first,
    )


def batches_like(batch: GlobalBatch, batches: Sequence[GlobalBatch]) -> list[int]:
    """Returns the numbers of batches with which the samples of a batch may begin: they and the next hold all of it."""
    counts, size = count_samples([batch]), num_samples_of([batch])
    return [k for k in range(len(batches)) if counts <= count_samples(enough_batches(batches[k:], size))]


def _places(batches: Sequence[GlobalBatch]) -> Iterator[_Placed]:
    for number, batch in enumerate(batches):
        for rank, samples in enumerate(batch):
            yield from (_Placed(sample, number, rank) for sample in samples)


def _split(batches: Sequence[GlobalBatch], common: Counter[str]) -> tuple[list[_Placed], list[_Placed]]:
    """Returns the places of samples that both readings have, the first of equal ones, and those of the others."""
    left = Counter(common)
    kept: list[_Placed] = []
    others: list[_Placed] = []
    for place in _places(batches):
        one = place.sample.fingerprint
        (kept if left[one] > 0 else others).append(place)
        left[one] -= 1
    return kept, others


def _moved(expected: list[_Placed], found: list[_Placed], order: str) -> list[_Placed]:
    """Returns the samples of the second reading that stand elsewhere; both have the same samples."""
    if order == "any":
        return []
    if order == "strict":
        pairs = zip(expected, found, strict=True)
        return [there for here, there in pairs if here.sample.fingerprint != there.sample.fingerprint]
    ranges: dict[str, list[tuple[int, int]]] = {}
    for here, (start, stop) in zip(expected, _ranges(expected), strict=True):
        ranges.setdefault(here.sample.fingerprint, []).append((start, stop))
    moved = []
    for number, (there, (start, stop)) in enumerate(zip(found, _ranges(found), strict=True)):
        assert start <= number < stop
        other_start, other_stop = ranges[there.sample.fingerprint].pop(0)
        if start >= other_stop or other_start >= stop:
            moved.append(there)
    return moved


def _ranges(places: list[_Placed]) -> list[tuple[int, int]]:
    """Returns for each sample which samples its batch holds, counted over the reading."""
    sizes = Counter(place.batch for place in places)
    starts: dict[int, int] = {}
    total = 0
    for batch in sorted(sizes):
        starts[batch] = total
        total += sizes[batch]
    return [(starts[place.batch], starts[place.batch] + sizes[place.batch]) for place in places]


def _first(kind: str, places: Iterable[_Placed], expected: Sequence[GlobalBatch]) -> FirstDifference:
    place = next(iter(places))
    where = [other.batch for other in _places(expected) if other.sample.fingerprint == place.sample.fingerprint]
    return FirstDifference(
        kind=kind,
        batch=place.batch,
        rank=place.rank,
        expected_batch=where[0] if where else None,
        sample=place.sample,
    )
