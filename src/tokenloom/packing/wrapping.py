"""Packs of a global batch from the iterators of all ranks: what a training loop calls once per step."""

from __future__ import annotations

from typing import Any, cast

from tokenloom.packing.base import RUN_PIPELINE
from tokenloom.packing.config import PackingSettings
from tokenloom.packing.exchange import Wrapped
from tokenloom.packing.groups import place_of
from tokenloom.packing.pipeline import run_pipeline
from tokenloom.packing.schedulers import make_scheduler, scheduler_map


def wrap_data_iterator(
    data_iterator: Any, config: PackingSettings, num_microbatches: int, pg_collection: Any = None
) -> Wrapped:
    """Schedules and exchanges one global batch; all ranks of the run must call this together.

    The sub-samples of all data-parallel ranks together are planned anew, and each goes to the ranks that work on it.
    Which are in the global batch does not change. A sub-sample is padded to a multiple of 2 × the ranks that share it,
    beyond the padding that its iterator says it has.

    The scheduler that `config` names in `scheduler_map` decides: its `get_groups_and_subsamples` what each rank works
    on, its `run` all of it.

    Args:
        data_iterator: yields what `take_apart` describes: mappings with tokens, labels, loss_mask, position_ids,
            original_seq_len and padded_seq_len, or lists of them. Only rank 0 of a tensor-parallel group on the first
            and the last pipeline stage has one (and on a stage with multi-token prediction), with virtual stages in a
            list of one per stage. It is the same on context-parallel ranks. What a middle stage holds is not read.
            It needs `__next__` only.
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
    named = scheduler_map.get(config.sequence_packing_scheduler)
    if named is None or named.run is RUN_PIPELINE:
        return run_pipeline(
            lambda: make_scheduler(config, cp_size=place.cp.size, dp_size=place.dp.size),
            place,
            data_iterator,
            num_microbatches,
            config,
        )
    scheduler = make_scheduler(config, cp_size=place.cp.size, dp_size=place.dp.size)
    groups = (place.dp.group, place.tp.group, place.pp.group, place.dp_cp_group)
    return cast("Wrapped", scheduler.run(data_iterator, num_microbatches, *groups, place.device, config))
