"""The packing schedulers by name, and the two functions that a training loop calls.

`wrap_data_iterator` exchanges the items of data iterators between ranks. With `wrap_dataset`, every rank knows all
lengths, plans the whole global batch and reads only its own part. Both functions make the same packs, bit for bit.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import ArrayLike

from tokenloom.distributed.building import do_together
from tokenloom.errors import ConfigError, DatasetFormatError
from tokenloom.overrides import overrides
from tokenloom.packing.balanced import CostBalancedScheduler
from tokenloom.packing.base_scheduler import RUN, BasePackingScheduler
from tokenloom.packing.batch import SubSample, take_apart
from tokenloom.packing.config import PackingConfig
from tokenloom.packing.dynamic import DefaultDynamicCPScheduler
from tokenloom.packing.groups import place_of
from tokenloom.packing.hybrid import HybridCostBalancedScheduler
from tokenloom.packing.pack_plan import Int64s, PackPlan, uniform_plan
from tokenloom.packing.pipeline import Wrapped, describe, iterators_over, plan_global_batch, sums_of
from tokenloom.packing.prefix_trees import PrefixForest, PrefixTreeScheduler, keys_of


class DpBalancedScheduler(BasePackingScheduler):
    """A scheduler that fills packs in the order of the sub-samples, regardless of cost, like Megatron's `dp_balanced`.

    To make the number of packs a multiple of `dp_size` (times `microbatch_group_size_per_vp_stage`), single sub-samples
    at the end of the last packs move into packs of their own. (Megatron's releases up to 0.19 never move a sub-sample
    out of the first pack, so these releases fail for batches that the development branch and this class can plan.)

    Example:
        >>> DpBalancedScheduler(8, cp_size=1, dp_size=2).plan([5, 3, 4, 4, 6]).assignments
        (((0, 1), (2,)), ((4,), (3,)))
    """

    @property
    def max_seq_len_all_ranks(self) -> int:
        """Maximum tokens of a pack, under Megatron's name."""
        return self.max_tokens

    def _plan(self, lengths: Int64s) -> PackPlan:
        ends, capacity, most = np.cumsum(lengths), self.max_tokens, self.max_num_seqs or len(lengths)
        bounds, before = [0], 0
        while bounds[-1] < len(lengths):
            last = int(np.searchsorted(ends, before + capacity, side="right"))
            bounds.append(min(bounds[-1] + most, last))
            before = int(ends[bounds[-1] - 1])
        num_packs, multiple = len(bounds) - 1, self.dp_size * self.microbatch_multiple
        num_missing = -num_packs % multiple
        # Candidates for packs of their own: all but the first sub-sample of each pack, last ones first.
        spare = (i for pack in range(num_packs, 0, -1) for i in range(bounds[pack] - 1, bounds[pack - 1], -1))
        moved = list(itertools.islice(spare, num_missing))
        if len(moved) < num_missing:
            message = f"{len(lengths)} sub-samples fill {num_packs} packs, not a multiple of {multiple}: "
            message += f"{num_missing} more packs are needed, but only {len(moved)} sub-samples can move to new packs"
            raise ConfigError(message, hint="plan with `cost_balanced`, or use more samples per global batch")
        pack_of = np.repeat(np.arange(num_packs), np.diff(bounds))
        pack_of[moved] = np.arange(num_packs, num_packs + num_missing)
        num_microbatches = (num_packs + num_missing) // self.dp_size
        return uniform_plan(pack_of, num_microbatches=num_microbatches, cp_size=self.cp_size, dp_size=self.dp_size)


scheduler_map: dict[str, type[BasePackingScheduler]] = {
    "dp_balanced": DpBalancedScheduler,
    "default_dynamic_cp": DefaultDynamicCPScheduler,
    "cost_balanced": CostBalancedScheduler,
    "hybrid_cost_balanced": HybridCostBalancedScheduler,
    "prefix_trees": PrefixTreeScheduler,
}
"""Schedulers by their name in configurations; add your own classes here."""


