"""`megatron.core.datasets.data_schedule_utils`: exchanges sub-samples between ranks and builds packs.

The functions call `tokenloom.packing`, and accept the signatures of all tested Megatron versions. A sub-sample has the
tensors tokens, labels, position_ids and loss_mask without padding, and the integers original_seq_len and
padded_seq_len.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np
import torch

from tokenloom.distributed.meeting import Attempt
from tokenloom.distributed.ranks import current_ranks
from tokenloom.errors import ConfigError
from tokenloom.packing import batch as packs_of
from tokenloom.packing.batch import DTYPES, SubSample, context_parallel_indices, take_apart
from tokenloom.packing.groups import Channel, Place
from tokenloom.packing.pipeline import broadcast_to_stages, exchange_samples, gather_lengths, iterators_over

_EXCHANGED = {*DTYPES, "original_seq_len", "padded_seq_len", "dataset_id"}

NO_TARGETS = "packed global batch contains no sequences with supervised targets"
"""Megatron's error message for a global batch in which no token has loss."""


def get_batch_and_global_seqlens(
    data_iterator: Iterator[Any], num_microbatches: int, dp_group: Any
) -> tuple[list[SubSample], list[tuple[int, int]], Any, Any, list[int]]:
    """Reads `num_microbatches` items; returns their sub-samples, then the results of `get_global_seqlens_and_ids`.

    All `dp_group` ranks must call this. Raises `StopIteration` if the iterator ends, `ConfigError` without sub-samples.
    """
    items = [next(data_iterator) for _ in range(num_microbatches)]
    batch = unpack_batch([one for item in items for one in (item if isinstance(item, list) else [item])])
    lengths = torch.tensor([sample["padded_seq_len"] for sample in batch], dtype=torch.int32)
    gathered = get_global_seqlens_and_ids(lengths, dp_group)
    if not gathered[0]:
        raise ConfigError(NO_TARGETS)
    return batch, *gathered


def unpack_batch(batch: Sequence[Any]) -> list[SubSample]:
    """Splits packed samples into their sub-samples."""
    kinds = [{"cu_seqlens", "padded_seq_len"} & set(sample) for sample in batch if isinstance(sample, Mapping)]
    if len(set().union(*kinds)) > 1:
        raise ConfigError("a batch must have `padded_seq_len` or `cu_seqlens`, got both")
    return list(take_apart([list(batch)]))


def get_global_seqlens_and_ids(
    subsample_seqlens: Any, dp_group: Any
) -> tuple[list[tuple[int, int]], Any, Any, list[int]]:
    """Assigns ids to the sub-samples of all ranks and gathers all lengths; all data-parallel ranks call this together.

    Returns:
        pairs: list with (id, length) of each sub-sample of all ranks.
        ids: int32[num_subsamples] tensor, ids of this rank's sub-samples.
        offsets: int32[dp size + 1] tensor, the first id of each rank, then the total number of sub-samples.
        lengths: list of sub-sample lengths, indexed by id.
    """
    dp = Channel(dp_group)
    mine = subsample_seqlens.to("cpu", torch.int64).reshape(-1, 1).numpy()
    gathered = dp.all_gather_rows(mine, "lengths over DP")
    lengths: list[int] = np.concatenate(gathered)[:, 0].tolist()
    offsets = torch.tensor(np.cumsum([0, *map(len, gathered)]), dtype=torch.int32)
    ids = torch.arange(int(offsets[dp.rank]), int(offsets[dp.rank + 1]), dtype=torch.int32, device=dp.device)
    return list(enumerate(lengths)), ids, offsets, lengths


_unpack_batch, _get_global_seqlens_and_ids = unpack_batch, get_global_seqlens_and_ids  # Megatron's names


