"""`megatron.core.datasets.data_schedule`: assigns the sub-samples of a global batch to packs and ranks.

Process groups, settings and the number of microbatches default to those of an initialized Megatron.
"""

from __future__ import annotations

import enum
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import torch

from tokenloom.errors import ConfigError
from tokenloom.megatron.core.datasets.data_schedule_utils import (  # noqa: F401
    NO_TARGETS,
    as_megatrons_params,
    broadcast_scalars,
    broadcast_tensor,
    broadcast_to_pp_group,
    build_packed_microbatches,
    create_data_iterator,
    current_num_microbatches,
    get_batch_and_global_seqlens,
    get_global_seqlens_and_ids,
    global_arguments,
    groups_of_run,
    own_device,
    place_of_run,
    reroute_samples_to_dcp_ranks,
    rerunnable,
    tells_gaps,
)
from tokenloom.packing import balanced, base_scheduler, hybrid, schedulers
from tokenloom.packing.batch import DTYPES, batch_in, padding_mask_of, take_apart
from tokenloom.packing.config import PackingConfig
from tokenloom.packing.dynamic import DefaultDynamicCPScheduler as _DefaultDynamicCPScheduler
from tokenloom.packing.groups import Channel, place_in
from tokenloom.packing.pack_plan import PackPlan
from tokenloom.packing.pipeline import run_pipeline

Ids = list[list[list[int]]]

Wrapped = tuple[Any, int, float, float]
"""(one or several iterators or None, number of microbatches, sum of padded lengths, sum of squared padded lengths)."""


# --- schedulers -------------------------------------------------------------------------------------------------------


class _RecordingIterator:
    """An iterator that records whether the wrapped iterator has ended."""

    def __init__(self, iterator: Any) -> None:
        self._iterator = iterator
        self.ended = False

    def __next__(self) -> Any:
        try:
            return next(self._iterator)
        except StopIteration:
            self.ended = True
            raise


class BasePackingScheduler(base_scheduler.BasePackingScheduler):
    """The base class of packing schedulers for Megatron's training loop.

    To add a scheduler, override `get_groups_and_subsamples` or `run` in a subclass, and add the subclass to
    `scheduler_map`. See `tokenloom.packing.BasePackingScheduler` for arguments and an example.
    """

    def plan(self, lengths: Any) -> PackPlan:
        """Returns the plan of a global batch, see `tokenloom.packing.BasePackingScheduler.plan`."""
        if not len(lengths):
            raise ConfigError(NO_TARGETS)
        return super().plan(lengths)

    def run(
        self,
        data_iterator: Any,
        num_microbatches: int,
        dp_group: Any,
        tp_group: Any,
        pp_group: Any,
        dp_cp_group: Any,
        dev: Any,
        config: Any,
    ) -> Wrapped:
        """Packs one global batch with this scheduler, see `wrap_data_iterator`; all ranks must call this together."""
        place = place_in(dp_group, tp_group, pp_group, dp_cp_group, dev)
        is_list = isinstance(data_iterator, list)
        iterators = data_iterator if is_list else [data_iterator]
        recording = [None if one is None else _RecordingIterator(one) for one in iterators]
        try:
            packs, count, total, squares = run_pipeline(
                self, place, recording if is_list else recording[0], num_microbatches, config, sums_padding=True
            )
        except Exception as error:
            if any(one is not None and one.ended for one in recording):
                raise StopIteration from error
            raise
        iterators = packs if isinstance(packs, list) else [packs]
        if self.is_dynamic_cp:  # every pack needs `local_cp_size`, even if all sizes are equal
            ranks = {"local_cp_size": place.cp.size}
            iterators = [None if one is None else iter([ranks | pack for pack in one]) for one in iterators]
        iterators = [rerunnable(one) for one in iterators]
        stages = config.virtual_pipeline_model_parallel_size or 1
        return iterators if stages > 1 else iterators[0], count, float(total), float(squares)


class DpBalancedScheduler(BasePackingScheduler, schedulers.DpBalancedScheduler):
    """A scheduler that fills packs with sub-samples in input order."""


class DefaultDynamicCPScheduler(DpBalancedScheduler, _DefaultDynamicCPScheduler):
    """A scheduler that chooses the number of context-parallel ranks of each pack."""

    _plan = _DefaultDynamicCPScheduler._plan

    @property
    def max_seq_len_per_rank(self) -> int:
        """Maximum number of tokens of a pack that each rank gets."""
        return self.max_seqlen_per_dp_cp_rank

    @property
    def total_hdp_gpus(self) -> int:
        """Number of dp × cp ranks."""
        return self.num_ranks


class CostBalancedScheduler(BasePackingScheduler, balanced.CostBalancedScheduler):
    """A scheduler that makes packs of about equal cost; not in Megatron."""


