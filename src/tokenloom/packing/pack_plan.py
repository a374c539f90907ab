"""`PackPlan`: the sub-samples of a global batch that each rank works on in each microbatch."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import ConfigError
from tokenloom.rendering.card import HasFacts

Int64s = NDArray[np.int64]

_UINT16_MAX = np.iinfo(np.uint16).max


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PackPlan(HasFacts):
    """A plan of the sub-samples that each rank works on in each microbatch of a global batch.

    A *pack* is the concatenated sub-samples of one context-parallel group in one microbatch. Groups are aligned blocks
    of ranks: rank r in a group of size s shares its pack with ranks [r // s * s, r // s * s + s).

    Attributes:
        num_ranks: number of dp × cp ranks; rank = dp_rank * cp_size + cp_rank.
        ids: int64[num_subsamples], ids of the sub-samples, pack by pack.
        pack_offsets: int64[num_packs + 1], boundaries of the packs in `ids`.
        packs: int64[num_microbatches, num_ranks], index of each rank's pack among all packs.
        cp_sizes: int64[num_microbatches, num_ranks], number of ranks that share the pack of each rank.
    """

    num_ranks: int
    ids: Int64s
    pack_offsets: Int64s
    packs: Int64s
    cp_sizes: Int64s

    @property
    def num_microbatches(self) -> int:
        """Number of microbatches, the same on all ranks."""
        return len(self.packs)

    @property
    def num_packs(self) -> int:
        """Number of packs in all microbatches."""
        return len(self.pack_offsets) - 1

    @property
    def assignments(self) -> tuple[tuple[tuple[int, ...], ...], ...]:
        """Sub-sample ids as `[microbatch][rank][i]`, computed at each access; ranks of a group have equal tuples."""
        ids = self.ids.tolist()
        packs = [tuple(ids[start:stop]) for start, stop in itertools.pairwise(self.pack_offsets.tolist())]
        return tuple(tuple(packs[number] for number in row) for row in self.packs.tolist())

    def ids_of(self, microbatch: int, rank: int) -> Int64s:
        """Returns the ids of a rank's sub-samples in a microbatch, in the order of the pack, as a view of `ids`."""
        pack = int(self.packs[microbatch, rank])
        return self.ids[self.pack_offsets[pack] : self.pack_offsets[pack + 1]]

    def ids_of_rank(self, rank: int) -> list[Int64s]:
        """Returns the ids of a rank's sub-samples: for each microbatch, a view of `ids`."""
        return [self.ids_of(microbatch, rank) for microbatch in range(self.num_microbatches)]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PackPlan):
            return NotImplemented
        return self.num_ranks == other.num_ranks and all(
            np.array_equal(getattr(self, name), getattr(other, name))
            for name in ("ids", "pack_offsets", "packs", "cp_sizes")
        )

    __hash__: ClassVar[None] = None  # type: ignore[assignment]  # arrays can change

    def facts(self) -> dict[str, Any]:
        return {
            "sub-samples": len(self.ids),
            "packs": self.num_packs,
            "ranks": self.num_ranks,
            "microbatches": self.num_microbatches,
            "ranks that share a pack": ", ".join(map(str, np.unique(self.cp_sizes).tolist())),
        }


def padded_lengths(lengths: Int64s, *, cp_size: Int64s | int, per_rank: int = 1) -> Int64s:
    """Rounds lengths up to multiples of 2 × cp_size × per_rank, or of `per_rank` if cp_size is 1."""
    multiples = np.where(np.asarray(cp_size) > 1, 2 * np.asarray(cp_size), 1) * per_rank
    padded: Int64s = -(-lengths // multiples) * multiples
    return padded


def uniform_plan(pack_of: Int64s, *, num_microbatches: int, cp_size: int, dp_size: int) -> PackPlan:
    """Makes a plan for groups of one size: in microbatch m, context-parallel group d gets pack m × dp_size + d."""
    numbers = np.arange(num_microbatches * dp_size, dtype=np.int64).reshape(num_microbatches, dp_size)
    packs = numbers.repeat(cp_size, axis=1)
    return plan_of(pack_of, packs, np.full_like(packs, cp_size))


def plan_of(pack_of: Int64s, packs: Int64s, cp_sizes: Int64s) -> PackPlan:
    """Returns the plan that puts sub-sample i into pack `pack_of[i]`; ids are ascending within a pack."""
    num_packs = int(packs.max()) + 1
    counts = np.bincount(pack_of, minlength=num_packs)
    return PackPlan(
        num_ranks=packs.shape[1],
        ids=stable_order(pack_of),
        pack_offsets=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        packs=packs,
        cp_sizes=cp_sizes,
    )


def plan_from_groups(groups: Any, *, num_subsamples: int, num_ranks: int, cp_size: int | None) -> PackPlan:
    """Returns the `PackPlan` of the ids `groups[microbatch][rank][i]` from a user's scheduler, after validation.

    Adjacent ranks with equal lists share a pack: `cp_size` ranks per pack, or any number if `cp_size` is None.
    """
    ids: list[int] = []
    offsets = [0]
    packs = np.empty((len(groups), num_ranks), dtype=np.int64)
    cp_sizes = np.empty_like(packs)
    for microbatch, ranks in enumerate(groups):
        rows = [list(map(int, row)) for row in ranks]
        if len(rows) != num_ranks or not all(rows):
            found = f"{len(rows)} ranks" if len(rows) != num_ranks else f"none on rank {rows.index([])}"
            raise ConfigError(
                f"microbatch {microbatch} must have sub-samples for each of {num_ranks} ranks, got {found}"
            )
        first = 0
        while first < num_ranks:
            others = (rank for rank in range(first, num_ranks) if rows[rank] != rows[first])
            size = next(others, num_ranks) - first if cp_size is None else cp_size
            if first % size or any(row != rows[first] for row in rows[first : first + size]):
                at = first // size * size
                message = f"ranks {at}-{at + size - 1} must share a pack in microbatch {microbatch}, got "
                message += str(rows[at : at + size])
                raise ConfigError(message, hint="set `is_dynamic_cp = True` in a scheduler that chooses group sizes")
            packs[microbatch, first : first + size] = len(offsets) - 1
            cp_sizes[microbatch, first : first + size] = size
            ids += rows[first]
            offsets.append(len(ids))
            first += size
    if sorted(ids) != list(range(num_subsamples)):
        counts, valid = Counter(ids), range(num_subsamples)
        wrong = next(number for number in [*valid, *sorted(counts)] if counts[number] != (number in valid))
        raise ConfigError(
            f"sub-sample {wrong} of {num_subsamples}: must be in {int(wrong in valid)} packs, is in {counts[wrong]}"
        )
    return PackPlan(
        num_ranks=num_ranks,
        ids=np.array(ids, dtype=np.int64),
        pack_offsets=np.array(offsets, dtype=np.int64),
        packs=packs,
        cp_sizes=cp_sizes,
    )


def stable_order(values: Int64s) -> Int64s:
    """Returns the indices that sort non-negative values in ascending order; equal values keep their order."""
    # NumPy uses radix sort for 16-bit integers: 0.4 ms instead of 5 ms for 65,536 values.
    small = values.astype(np.uint16) if int(values.max()) <= _UINT16_MAX else values
    return np.argsort(small, kind="stable").astype(np.int64, copy=False)