def reroute_samples_to_dcp_ranks(
    batch: Sequence[Mapping[str, Any]],
    global_ids_this_rank: Any,
    global_id_seqlens: Sequence[tuple[int, int]],
    sample_id_groups: Sequence[Sequence[Sequence[int]]],
    offsets: Any,
    dp_group: Any,
    tp_group: Any = None,
    dp_cp_group: Any = None,
    total_dcp_gpus: int | None = None,
    sample_keys: Collection[str] | None = None,
) -> dict[int, SubSample]:
    """Sends each sub-sample to the ranks that `sample_id_groups` names; returns this rank's sub-samples by id.

    Development versions after Megatron 0.20 have no `tp_group`, and pass `dp_cp_group` in its position.

    Raises:
        ConfigError: a sub-sample has an unsupported key.
    """
    del global_ids_this_rank, global_id_seqlens, offsets, total_dcp_gpus, sample_keys  # computed from the batches
    if dp_cp_group is None or isinstance(dp_cp_group, Collection):
        dp_cp_group = tp_group
    if unsupported := sorted({name for sample in batch for name in sample} - _EXCHANGED):
        message = f"exchange supports only the text sample schema, found unsupported sample keys {unsupported}"
        raise ConfigError(message, hint=f"remove all keys except {', '.join(DTYPES)}")
    dp, dp_cp = Channel(dp_group), Channel(dp_group if dp_cp_group is None else dp_cp_group)
    own = list(take_apart([list(batch)]))
    # the dp ranks of one context-parallel index hold the whole global batch, so the exchange stays in dp
    peers = [dp_cp.global_ranks.index(rank) for rank in dp.global_ranks] if dp.size > 1 else [dp_cp.rank]
    wanted = [np.unique([number for ranks in sample_id_groups for number in ranks[rank]]) for rank in peers]
    return exchange_samples(gather_lengths(Attempt(lambda: own), dp), wanted, dp)


def build_packed_microbatches(
    grouped_samples: Any, dev: Any, dcp_rank: int | None = None, device: Any = None, is_dynamic_cp: bool = False
) -> list[dict[str, Any]]:
    """Returns the pack of each microbatch, see `tokenloom.packing.build_packed_microbatches`.

    Megatron 0.20 passes (sub-samples of each microbatch, device). Later development versions pass (this rank's
    sub-samples by id, ids indexed `[microbatch][rank][k]`, rank index, device, whether packs get `local_cp_size`).
    """
    sizes = None
    if dcp_rank is not None:
        if is_dynamic_cp:
            sizes = [sum(ranks[dcp_rank][0] in ids for ids in ranks) for ranks in dev]
        grouped_samples = [[grouped_samples[number] for number in ranks[dcp_rank]] for ranks in dev]
        dev = device
    return packs_of.build_packed_microbatches(grouped_samples, dev, cp_sizes=sizes)


def broadcast_to_pp_group(
    new_samples: Any,
    num_micro_batches: Any,
    seqlen_sum_this_global_batch: Any,
    seqlen_squared_sum_this_global_batch: Any,
    pp_group: Any,
    dev: Any,
) -> tuple[Any, Any, Any, Any]:
    """Returns the first four arguments; middle stages get those of the first pipeline stage, but metadata for packs."""
    numbers = (num_micro_batches, seqlen_sum_this_global_batch, seqlen_squared_sum_this_global_batch)
    if Channel(pp_group).size <= 2:
        return new_samples, *numbers
    count, total, squares = (0 if number is None else int(number) for number in numbers)
    packs, sent = broadcast_to_stages(new_samples, (count, total, squares), Channel(pp_group), dev)
    return packs, sent[0], float(sent[1]), float(sent[2])


def broadcast_scalars(values: Sequence[Any], group: Any, dev: Any, dtype: Any = torch.float32) -> list[Any]:
    """Returns the numbers that rank 0 of the group passes as `values`; numbers up to 2**53 are exact.

    The other ranks must pass a list of the same length; the values in this list are ignored.
    """
    channel = Channel(group)
    if channel.size == 1:
        return list(values)
    wide = torch.float64 if dtype.is_floating_point else torch.int64
    given = values if channel.rank == 0 else [0] * len(values)
    received = channel.broadcast(torch.tensor(given, dtype=wide, device=dev), 0, "scalars over TP")
    return list(values) if channel.rank == 0 else received.tolist()


