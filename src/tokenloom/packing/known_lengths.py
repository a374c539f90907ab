"""Packs without communication, for data whose lengths every rank knows.

Every rank plans the whole global batch from lengths alone and reads only the sub-samples that it works on. The packs
are those of `wrap_data_iterator`, bit for bit; nothing is gathered or exchanged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike

from tokenloom.distributed.building import do_together
from tokenloom.errors import ConfigError, DatasetFormatError
from tokenloom.overrides import overrides
from tokenloom.packing.batch import Pack, build_packed_microbatches, pack_metadata
from tokenloom.packing.config import PackingSettings, stages_with_tokens
from tokenloom.packing.exchange import Wrapped, create_data_iterator
from tokenloom.packing.groups import Place, place_of
from tokenloom.packing.plan import Int64s
from tokenloom.packing.planning import Planned, describe_lengths, describe_plan, plan_global_batch, sums_of
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
    config: PackingSettings,
    pg_collection: Any = None,
    *,
    micro_batch_size: int = 1,
) -> Wrapped:
    """Returns what `wrap_data_iterator` returns, without communication of lengths or tokens.

    All ranks of the run must call this together: they do not exchange data, but compare what they planned, and if one
    fails to read, all fail with its cause.

    Args:
        dataset: gives lengths on every rank; is read on rank 0 of each tensor-parallel group of stages with tokens.
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
    place = place_of(pg_collection)
    stages = stages_with_tokens(config, pp_rank=place.pp.rank, pp_size=place.pp.size)

    def read() -> tuple[Wrapped, str]:
        ids = _positions_by_rank(positions, place.dp.size, micro_batch_size)
        lengths, padded = _lengths_at(dataset, ids)
        scheduler = make_scheduler(config, cp_size=place.cp.size, dp_size=place.dp.size)
        if overrides(scheduler, "run"):
            message = f"`{type(scheduler).__name__}.run` overrides what `wrap_dataset` does not ask"
            raise ConfigError(
                message, hint="call `wrap_data_iterator`, or override `get_groups_and_subsamples` instead"
            )
        planned = plan_global_batch(padded, config, place, scheduler)
        packs = None
        if place.tp.rank == 0 and any(stages):
            packs = _read_packs(dataset, ids, (lengths, padded), planned, place)
        elif place.tp.rank == 0:
            packs = _metadata_of_packs(lengths, planned, place)
        iterator = create_data_iterator(packs, place.tp.group, config, stages)
        wrapped = (iterator, planned.plan.num_microbatches, *sums_of(lengths))
        return wrapped, ": ".join([*map(describe_lengths, (ids, lengths, padded)), describe_plan(planned.plan)])

    wrapped, _ = do_together("reading a global batch", read, compare=lambda result: result[1])
    return wrapped


def _positions_by_rank(positions: ArrayLike, dp_size: int, micro_batch_size: int) -> Int64s:
    """Returns the positions by id: those that data-parallel rank 0 would read first."""
    ordered = np.asarray(positions, dtype=np.int64)
    chunk = dp_size * micro_batch_size
    if ordered.ndim != 1 or not len(ordered) or len(ordered) % chunk:
        message = (
            f"expected positions in whole micro-batches of {micro_batch_size} on {dp_size} data-parallel ranks, "
            f"found shape {list(ordered.shape)}"
        )
        raise ConfigError(message)
    return ordered.reshape(-1, dp_size, micro_batch_size).swapaxes(0, 1).reshape(-1)


def _lengths_at(dataset: SizedDataset, positions: Int64s) -> tuple[Int64s, Int64s]:
    """Returns the lengths and the padded lengths of the samples at some positions."""
    outside = positions[(positions < 0) | (positions >= len(dataset))]
    if len(outside):
        message = f"expected positions below {len(dataset)}, found {int(outside[0])}"
        raise ConfigError(message)
    lengths, padded = dataset.lengths(positions), dataset.padded_lengths(positions)
    return np.asarray(lengths, dtype=np.int64), np.asarray(padded, dtype=np.int64)


def _read_packs(
    dataset: SizedDataset, positions: Int64s, promised: tuple[Int64s, Int64s], planned: Planned, place: Place
) -> list[Pack]:
    def read(number: int) -> SubSample:
        sample = _read(dataset, *(int(row[number]) for row in (positions, *promised)))
        return sample | {"padded_seq_len": int(planned.padded_lengths[number])}

    grouped = [[read(number) for number in ids] for ids in planned.ids(place.rank)]
    return build_packed_microbatches(grouped, place.device, cp_sizes=planned.cp_sizes(place))


def _metadata_of_packs(lengths: Int64s, planned: Planned, place: Place) -> list[Pack]:
    """Returns the packs of a stage without tokens, for which nothing is read."""
    mine = planned.ids(place.rank)
    sizes: Sequence[int | None] = planned.cp_sizes(place) or [None] * len(mine)
    return [
        pack_metadata(lengths[ids].tolist(), planned.padded_lengths[ids].tolist(), place.device, cp_size=size)
        for ids, size in zip(mine, sizes, strict=True)
    ]


def _read(dataset: SizedDataset, position: int, length: int, padded: int) -> SubSample:
    found = list(take_apart([dataset[position]]))
    lengths = [(sample["original_seq_len"], sample["padded_seq_len"]) for sample in found]
    if lengths != [(length, padded)]:
        message = (
            f"expected {length} tokens, padded to {padded}, in the sample at position {position}, "
            f"found (tokens, padded) {lengths}"
        )
        raise DatasetFormatError(message, hint="the dataset must give samples of the lengths that it says")
    return found[0]
