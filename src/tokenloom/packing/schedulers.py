"""The packing schedulers by name, the reference's own, and what a training loop calls once per step.

`wrap_data_iterator` exchanges what iterators give. `wrap_dataset` reads data whose lengths every rank knows: each plans
the whole global batch and reads only what it works on. The packs are the same, bit for bit.
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
from tokenloom.packing.base import RUN_PIPELINE, BasePackingScheduler
from tokenloom.packing.batch import SubSample, take_apart
from tokenloom.packing.config import PackingConfig
from tokenloom.packing.dynamic import DefaultDynamicCPScheduler
from tokenloom.packing.groups import place_of
from tokenloom.packing.hybrid import HybridCostBalancedScheduler
from tokenloom.packing.pipeline import Wrapped, describe, iterators_over, plan_global_batch, run_pipeline, sums_of
from tokenloom.packing.plan import Int64s, PackPlan, uniform_plan
from tokenloom.packing.prefixes import PrefixForest, PrefixTreeScheduler, keys_of


class DpBalancedScheduler(BasePackingScheduler):
    """Packs sub-samples in order until the next would not fit, as the reference does; costs play no part.

    The number of packs is made a multiple of `dp_size` (times `microbatch_group_size_per_vp_stage`) by moving single
    sub-samples off the end of the last packs that have more than one, into packs of their own. Releases of the
    reference up to 0.19 never move any off the first pack, and fail where its development branch and this do not.

    Example:
        >>> DpBalancedScheduler(8, cp_size=1, dp_size=2).plan([5, 3, 4, 4, 6]).assignments
        (((0, 1), (2,)), ((4,), (3,)))
    """

    @property
    def max_seq_len_all_ranks(self) -> int:
        """Tokens of a pack, under the reference's name."""
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
        # The last of the last packs get packs of their own, but never a first one.
        spare = (i for pack in range(num_packs, 0, -1) for i in range(bounds[pack] - 1, bounds[pack - 1], -1))
        moved = list(itertools.islice(spare, num_missing))
        if len(moved) < num_missing:
            message = (
                f"{len(lengths)} sub-samples fill {num_packs} packs, expected a multiple of {multiple}; not enough "
                f"samples to move: {num_missing} packs are missing, but there are {len(moved)} sub-samples to spare"
            )
            raise ConfigError(message, hint="plan with `cost_balanced`, or take more samples into a global batch")
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
"""The schedulers by name, as a configuration names them. A user's own may be added."""


def make_scheduler(
    config: object,
    *,
    cp_size: int,
    dp_size: int,
    schedulers: Mapping[str, type[BasePackingScheduler]] = scheduler_map,
    name: str | None = None,
) -> BasePackingScheduler:
    """Returns the scheduler that a configuration, or `name`, names among `schedulers`, with its settings."""
    settings = PackingConfig.of(config)
    name = settings.sequence_packing_scheduler if name is None else name
    if name not in schedulers:
        message = f"expected a scheduler among {', '.join(sorted(schedulers))}, found {name!r}"
        raise ConfigError(message)
    multiple = settings.microbatch_group_size_per_vp_stage if settings.has_virtual_stages else None
    options: dict[str, Any] = {"max_num_seqs": settings.max_num_seqs, "cost_model": settings.packing_cost_model}
    if issubclass(schedulers[name], DefaultDynamicCPScheduler):
        options["min_cp_size"] = settings.min_dynamic_context_parallel_size
    given = {option: value for option, value in options.items() if value is not None}  # a user's class may know no more
    return schedulers[name](settings.max_seqlen_per_dp_cp_rank, cp_size, dp_size, multiple, **given)


def wrap_data_iterator(data_iterator: Any, config: object, num_microbatches: int, pg_collection: Any = None) -> Wrapped:
    """Schedules and exchanges one global batch; all ranks of the run must call this together.

    The sub-samples of all data-parallel ranks together are planned anew, and each goes to the ranks that work on it.
    Which are in the global batch does not change. A sub-sample is padded to a multiple of 2 × the ranks that share it,
    beyond the padding that its iterator says it has.

    The scheduler that `config` names in `scheduler_map` decides: its `get_groups_and_subsamples` what each rank works
    on, its `run` all of it.

    Args:
        data_iterator: yields what `take_apart` describes: mappings with tokens, labels, loss_mask, position_ids,
            original_seq_len and padded_seq_len, or lists of them; needs `__next__` only. Rank 0 of a tensor-parallel
            group on the first and the last pipeline stage has one (and on a stage with multi-token prediction), with
            virtual stages in a list of one per stage. It is the same on context-parallel ranks.
        config: a `PackingConfig`, or what has its attributes.
        num_microbatches: how many items are taken from each iterator.
        pg_collection: a `ProcessGroups`, or what has its attributes; None where there is one process only.

    Returns:
        (iterator, number of microbatches, sum of lengths, sum of squared lengths), lengths without padding, exact. The
        iterator yields one pack per microbatch: tokens, labels, position_ids int64[T], loss_mask float32[T], cu_seqlens
        and cu_seqlens_padded int32[n + 1], max_seqlen; on stages without tokens the last three only. It is a list with
        virtual stages, and None on tensor-parallel ranks other than 0.

    Raises:
        ConfigError: an iterator is missing, or where none may be; a sub-sample is too long; it cannot be planned.
        InputError: the iterator ended, or yields something else.
        BuildError: in a run of several ranks, any of this happened on some rank, which the message names, or one died.
        DivergenceError: ranks that must hold the same data hold lengths that differ.
    """
    place = place_of(pg_collection)
    scheduler = make_scheduler(config, cp_size=place.cp.size, dp_size=place.dp.size)
    if type(scheduler).run is RUN_PIPELINE:
        return run_pipeline(scheduler, place, data_iterator, num_microbatches, config)
    groups = (place.dp.group, place.tp.group, place.pp.group, place.dp_cp_group)
    return cast("Wrapped", scheduler.run(data_iterator, num_microbatches, *groups, place.device, config))