def broadcast_tensor(item: Any, src_rank: int, group: Any) -> None:
    """Broadcasts `item` in place from the global rank `src_rank` to all ranks of the group; does nothing for None."""
    channel = Channel(group)
    if item is not None and channel.size > 1:
        item.copy_(channel.broadcast(item, channel.global_ranks.index(src_rank), "tensors"))


def create_data_iterator(
    new_samples: Any,
    pp_group: Any = None,
    tp_group: Any = None,
    config: Any = None,
    vpp_needs_data: Sequence[bool] | None = None,
    is_dynamic_cp: bool = False,
) -> Any:
    """Returns an iterator over packs; with virtual pipeline stages, a list with one iterator per virtual stage.

    On tensor-parallel ranks other than 0, iterators are None. In Megatron 0.20, the first virtual stage of the first
    pipeline rank and the last virtual stage of the last rank get tokens; other stages get only metadata. Later
    development versions have no `pp_group`, and `vpp_needs_data` selects the stages that get tokens.
    """
    del is_dynamic_cp  # packs keep their `local_cp_size`
    needs: list[bool] | None = list(vpp_needs_data) if isinstance(vpp_needs_data, Sequence) else None
    if hasattr(tp_group, "virtual_pipeline_model_parallel_size"):  # order of arguments in the newest Megatron version
        needs = list(config) if config is not None else needs or []
        tp_group, config = pp_group, tp_group
    stages = config.virtual_pipeline_model_parallel_size or 1
    if tp_group is not None and tp_group.rank() != 0:
        return None if stages == 1 else [None] * stages
    if stages == 1:
        return rerunnable(iter(new_samples))
    if needs is None:
        pp = Channel(pp_group)
        needs = [False] * stages
        needs[0], needs[-1] = pp.rank == 0, pp.rank == pp.size - 1
        if not any(needs):
            return [rerunnable(iter(new_samples)) for _ in range(stages)]
    needs = needs or [False] * stages
    return [rerunnable(one) for one in iterators_over(new_samples, Channel(None), needs, in_list=True)]


def get_thd_partitioned_indices(cu_seqlens: Any, total_tokens: int, cp_size: int, cp_rank: int) -> Any:
    """Returns the indices, int32, of a context-parallel rank's tokens in a pack, as Transformer Engine computes them.

    Example:
        >>> get_thd_partitioned_indices(torch.tensor([0, 8, 12]), 12, 2, 1).tolist()
        [2, 3, 4, 5, 9, 10]
    """
    if int(cu_seqlens[-1]) != total_tokens:
        raise ConfigError(f"`cu_seqlens`: must end at {total_tokens} tokens, got {int(cu_seqlens[-1])}")
    return context_parallel_indices(cu_seqlens, cp_size=cp_size, cp_rank=cp_rank).to(torch.int32)


# --- state of Megatron in this process --------------------------------------------------------------------------------

_NAMES = ("dp", "cp", "dp_cp", "tp", "pp")


def groups_of_run(pg_collection: Any, *names: str) -> dict[str, Any]:
    """Returns the process groups dp, cp, dp_cp, tp and pp by name; all None for a single process.

    Reads `pg_collection`, which must have the groups `names`; if it is None, reads Megatron's parallel state.
    """
    if pg_collection is not None:
        missing = [name for name in names if not hasattr(pg_collection, name)]
        if missing:
            raise ConfigError(f"`pg_collection`: has no process group {', '.join(missing)}")
        return {name: getattr(pg_collection, name, None) for name in _NAMES}
    state = sys.modules.get("megatron.core.parallel_state")
    if state is not None and state.model_parallel_is_initialized():
        return {
            "dp": state.get_data_parallel_group(),
            "cp": state.get_context_parallel_group(),
            "dp_cp": state.get_data_parallel_group(with_context_parallel=True),
            "tp": state.get_tensor_model_parallel_group(),
            "pp": state.get_pipeline_model_parallel_group(),
        }
    if (ranks := current_ranks()) is not None and ranks.world_size > 1:
        hint = "initialize Megatron's `parallel_state`, or pass `pg_collection`"
        raise ConfigError(f"no process groups given for {ranks.world_size} ranks", hint=hint)
    return dict.fromkeys(_NAMES)


