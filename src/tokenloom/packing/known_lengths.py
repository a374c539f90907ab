"""Packs without communication, for data whose lengths every rank knows.

Every rank plans the whole global batch from lengths alone and reads only the sub-samples that it works on. The packs
are those of `wrap_data_iterator`, bit for bit; nothing is gathered or exchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike

from tokenloom.distributed.building import do_together
from tokenloom.errors import ConfigError, DatasetFormatError
from tokenloom.overrides import overrides
from tokenloom.packing.config import PackingConfig
from tokenloom.packing.groups import place_of
from tokenloom.packing.pipeline import Wrapped, describe, iterators_over, plan_global_batch, sums_of
from tokenloom.packing.plan import Int64s
from tokenloom.packing.prefix_trees import PrefixTreeScheduler, keys_of
from tokenloom.packing.prefixes import PrefixForest
from tokenloom.packing.schedulers import make_scheduler
from tokenloom.packing.subsamples import SubSample, take_apart


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
        config: a `PackingConfig`, or what has its attributes.
        pg_collection: a `ProcessGroups`, or what has its attributes; None where there is one process only.
        micro_batch_size: samples that a data-parallel rank would take in a row from `positions`; it decides their ids.

    Raises:
        ConfigError: the positions do not make up whole micro-batches; a sub-sample is too long; they cannot be planned.
        DatasetFormatError: a sample has another length than the dataset says.
        BuildError: in a run of several ranks, any of this happened on some rank, which the message names, or one died.
        DivergenceError: the ranks have different positions, or lengths.
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
        message = (
            f"expected positions in whole micro-batches of {micro_batch_size} on {dp_size} data-parallel ranks, "
            f"found shape {list(ordered.shape)}"
        )
        raise ConfigError(message)
    outside = ordered[(ordered < 0) | (ordered >= size)]
    if len(outside):
        message = f"expected positions below {size}, found {int(outside[0])}"
        raise ConfigError(message)
    return ordered.reshape(-1, dp_size, micro_batch_size).swapaxes(0, 1).reshape(-1)


def _read(dataset: SizedDataset, position: int, promised: tuple[int, int]) -> SubSample:
    found = list(take_apart([dataset[position]]))
    lengths = [(sample["original_seq_len"], sample["padded_seq_len"]) for sample in found]
    if lengths != [promised]:
        message = (
            f"expected {promised[0]} tokens, padded to {promised[1]}, in the sample at position {position}, "
            f"found (tokens, padded) {lengths}"
        )
        raise DatasetFormatError(message, hint="the dataset must give samples of the lengths that it says")
    return found[0]
