"""The pipeline of one global batch, from the data iterators of all ranks to their packs.

Ranks fetch items, gather lengths, plan, exchange sub-samples, pack, and send metadata to ranks without data. If a rank
fails or dies, all ranks raise an error with the cause. All sums are integers; metadata is sent as 64-bit integers.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tokenloom.distributed.building import do_together
from tokenloom.distributed.meeting import Attempt, ConsequenceError
from tokenloom.errors import ConfigError, InputError
from tokenloom.optional import require
from tokenloom.packing.batch import (
    Pack,
    SubSample,
    build_packed_microbatches,
    decode_metadata,
    encode_metadata,
    from_bytes,
    metadata_of,
    num_bytes,
    pack_metadata,
    refuse_iterator,
    take_apart,
    to_bytes,
)
from tokenloom.packing.config import PackingConfig
from tokenloom.packing.groups import Channel, Place
from tokenloom.packing.pack_plan import Int64s, PackPlan, padded_lengths

if TYPE_CHECKING:
    from tokenloom.packing.base_scheduler import BasePackingScheduler

Wrapped = tuple[Any, int, int, int]
"""The result of `wrap_data_iterator`: (iterators, number of microbatches, sum of lengths, sum of squared lengths)."""

_END = object()


def run_pipeline(
    scheduler: BasePackingScheduler,
    place: Place,
    data_iterator: Any,
    num_microbatches: int,
    config: object,
    *,
    sums_padding: bool = False,
) -> Wrapped:
    """Does the work of `wrap_data_iterator` with `scheduler`; if `sums_padding`, sums of lengths include padding."""
    settings = PackingConfig.of(config)
    stages = settings.stages_with_tokens(pp_rank=place.pp.rank, pp_size=place.pp.size)

    def schedule() -> tuple[GlobalBatch, Planned] | None:
        if place.tp.rank != 0:
            refuse_iterator(place, data_iterator)
            return None
        if not any(stages):
            return None
        needed = scheduler.get_required_sample_keys()
        fetching = Attempt(lambda: fetch(_iterator_of_stage(data_iterator, stages), num_microbatches, needed))
        fetched = gather_lengths(fetching, place.dp)
        return fetched, plan_global_batch(fetched.padded_lengths, settings, place, scheduler)

    def exchange() -> Wrapped:
        packs, numbers = None, (0, 0, 0)
        if scheduled is not None:
            fetched, planned = scheduled
            peers = range(place.cp.rank, place.num_ranks, place.cp.size)  # the ranks of `dp`
            wanted = [np.unique(np.concatenate(planned.plan.ids_of_rank(rank))) for rank in peers]
            packs = planned.packs(place, exchange_samples(fetched, wanted, place.dp).__getitem__)
            sums = sums_of(fetched.padded_lengths if sums_padding else fetched.lengths)
            numbers = (planned.plan.num_microbatches, *sums)
        if place.tp.rank == 0:
            packs, numbers = broadcast_to_stages(packs, numbers, place.pp, place.device)
        count, total, squares = place.tp.broadcast_integers(numbers, 0, "scalars over TP")
        return iterators_over(packs, place.tp, stages, in_list=settings.has_virtual_stages), count, total, squares

    scheduled = do_together(
        "scheduling a global batch",
        schedule,
        break_off=place.break_off,
        breaks=(),  # no rank waits: fetch errors are gathered, and planning fails on all ranks
        compare=lambda result: None if result is None else describe(result[1].plan, result[0].lengths),
    )
    return do_together(
        "exchanging sub-samples",
        exchange,
        break_off=place.break_off,
        compare=lambda result: f"{result[1]} microbatches of {result[2]} tokens",
    )


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan, and the length of each sub-sample, padded for the number of ranks that share this sub-sample."""

    plan: PackPlan
    padded_lengths: Int64s

    def longest_part(self) -> int:
        tokens = np.add.reduceat(self.padded_lengths[self.plan.ids], self.plan.pack_offsets[:-1])
        return int((tokens[self.plan.packs] // self.plan.cp_sizes).max())

    def cp_sizes(self, place: Place) -> list[int] | None:
        """Returns how many ranks share each pack of this rank; None if cp groups share all packs of the plan."""
        if (self.plan.cp_sizes == place.cp.size).all():
            return None
        sizes: list[int] = self.plan.cp_sizes[:, place.rank].tolist()
        return sizes

    def packs(self, place: Place, sample: Callable[[int], SubSample]) -> list[Pack]:
        grouped = [
            [sample(number) | {"padded_seq_len": int(self.padded_lengths[number])} for number in ids.tolist()]
            for ids in self.plan.ids_of_rank(place.rank)
        ]
        return build_packed_microbatches(grouped, place.device, cp_sizes=self.cp_sizes(place))

    def metadata(self, place: Place, lengths: Int64s) -> list[Pack]:
        """Returns this rank's packs with `METADATA` only, for a stage without tokens; `lengths` exclude padding."""
        mine = self.plan.ids_of_rank(place.rank)
        sizes: Sequence[int | None] = self.cp_sizes(place) or [None] * len(mine)
        return [
            pack_metadata(lengths[ids].tolist(), self.padded_lengths[ids].tolist(), place.device, cp_size=size)
            for ids, size in zip(mine, sizes, strict=True)
        ]


def plan_global_batch(
    lengths: Int64s, settings: PackingConfig, place: Place, scheduler: BasePackingScheduler
) -> Planned:
    """Plans a global batch; `lengths`, int64[num_subsamples], are the `padded_seq_len` of its sub-samples.

    A scheduler with groups of several sizes first plans with lengths that are not padded for groups. If padding for the
    planned groups makes packs too long, the scheduler plans again with lengths that are padded for groups of any size.
    """
    per_rank = place.tp.size if settings.sequence_parallel else 1

    def planned(cp_size: int) -> Planned:
        plan = scheduler.plan(padded_lengths(lengths, cp_size=cp_size, per_rank=per_rank))
        sizes, pack_sizes = np.empty_like(lengths), np.empty(plan.num_packs, dtype=np.int64)
        pack_sizes[plan.packs] = plan.cp_sizes
        sizes[plan.ids] = np.repeat(pack_sizes, np.diff(plan.pack_offsets))
        return Planned(plan, padded_lengths(lengths, cp_size=sizes, per_rank=per_rank))

    found = planned(1 if scheduler.is_dynamic_cp else place.cp.size)
    if scheduler.is_dynamic_cp and found.longest_part() > scheduler.max_seqlen_per_dp_cp_rank:
        found = planned(math.lcm(place.num_ranks, *(2**k for k in range(1, place.num_ranks.bit_length()))))
    known = None if place.cp_of_size is None else {1, place.cp.size, *place.cp_of_size}
    missing = [size for size in np.unique(found.plan.cp_sizes).tolist() if known is not None and size not in known]
    if missing:
        message = f"the plan needs context-parallel groups of {missing} ranks, but none were given"
        raise ConfigError(message, hint="pass all sizes to `ProcessGroups.from_mesh(mesh, cp_sizes=...)`")
    return found


def sums_of(lengths: Int64s) -> tuple[int, int]:
    """Returns the sum of `lengths` and the sum of their squares, which may exceed 64 bits."""
    counted: list[int] = lengths.tolist()
    return sum(counted), sum(length * length for length in counted)


def describe(plan: PackPlan, *arrays: Int64s) -> str:
    """Returns the sizes of a plan and a digest of the plan and `arrays`, as text that ranks can compare."""
    digest = hashlib.sha256()
    for array in (*arrays, plan.ids, plan.pack_offsets, plan.packs, plan.cp_sizes):
        digest.update(np.ascontiguousarray(array).data)
    sizes = f"{len(plan.ids)} sub-samples in {plan.num_packs} packs and {plan.num_microbatches} microbatches"
    return f"{sizes}, {digest.hexdigest()[:16]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class GlobalBatch:
    """The sub-samples that this rank fetched, and the lengths and sources of all sub-samples, int64[num_subsamples].

    An id is an index in these arrays. Rank r of `dp` fetched ids [offsets[r], offsets[r + 1]); unknown sources are -1.
    """

    samples: list[SubSample]
    offsets: Int64s
    lengths: Int64s
    padded_lengths: Int64s
    sources: Int64s


def fetch(data_iterator: Iterator[Any], num_microbatches: int, required: Sequence[str]) -> list[SubSample]:
    """Returns the sub-samples in the next `num_microbatches` items of an iterator."""
    items: list[Any] = []
    while len(items) < num_microbatches and (item := next(data_iterator, _END)) is not _END:
        items.append(item)
    if len(items) < num_microbatches:
        raise InputError(f"the data iterator ended after {len(items)} of {num_microbatches} items of a global batch")
    samples = list(take_apart(items))
    if missing := [f"`{name}`" for name in required if any(name not in sample for sample in samples)]:
        message = f"sub-samples lack {', '.join(missing)}, which the scheduler requires"
        raise InputError(message, hint="add them to the items, or change `get_required_sample_keys` of the scheduler")
    return samples


def _iterator_of_stage(data_iterator: Any, stages: Sequence[bool]) -> Any:
    """Returns the first iterator of a virtual stage that needs tokens; if there is none, the first iterator."""
    given = data_iterator if isinstance(data_iterator, list) else [data_iterator]
    if len(given) != len(stages) and isinstance(data_iterator, list):
        raise ConfigError(f"{len(given)} data iterators given for {len(stages)} virtual stages")
    have = [stage for stage, iterator in enumerate(given) if iterator is not None]
    if not have:
        message = "rank 0 of a tensor-parallel group has no data iterator on a stage that needs tokens"
        raise ConfigError(message, hint="pass a data iterator on the first and the last stage of the pipeline")
    return given[next((stage for stage in have if stages[stage]), have[0])]


def gather_lengths(fetching: Attempt[list[SubSample]], dp: Channel) -> GlobalBatch:
    """Gathers the lengths from all data-parallel ranks; raises on all ranks if a rank failed to fetch its items."""
    samples = fetching.result or []
    rows = np.array(
        [[one["original_seq_len"], one["padded_seq_len"], one.get("dataset_id", -1)] for one in samples], dtype=np.int64
    ).reshape(-1, 3)
    failure = np.full((1, 3), -1, dtype=np.int64)
    gathered = dp.all_gather_rows(rows if fetching.error is None else failure, "lengths over DP")
    if fetching.error is not None:
        raise fetching.error
    failed = [dp.global_ranks[rank] for rank, theirs in enumerate(gathered) if (theirs[:, 0] < 0).any()]
    if failed:
        raise ConsequenceError(f"rank {failed[0]} failed to fetch its items", hint="see the log of that rank")
    lengths, padded, sources = np.ascontiguousarray(np.concatenate(gathered).T)
    offsets = np.cumsum([0, *map(len, gathered)], dtype=np.int64)
    return GlobalBatch(samples=samples, offsets=offsets, lengths=lengths, padded_lengths=padded, sources=sources)


def exchange_samples(fetched: GlobalBatch, wanted: Sequence[Int64s], dp: Channel) -> dict[int, SubSample]:
    """Sends the sub-samples `wanted[r]` (ascending ids) to each rank r of `dp`; returns this rank's by id."""
    torch = require("torch", extra="torch")
    offsets, first = fetched.offsets, int(fetched.offsets[dp.rank])

    def owned_by(rank: int, ids: Int64s) -> list[int]:
        start, stop = np.searchsorted(ids, offsets[rank : rank + 2])
        owned: list[int] = ids[start:stop].tolist()
        return owned

    kept = {number: fetched.samples[number - first] for number in owned_by(dp.rank, wanted[dp.rank])}
    if dp.size == 1:
        return kept
    nothing = torch.empty(0, dtype=torch.uint8)
    outgoing = [
        nothing if rank == dp.rank else to_bytes([fetched.samples[n - first] for n in owned_by(dp.rank, ids)])
        for rank, ids in enumerate(wanted)
    ]
    incoming = [[] if rank == dp.rank else owned_by(rank, wanted[dp.rank]) for rank in range(dp.size)]
    sizes = [fetched.lengths[ids].tolist() if ids else [] for ids in incoming]
    received = dp.all_to_all(outgoing, [num_bytes(row) for row in sizes], "sub-samples over DP")
    for ids, row, data in zip(incoming, sizes, received, strict=True):
        for number, tensors in zip(ids, from_bytes(data, row), strict=True):
            tensors["original_seq_len"] = int(fetched.lengths[number])
            tensors["padded_seq_len"] = int(fetched.padded_lengths[number])
            if fetched.sources[number] >= 0:
                tensors["dataset_id"] = int(fetched.sources[number])
            kept[number] = tensors
    return kept


def broadcast_to_stages(
    packs: list[Pack] | None, numbers: tuple[int, int, int], pp: Channel, dev: Any
) -> tuple[list[Pack], tuple[int, int, int]]:
    """Returns `packs` and `numbers` (see `Wrapped`); if `packs` is None, those of the first stage, without tokens."""
    if pp.size <= 2:
        assert packs is not None
        return packs, numbers
    message = None
    if pp.rank == 0:
        assert packs is not None
        message = [*numbers, *encode_metadata(map(metadata_of, packs))]
    received = pp.broadcast_integers(message, 0, "metadata over PP")
    if packs is not None:
        return packs, numbers
    return decode_metadata(received[3:], dev), (received[0], received[1], received[2])


def iterators_over(packs: list[Pack] | None, tp: Channel, stages: Sequence[bool], *, in_list: bool) -> Any:
    """Returns an iterator over packs, or, if `in_list`, a list with one iterator per virtual stage.

    Virtual stages that need no tokens get packs with `METADATA` only. TP ranks above 0 get None instead of iterators.
    """
    iterators: list[Any] = [None] * len(stages)
    if tp.rank == 0:
        assert packs is not None
        iterators = [iter([dict(pack) if needs else metadata_of(pack) for pack in packs]) for needs in stages]
    return iterators if in_list else iterators[0]