class HybridCostBalancedScheduler(BasePackingScheduler, hybrid.HybridCostBalancedScheduler):
    """A scheduler like `CostBalancedScheduler` that also chooses how many ranks share each pack; not in Megatron."""


class PackingSchedulerEnum(enum.StrEnum):
    """The names of the schedulers in `scheduler_map`."""

    DP_BALANCED = "dp_balanced"
    DEFAULT_DYNAMIC_CP = "default_dynamic_cp"
    COST_BALANCED = "cost_balanced"
    HYBRID_COST_BALANCED = "hybrid_cost_balanced"


scheduler_map: dict[str, type[base_scheduler.BasePackingScheduler]] = {
    PackingSchedulerEnum.DP_BALANCED: DpBalancedScheduler,
    PackingSchedulerEnum.DEFAULT_DYNAMIC_CP: DefaultDynamicCPScheduler,
    PackingSchedulerEnum.COST_BALANCED: CostBalancedScheduler,
    PackingSchedulerEnum.HYBRID_COST_BALANCED: HybridCostBalancedScheduler,
}
"""The schedulers by name; programs may add entries."""


def wrap_data_iterator(
    data_iterator: Any, config: Any = None, num_microbatches: int | None = None, pg_collection: Any = None
) -> Wrapped:
    """Packs one global batch, see `tokenloom.packing.wrap_data_iterator`; all ranks must call this together.

    Args:
        data_iterator: iterator over samples; needs only `__next__`.
        config: packing settings; None for the arguments of Megatron's trainer.
        num_microbatches: number of samples to read; None for Megatron's current number of microbatches.
        pg_collection: process groups; None for those of Megatron's parallel state.

    Returns:
        (iterator over packs, number of microbatches, sum of padded lengths, sum of squared padded lengths); both sums
        are over the sub-samples of the global batch.

    Raises:
        ConfigError: the scheduler is unknown or fails, or an argument is missing.
        StopIteration: this rank's iterator ended.
    """
    config = global_arguments() if config is None else config
    num_microbatches = current_num_microbatches() if num_microbatches is None else num_microbatches
    groups = groups_of_run(pg_collection, "dp", "dp_cp", "tp", "pp")
    dp, tp, pp, dp_cp = (groups[name] for name in ("dp", "tp", "pp", "dp_cp"))
    place = place_in(dp, tp, pp, dp_cp, own_device())
    name = config.sequence_packing_scheduler
    if name not in scheduler_map and isinstance(name, str) and name.lower() in scheduler_map:
        name = name.lower()
    scheduler = schedulers.make_scheduler(
        config, cp_size=place.cp.size, dp_size=place.dp.size, schedulers=scheduler_map, name=name
    )
    wrapped: Wrapped = scheduler.run(data_iterator, num_microbatches, dp, tp, pp, dp_cp, place.device, config)
    return wrapped


def _get_scheduler_max_real_num_seqs(config: Any) -> int | None:
    """Returns the maximum number of sub-samples in a pack; None for no limit."""
    return PackingConfig.of(config).max_num_seqs


# --- hybrid context parallelism ---------------------------------------------------------------------------------------


class BalancedCPScheduler:
    """The scheduler of `HybridCPDataLoaderWrapper`; plans like Megatron or, if Megatron is not imported, by cost.

    Args:
        max_seq_len_per_rank: maximum tokens per rank.
        dp_cp_group: process group of all dp × cp ranks; None for a single process.
    """

    def __init__(self, max_seq_len_per_rank: int, dp_cp_group: Any) -> None:
        self.max_seq_len_per_rank = max_seq_len_per_rank
        self.total_hdp_gpus: int = Channel(dp_cp_group).size
        self._theirs: Any = None
        if "megatron.core" in sys.modules:
            module = import_module("megatron.core.pipeline_parallel.hybrid_cp_schedule")
            self._theirs = module.BalancedCPScheduler(max_seq_len_per_rank, dp_cp_group)

    def get_groups_and_subsamples(
        self, sample_id_seqlens: Sequence[tuple[int, int]], config: Any = None
    ) -> tuple[Ids, Ids]:
        """Returns (lengths, ids) of the sub-samples, both indexed `[microbatch][rank][k]`."""
        if self._theirs is not None:
            groups: tuple[Ids, Ids] = self._theirs.get_groups_and_subsamples(sample_id_seqlens, config)
            return groups
        scheduler = hybrid.HybridCostBalancedScheduler(self.max_seq_len_per_rank, 1, self.total_hdp_gpus)
        ids, lengths = scheduler.get_groups_and_subsamples(sample_id_seqlens), dict(sample_id_seqlens)
        return [[[lengths[number] for number in rank] for rank in row] for row in ids], ids