def make_scheduler(
    config: object,
    *,
    cp_size: int,
    dp_size: int,
    schedulers: Mapping[str, type[BasePackingScheduler]] = scheduler_map,
    name: str | None = None,
) -> BasePackingScheduler:
    """Creates the scheduler called `name` in `schedulers`; if `name` is None, the scheduler that `config` names."""
    settings = PackingConfig.of(config)
    name = settings.sequence_packing_scheduler if name is None else name
    if name not in schedulers:
        raise ConfigError(f"unknown scheduler {name!r}", hint=f"choose one of {', '.join(sorted(schedulers))}")
    multiple = settings.microbatch_group_size_per_vp_stage if settings.has_virtual_stages else None
    options: dict[str, Any] = {"max_num_seqs": settings.max_num_seqs, "cost_model": settings.packing_cost_model}
    if issubclass(schedulers[name], DefaultDynamicCPScheduler):
        options["min_cp_size"] = settings.min_dynamic_context_parallel_size
    given = {option: value for option, value in options.items() if value is not None}  # user classes may lack options
    return schedulers[name](settings.max_seqlen_per_dp_cp_rank, cp_size, dp_size, multiple, **given)


def wrap_data_iterator(data_iterator: Any, config: object, num_microbatches: int, pg_collection: Any = None) -> Wrapped:
    """Packs one global batch: plans it and exchanges sub-samples; all ranks of the run must call this together.

    The scheduler assigns the sub-samples of all data-parallel ranks to packs anew. Each sub-sample is sent to the ranks
    that work on it and padded to a multiple of 2 × c tokens if these are c > 1 ranks. The global batch stays the same.

    `config` selects a scheduler from `scheduler_map`. The scheduler's method `get_groups_and_subsamples` plans the
    packs; its method `run` does all of the work, planning included.

    Args:
        data_iterator: yields mappings with tokens, labels, loss_mask, position_ids, original_seq_len and
            padded_seq_len, or lists of these; see `take_apart`. Rank 0 of a tensor-parallel group passes an iterator on
            the first and last pipeline stage and on stages with multi-token prediction; with virtual stages, a list of
            iterators, one per virtual stage. Context-parallel ranks must pass the same data.
        config: a `PackingConfig`, or an object with the same attributes.
        num_microbatches: number of items to read from each iterator.
        pg_collection: a `ProcessGroups`, or an object with the same attributes; None for a single process.

    Returns:
        (iterator, number of microbatches, sum of lengths, sum of squared lengths); lengths exclude padding. The
        iterator yields one pack per microbatch: tokens, labels, position_ids int64[T], loss_mask float32[T], cu_seqlens
        and cu_seqlens_padded int32[n + 1], max_seqlen. Stages without tokens get packs with only the last three.
        Instead of the iterator, virtual stages get a list of iterators, and tensor-parallel ranks above 0 get None.

    Raises:
        ConfigError: an iterator is missing or not allowed on a rank, a sub-sample is too long, or no plan is possible.
        InputError: the iterator ended early, or an item does not have the form above.
        BuildError: one of several ranks failed or died; the message has the first cause.
        DivergenceError: ranks that must have the same data have sub-samples of different lengths.
    """
    place = place_of(pg_collection)
    scheduler = make_scheduler(config, cp_size=place.cp.size, dp_size=place.dp.size)
    if type(scheduler).run is RUN:
        return scheduler.run_in(place, data_iterator, num_microbatches, config)
    groups = (place.dp.group, place.tp.group, place.pp.group, place.dp_cp_group)
    return cast("Wrapped", scheduler.run(data_iterator, num_microbatches, *groups, place.device, config))


class SizedDataset(Protocol):
    """A dataset, equal on every rank, that knows the lengths of its samples without reading the samples."""

    def __len__(self) -> int:
        """Returns the number of samples."""

    def lengths(self, positions: Int64s, /) -> Int64s:
        """Returns the `original_seq_len` of the sample at each position, int64[num_positions]."""

    def padded_lengths(self, positions: Int64s, /) -> Int64s:
        """Returns the `padded_seq_len` of the sample at each position, int64[num_positions]."""

    def __getitem__(self, position: int, /) -> Mapping[str, Any]:
        """Returns one sample, as an item for `wrap_data_iterator`; called only on ranks that work on the sample."""