def place_of_run(pg_collection: Any, *names: str) -> Place:
    """Returns the `Place` of this process: the groups of `groups_of_run`, and the context-parallel groups by size."""
    groups = groups_of_run(pg_collection, *names)
    own = getattr(pg_collection, "cp_of_size", None)
    dp, cp, tp, pp = (Channel(groups[name]) for name in ("dp", "cp", "tp", "pp"))
    return Place(dp, cp, tp, pp, groups["dp_cp"], GroupsBySize() if own is None else own, own_device())


def own_device() -> Any:
    """Returns this process's GPU; the CPU if CUDA is not available."""
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


class GroupsBySize(Mapping[int, Any]):
    """Megatron's context-parallel groups that contain this rank; keys are group sizes."""

    _NAMES = ("get_dynamic_data_context_parallel_groups", "get_hybrid_data_context_parallel_groups")  # by version

    def __getitem__(self, size: int) -> Any:
        state = sys.modules.get("megatron.core.parallel_state")
        get = next((getattr(state, name) for name in self._NAMES if hasattr(state, name)), None)
        if get is None:
            raise KeyError(size)
        try:
            return get(group_size=size)
        except AssertionError as error:  # no such group
            raise KeyError(size) from error

    def __iter__(self) -> Iterator[int]:
        known = (2**power for power in range(20))
        return (size for size in known if size in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def global_arguments() -> Any:
    """Returns the parsed arguments of Megatron's trainer; raises `ConfigError` if Megatron is not initialized."""
    return _megatrons_global("megatron.training.global_vars", "_GLOBAL_ARGS", "`config`")


def current_num_microbatches() -> int:
    """Returns Megatron's current number of microbatches; raises `ConfigError` if Megatron is not initialized."""
    name = "_GLOBAL_NUM_MICROBATCHES_CALCULATOR"
    return int(_megatrons_global("megatron.core.num_microbatches_calculator", name, "`num_microbatches`").get())


def _megatrons_global(module: str, name: str, argument: str) -> Any:
    if (value := getattr(sys.modules.get(module), name, None)) is None:
        message = f"no {argument} given, and Megatron is not initialized"
        raise ConfigError(message, hint=f"pass {argument}, or initialize Megatron first")
    return value


def as_megatrons_params(params: Any) -> Any:
    """Converts attention parameters to Megatron's `PackedSeqParams` if the program has imported Megatron."""
    if "megatron.core" not in sys.modules:
        return params
    theirs, fields = _megatrons_params()
    values = {field.name: getattr(params, field.name) for field in dataclasses.fields(params)}
    made = theirs(**{name: value for name, value in values.items() if name in fields})
    if "dataset_ids" in values:
        made.dataset_ids = values["dataset_ids"]
    return made


def tells_gaps() -> bool:
    """Returns whether Megatron's attention accepts boundaries without padding; the development branch does."""
    return "megatron.core" in sys.modules and "cp_partition_mode" in _megatrons_params()[1]


def _megatrons_params() -> tuple[Any, set[str]]:
    """Returns Megatron's class `PackedSeqParams`, and the names of its fields."""
    theirs = import_module("megatron.core.packed_seq_params").PackedSeqParams
    return theirs, {field.name for field in dataclasses.fields(theirs)}


def rerunnable(iterator: Any) -> Any:
    """Wraps an iterator for Megatron's rerun state machine if the program has imported Megatron."""
    if iterator is None or "megatron.core" not in sys.modules:
        return iterator
    return import_module("megatron.core.rerun_state_machine").RerunDataIterator(iterator)