class HybridCPDataLoaderWrapper:
    """An iterator over global batches for hybrid context parallelism; all ranks must call `next` together.

    Each item is (this rank's sub-samples by id, ids of all sub-samples as `[microbatch][rank][k]`), or (None, None)
    if `data_iterator` is None.

    Args:
        data_iterator: iterator over lists of packed samples, which are mappings with `cu_seqlens`; None on
            tensor-parallel ranks that read no data.
        config: object with the attribute `max_seqlen_per_dp_cp_rank`.
        pg_collection: process groups dp, dp_cp and tp; None for those of Megatron's parallel state.
    """

    def __init__(self, data_iterator: Any, config: Any, pg_collection: Any = None) -> None:
        self.data_iterator = data_iterator
        self.config = config
        groups = groups_of_run(pg_collection, "dp", "dp_cp", "tp")
        self.dp_cp_group: Any = groups["dp_cp"]
        self.dp_group: Any = groups["dp"]
        self.tp_group: Any = groups["tp"]
        scheduler = BalancedCPScheduler(config.max_seqlen_per_dp_cp_rank, self.dp_cp_group)
        self.cp_balancing_scheduler: BalancedCPScheduler = scheduler
        self.total_hdp_gpus: int = scheduler.total_hdp_gpus

    def __iter__(self) -> HybridCPDataLoaderWrapper:
        return self

    def __next__(self) -> tuple[dict[int, dict[str, Any]] | None, Ids | None]:
        if self.data_iterator is None:
            return None, None
        batch = [{name: sample[name] for name in DTYPES} for sample in take_apart(next(self.data_iterator))]
        lengths = torch.tensor([len(sample["tokens"]) for sample in batch], dtype=torch.int32)
        pairs, ids, offsets, _ = get_global_seqlens_and_ids(lengths, self.dp_group)
        _, plan = self.cp_balancing_scheduler.get_groups_and_subsamples(pairs, self.config)
        own = reroute_samples_to_dcp_ranks(batch, ids, pairs, plan, offsets, self.dp_group, self.dp_cp_group)
        return {number: {name: sample[name] for name in DTYPES} for number, sample in own.items()}, plan


# --- batches ----------------------------------------------------------------------------------------------------------


def get_batch_on_this_rank_for_sequence_packing(
    data_iterator: Any,
    vpp_size: int | None = None,
    mtp_on_this_rank: bool = False,
    vp_stage: int | None = None,
    pg_collection: Any = None,
    config: Any = None,
    dynamic_cp: bool = False,
    return_context_parallel_batch: bool = False,
) -> Any:
    """Returns this rank's part of the next microbatch; all ranks of a tensor-parallel group must call this together.

    See `tokenloom.packing.get_batch_on_this_rank_for_sequence_packing`. If the program has imported Megatron, the
    result has Megatron's `PackedSeqParams`. With `dynamic_cp`, every pack needs `local_cp_size`.
    `return_context_parallel_batch` is not supported and must be False.
    """
    if isinstance(pg_collection, bool):  # order of arguments in the newest Megatron version
        dynamic_cp, pg_collection, config = pg_collection, config, dynamic_cp or None
    if return_context_parallel_batch:
        message = "`return_context_parallel_batch`: must be False, got True"
        raise ConfigError(message, hint="pass False, and set `cp_partition_mode` in `config`")
    place = place_of_run(pg_collection, "tp", "pp", "cp")
    stages = None if vp_stage is None else vpp_size
    *tensors, params, mask = batch_in(
        place, data_iterator, stages, vp_stage, mtp=mtp_on_this_rank, config=config, tells_gaps=tells_gaps()
    )
    if dynamic_cp and params.local_cp_size is None:
        message = "`dynamic_cp`: a pack has no `local_cp_size`"
        raise ConfigError(message, hint="use a scheduler with `is_dynamic_cp = True`")
    return *tensors, as_megatrons_params(params), mask


def _build_thd_padding_mask(cu_seqlens: Any, cu_seqlens_padded: Any) -> Any:
    """Returns a pack's mask, bool[num_tokens], True at padding, from sequence boundaries without and with padding."""
    if len(cu_seqlens_padded) < 2:  # no sequence
        return torch.ones(int(cu_seqlens_padded[-1]), dtype=torch.bool, device=cu_seqlens.device)
    return padding_mask_of(cu_seqlens, cu_seqlens_padded)


def _sanitize_thd_padding_values(batch: dict[str, Any], padding_mask: Any) -> None:
    """Replaces each tensor of a batch by a copy with 0 at padding; all tensors must have the shape of the mask."""
    for name in DTYPES:
        if (tensor := batch.get(name)) is None:
            continue
        if tensor.shape != padding_mask.shape:
            raise ConfigError(f"expected `{name}` of shape {list(padding_mask.shape)}, found {list(tensor.shape)}")
        batch[name] = tensor.masked_fill(padding_mask, 0)
