"""Packed samples of all data-parallel ranks, cut into sub-samples that travel to the ranks of a hybrid plan."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from typing import Any

import torch

from tokenloom.distributed.collectives import Channel
from tokenloom.megatron.core.datasets.data_schedule_utils import (
    get_global_seqlens_and_ids,
    reroute_samples_to_dcp_ranks,
)
from tokenloom.megatron.core.datasets.parallel_groups import groups_of_run
from tokenloom.packing.hybrid import HybridCostBalancedScheduler
from tokenloom.packing.subsamples import DTYPES, take_apart

Ids = list[list[list[int]]]


class BalancedCPScheduler:
    """What plans for `HybridCPDataLoaderWrapper`: Megatron's own in programs that have loaded it, else ours.

    Args:
        max_seq_len_per_rank: tokens that a rank can hold.
        dp_cp_group: the ranks; None is this process alone.
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
        """Returns (lengths, ids) by microbatch and rank."""
        if self._theirs is not None:
            found: tuple[Ids, Ids] = self._theirs.get_groups_and_subsamples(sample_id_seqlens, config)
            return found
        scheduler = HybridCostBalancedScheduler(self.max_seq_len_per_rank, 1, self.total_hdp_gpus)
        ids, lengths = scheduler.get_groups_and_subsamples(sample_id_seqlens), dict(sample_id_seqlens)
        return [[[lengths[number] for number in rank] for rank in row] for row in ids], ids


class HybridCPDataLoaderWrapper:
    """An iterator over (sub-samples of this rank by id, ids by microbatch and rank), one for each global batch.

    Each item of the data iterator is a list of packed samples, mappings with `cu_seqlens`.

    Args:
        data_iterator: the iterator; None on tensor-parallel ranks that read nothing.
        config: has `max_seqlen_per_dp_cp_rank`.
        pg_collection: process groups dp, dp_cp and tp; None for those of Megatron's parallel state.
    """

    def __init__(self, data_iterator: Any, config: Any, pg_collection: Any = None) -> None:
        self.data_iterator = data_iterator
        self.config = config
        groups = groups_of_run(pg_collection, "dp", "dp_cp", "tp")
        self.dp_cp_group: Any = groups["dp_cp"]
        self.dp_group: Any = groups["dp"]
        self.tp_group: Any = groups["tp"]
        self.cp_balancing_scheduler: BalancedCPScheduler = BalancedCPScheduler(
            config.max_seqlen_per_dp_cp_rank, self.dp_cp_group
        )
        self.total_hdp_gpus: int = Channel(self.dp_cp_group).size

    def __iter__(self) -> HybridCPDataLoaderWrapper:
        return self

    def __next__(self) -> tuple[dict[int, dict[str, Any]] | None, Ids | None]:
        if self.data_iterator is None:
            return None, None
        batch = self.unpack_batch(next(self.data_iterator))
        counted = torch.tensor([len(sample["tokens"]) for sample in batch], dtype=torch.int32)
        lengths, offsets = self.get_global_seqlens(counted)
        pairs, ids = self.get_global_id_seqlens(len(batch), offsets, lengths)
        _, groups = self.cp_balancing_scheduler.get_groups_and_subsamples(pairs, self.config)
        return self.reroute_samples_to_hdp_ranks(batch, ids, pairs, groups, offsets), groups

    def get_global_seqlens(self, subsample_seqlens: Any) -> tuple[list[int], Any]:
        """Returns the lengths of all sub-samples, and where those of each data-parallel rank begin. Collective."""
        _, _, offsets, lengths = get_global_seqlens_and_ids(subsample_seqlens, self.dp_group)
        return lengths, offsets[:-1]

    def get_global_id_seqlens(
        self, num_local_subsamples: int, offsets: Any, seqlens_gathered: Sequence[int]
    ) -> tuple[list[tuple[int, int]], Any]:
        """Returns (id, length) of all sub-samples, and int32 ids of this rank's."""
        first = int(offsets[Channel(self.dp_group).rank])
        return list(enumerate(seqlens_gathered)), torch.arange(first, first + num_local_subsamples, dtype=torch.int32)

    def reroute_samples_to_hdp_ranks(
        self, batch: Any, global_ids_this_rank: Any, global_id_seqlens: Any, sample_id_groups: Any, offsets: Any
    ) -> dict[int, dict[str, Any]]:
        """Returns the sub-samples that this rank works on by id, with all tensors. Collective."""
        bounds = torch.cat([offsets, torch.tensor([len(global_id_seqlens)], dtype=offsets.dtype)])
        plan = global_ids_this_rank, global_id_seqlens, sample_id_groups, bounds
        found = reroute_samples_to_dcp_ranks(batch, *plan, self.dp_group, self.dp_cp_group)
        return {number: {name: sample[name] for name in DTYPES} for number, sample in found.items()}

    def unpack_batch(self, batch: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Returns the sub-samples of packed samples: what each of their tensors has between two boundaries."""
        return [{name: sample[name] for name in DTYPES} for sample in take_apart(batch)]