class SizedDataset(Protocol):
    """A dataset that knows how long its samples are before it reads them; the same on every rank."""

    def __len__(self) -> int:
        """The number of samples."""

    def lengths(self, positions: Int64s, /) -> Int64s:
        """Returns the `original_seq_len` of samples at positions that exist, int64[num_positions]."""

    def padded_lengths(self, positions: Int64s, /) -> Int64s:
        """Returns the `padded_seq_len` of samples at positions that exist, int64[num_positions]."""

    def __getitem__(self, position: int, /) -> Mapping[str, Any]:
        """Returns one sample as `wrap_data_iterator` takes it; asked for on ranks that work on it only."""


def wrap_dataset(
    dataset: SizedDataset,
    positions: ArrayLike,
    config: object,
    pg_collection: Any = None,
    *,
    micro_batch_size: int = 1,
) -> Wrapped:
    """Returns what `wrap_data_iterator` returns, without communication of lengths or tokens.

    All ranks of the run must call this together: they do not exchange data, but compare what they planned, and if one
    fails to read, all fail with its cause.

    Args:
        dataset: gives lengths on every rank; is read on rank 0 of each tensor-parallel group of stages with tokens, for
            "prefix_trees" on every rank, all of the global batch.
        positions: int64[num_microbatches * dp size * micro_batch_size], the samples of the global batch in the order of
            the run, which `MegatronPretrainingSampler` cuts into micro-batches. The same on every rank.
        config, pg_collection: see `wrap_data_iterator`, whose errors this raises.
        micro_batch_size: samples that a data-parallel rank would take in a row from `positions`; it decides their ids.

    Raises:
        DatasetFormatError: a sample has another length than the dataset says.
    """
    place, settings = place_of(pg_collection), PackingConfig.of(config)
    stages = settings.stages_with_tokens(pp_rank=place.pp.rank, pp_size=place.pp.size)
    scheduler = make_scheduler(settings, cp_size=place.cp.size, dp_size=place.dp.size)
    if overrides(scheduler, "run") and not isinstance(scheduler, PrefixTreeScheduler):
        message = f"`{type(scheduler).__name__}.run` overrides what `wrap_dataset` does not ask"
        raise ConfigError(message, hint="call `wrap_data_iterator`, or override `get_groups_and_subsamples` instead")

    def read() -> tuple[Wrapped, str]:
        ids = _positions_by_rank(positions, len(dataset), place.dp.size, micro_batch_size)
        lengths, padded = (np.asarray(of(ids), dtype=np.int64) for of in (dataset.lengths, dataset.padded_lengths))

        def sample(number: int) -> SubSample:
            return _read(dataset, int(ids[number]), (int(lengths[number]), int(padded[number])))

        if isinstance(scheduler, PrefixTreeScheduler):  # tokens say what is shared
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
    """Returns the positions by id: those that data-parallel rank 0 would read first."""
    ordered = np.asarray(positions, dtype=np.int64)
    chunk = dp_size * micro_batch_size
    if ordered.ndim != 1 or not len(ordered) or len(ordered) % chunk:
        expected = f"positions in whole micro-batches of {micro_batch_size} on {dp_size} data-parallel ranks"
        message = f"expected {expected}, found shape {list(ordered.shape)}"
        raise ConfigError(message)
    for outside in ordered[(ordered < 0) | (ordered >= size)][:1]:
        message = f"expected positions below {size}, found {outside}"
        raise ConfigError(message)
    return ordered.reshape(-1, dp_size, micro_batch_size).swapaxes(0, 1).reshape(-1)


def _read(dataset: SizedDataset, position: int, promised: tuple[int, int]) -> SubSample:
    found = list(take_apart([dataset[position]]))
    lengths = [(sample["original_seq_len"], sample["padded_seq_len"]) for sample in found]
    if lengths != [promised]:
        expected = f"{promised[0]} tokens, padded to {promised[1]}, in the sample at position {position}"
        message = f"expected {expected}, found (tokens, padded) {lengths}"
        raise DatasetFormatError(message, hint="the dataset must give samples of the lengths that it says")
    return found[0]