def wrap_dataset(
    dataset: SizedDataset,
    positions: ArrayLike,
    config: object,
    pg_collection: Any = None,
    *,
    micro_batch_size: int = 1,
) -> Wrapped:
    """Packs one global batch of a dataset without exchanging lengths or tokens; see `wrap_data_iterator`.

    All ranks of the run must call this together: the ranks compare their plans; if a rank fails to read, all ranks
    raise an error with the cause.

    Args:
        dataset: every rank reads lengths; rank 0 of each tensor-parallel group reads samples if its stage needs
            tokens. With "prefix_trees", every rank reads the whole global batch.
        positions: int64[num_microbatches * dp size * micro_batch_size], the positions of the global batch in the order
            of the run, the same on every rank.
        config, pg_collection: see `wrap_data_iterator`, which also lists further errors.
        micro_batch_size: number of consecutive positions that each data-parallel rank gets in turn.

    Raises:
        DatasetFormatError: a sample has another length than `dataset.lengths` or `dataset.padded_lengths` returns.
    """
    place, settings = place_of(pg_collection), PackingConfig.of(config)
    stages = settings.stages_with_tokens(pp_rank=place.pp.rank, pp_size=place.pp.size)
    scheduler = make_scheduler(settings, cp_size=place.cp.size, dp_size=place.dp.size)
    if overrides(scheduler, "run") and not isinstance(scheduler, PrefixTreeScheduler):
        message = f"`wrap_dataset` does not call `{type(scheduler).__name__}.run`"
        raise ConfigError(message, hint="call `wrap_data_iterator`, or override `get_groups_and_subsamples` instead")

    def read() -> tuple[Wrapped, str]:
        ids = _positions_by_rank(positions, len(dataset), place.dp.size, micro_batch_size)
        lengths, padded = (np.asarray(of(ids), dtype=np.int64) for of in (dataset.lengths, dataset.padded_lengths))

        def sample(number: int) -> SubSample:
            return _read(dataset, int(ids[number]), (int(lengths[number]), int(padded[number])))

        if isinstance(scheduler, PrefixTreeScheduler):  # needs tokens to find shared prefixes
            samples = [sample(number) for number in range(len(ids))]
            plan = scheduler.plan_forest(PrefixForest.of(keys_of(samples)))
            trees = scheduler.packs(plan, samples.__getitem__, place, settings)
            return (iter(trees), plan.num_microbatches, *sums_of(lengths)), describe(plan, ids, lengths)
        planned = plan_global_batch(padded, settings, place, scheduler)
        packs = None
        if place.tp.rank == 0:
            packs = planned.packs(place, sample) if any(stages) else planned.metadata(place, lengths)
        iterator = iterators_over(packs, place.tp, stages, in_list=settings.has_virtual_stages)
        wrapped = (iterator, planned.plan.num_microbatches, *sums_of(lengths))
        return wrapped, describe(planned.plan, ids, lengths, padded)

    wrapped, _ = do_together("reading a global batch", read, compare=lambda result: result[1])
    return wrapped


def _positions_by_rank(positions: ArrayLike, size: int, dp_size: int, micro_batch_size: int) -> Int64s:
    """Sorts the positions of a global batch by data-parallel rank; sub-sample ids are indices in the result."""
    ordered = np.asarray(positions, dtype=np.int64)
    if ordered.ndim != 1 or not len(ordered) or len(ordered) % (dp_size * micro_batch_size):
        chunk = f"{dp_size} ranks * micro_batch_size {micro_batch_size}"
        raise ConfigError(f"`positions`: length must be a multiple of {chunk}, got shape {list(ordered.shape)}")
    for outside in ordered[(ordered < 0) | (ordered >= size)][:1]:
        raise ConfigError(f"position {outside} out of range: the dataset has {size} samples")
    return ordered.reshape(-1, dp_size, micro_batch_size).swapaxes(0, 1).reshape(-1)


def _read(dataset: SizedDataset, position: int, promised: tuple[int, int]) -> SubSample:
    found = list(take_apart([dataset[position]]))
    lengths = [(sample["original_seq_len"], sample["padded_seq_len"]) for sample in found]
    if lengths != [promised]:
        message = f"sample at position {position}: expected (length, padded length) [{promised}], found {lengths}"
        raise DatasetFormatError(message, hint="make `lengths` and `padded_lengths` of the dataset match its samples")
    return found[0]
