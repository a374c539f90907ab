"""One global batch from the iterators of all ranks to packs on the ranks that work on them, by communication.

Fetch, gather the lengths, plan, exchange the sub-samples, pack, and tell the ranks that read nothing. No rank returns
before all have what they need: a rank that fails or dies in between fails all, with its cause.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tokenloom.distributed.building import do_together
from tokenloom.distributed.meeting import Attempt
from tokenloom.errors import ConfigError
from tokenloom.packing.batch import Pack, build_packed_microbatches, refuse_iterator
from tokenloom.packing.config import PackingSettings, stages_with_tokens
from tokenloom.packing.exchange import (
    GlobalBatch,
    Wrapped,
    broadcast_scalars,
    broadcast_to_pp_group,
    create_data_iterator,
    exchange_samples,
    fetch,
    gather_lengths,
)
from tokenloom.packing.groups import Place
from tokenloom.packing.plan import Int64s
from tokenloom.packing.planning import Planned, PlansPacks, describe_lengths, describe_plan, plan_global_batch, sums_of


def run_pipeline(
    scheduler: Callable[[], PlansPacks],
    place: Place,
    data_iterator: Any,
    num_microbatches: int,
    config: PackingSettings,
    *,
    sums_padding: bool = False,
) -> Wrapped:
    """Schedules and exchanges one global batch, as `wrap_data_iterator` says; all ranks of the run call this together.

    Args:
        scheduler: makes the scheduler; called on the ranks that plan.
        place: the process groups.
        data_iterator: an iterator, a list of one for each virtual stage, or None.
        num_microbatches: how many items are taken from the iterator.
        config: settings.
        sums_padding: whether the sums are those of padded lengths, as the data say them.
    """
    stages = stages_with_tokens(config, pp_rank=place.pp.rank, pp_size=place.pp.size)

    def schedule() -> tuple[GlobalBatch, Int64s, Planned] | None:
        if place.tp.rank != 0:
            refuse_iterator(place, data_iterator)
            return None
        if not any(stages):
            return None
        plans = scheduler()
        needed = plans.get_required_sample_keys()
        fetching = Attempt(lambda: fetch(_iterator_of_stage(data_iterator, stages), num_microbatches, needed))
        fetched, sources = gather_lengths(fetching, place.dp)
        return fetched, sources, plan_global_batch(fetched.padded_seqlens, config, place, plans)

    def exchange() -> Wrapped:
        packs, scalars = None, (0, 0, 0)
        if scheduled is not None:
            fetched, sources, planned = scheduled
            packs = _exchange_and_pack(fetched, sources, planned, place)
            scalars = (
                planned.plan.num_microbatches,
                *sums_of(fetched.padded_seqlens if sums_padding else fetched.original_seqlens),
            )
        if place.tp.rank == 0:
            packs, *told = broadcast_to_pp_group(packs, *scalars, place.pp.group, place.device)
            scalars = (told[0], told[1], told[2])
        count, total, squares = broadcast_scalars(scalars, place.tp.group, place.device)
        return create_data_iterator(packs, place.tp.group, config, stages), count, total, squares

    scheduled = do_together(
        "scheduling a global batch",
        schedule,
        break_off=place.break_off,
        breaks=(),  # who fails to fetch says so in the gathering; plans fail on all alike
        compare=lambda result: None if result is None else _describe(result[0], result[2]),
    )
    return do_together(
        "exchanging sub-samples",
        exchange,
        break_off=place.break_off,
        compare=lambda result: f"{result[1]} microbatches of {result[2]} tokens",
    )


def _describe(fetched: GlobalBatch, planned: Planned) -> str:
    """Returns a text that is the same where ranks work from the same lengths by the same plan."""
    return f"{describe_lengths(fetched.original_seqlens)}, as {describe_plan(planned.plan)}"


def _iterator_of_stage(data_iterator: Any, stages: Sequence[bool]) -> Any:
    """Returns the iterator that this rank reads: of its first virtual stage with tokens, else the first it has."""
    given = data_iterator
    if isinstance(given, list):
        if len(given) != len(stages):
            message = f"expected a list of {len(stages)} data iterators, one per virtual stage, found {len(given)}"
            raise ConfigError(message)
        have = [stage for stage, iterator in enumerate(given) if iterator is not None]
        stage = next((stage for stage in have if stages[stage]), have[0] if have else None)
        given = None if stage is None else given[stage]
    if given is None:
        message = "expected a data iterator on rank 0 of a tensor-parallel group on a stage with tokens, found None"
        raise ConfigError(message, hint="build the data on the first and the last stage of the pipeline")
    return given


def _exchange_and_pack(fetched: GlobalBatch, sources: Int64s, planned: Planned, place: Place) -> list[Pack]:
    lane = [dp_rank * place.cp.size + place.cp.rank for dp_rank in range(place.dp.size)]
    wanted = [np.unique(np.concatenate(planned.ids(rank))) for rank in lane]
    samples = exchange_samples(fetched, sources, wanted, place.dp)
    grouped = [
        [samples[number] | {"padded_seq_len": int(planned.padded_lengths[number])} for number in ids.tolist()]
        for ids in planned.ids(place.rank)
    ]
    return build_packed_microbatches(grouped, place.device, cp_sizes=planned.cp_sizes(place))
