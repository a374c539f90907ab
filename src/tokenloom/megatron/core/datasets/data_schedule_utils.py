"""`megatron.core.datasets.data_schedule_utils`: how sub-samples travel between ranks, one step at a time.

What schedulers that run the pipeline themselves call. Where versions of the reference differ in what a function takes,
the forms of both are taken.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch

from tokenloom.distributed.collectives import Channel
from tokenloom.errors import ConfigError
from tokenloom.megatron.core.datasets.dynamic_cp import (
    align_sample_id_groups,
    dcp_gpus_needed,
    is_newest,
    next_hdp_group_packing_aware,
)
from tokenloom.megatron.core.datasets.parallel_groups import rerunnable
from tokenloom.packing import exchange
from tokenloom.packing.context_parallel import context_parallel_indices, contiguous_indices
from tokenloom.packing.exchange import broadcast_tensor
from tokenloom.packing.static_shapes import CONTIGUOUS, ZIGZAG

__all__ = [
    "align_sample_id_groups",
    "broadcast_scalars",
    "broadcast_tensor",
    "broadcast_to_pp_group",
    "build_packed_microbatches",
    "create_data_iterator",
    "dcp_gpus_needed",
    "get_batch_and_global_seqlens",
    "get_cp_slice_for_thd",
    "get_thd_partitioned_indices",
    "next_hdp_group_packing_aware",
    "reroute_samples_to_dcp_ranks",
]

Sample = dict[str, Any]

_PER_TOKEN = ("tokens", "labels", "loss_mask", "position_ids")
_SCALARS = ("original_seq_len", "padded_seq_len")

NO_TARGETS = "packed global batch contains no sequences with supervised targets"
"""What is wrong with a global batch without a sub-sample that has loss."""


def get_batch_and_global_seqlens(
    data_iterator: Iterator[Any], num_microbatches: int, dp_group: Any
) -> tuple[list[Sample], list[tuple[int, int]], Any, Any, list[int]]:
    """Returns the sub-samples of the next items, and the padded lengths of all data-parallel ranks. Collective.

    Returns:
        (sub-samples, (id, length) of all, int32 ids of this rank's, int32[dp size + 1] where those of each rank begin,
        lengths by id).

    Raises:
        StopIteration: the iterator ended.
        ValueError: an item is neither a mapping nor a list, or no rank has a sub-sample.
    """
    items = [next(data_iterator) for _ in range(num_microbatches)]
    batch: list[Sample] = []
    for item in items:
        if not isinstance(item, (Mapping, list)):
            message = f"expected mappings, or lists of them, from the data iterator, found {type(item).__name__}"
            raise ConfigError(message)
        batch += item if isinstance(item, list) else [cast("Sample", item)]
    batch = _unpack_batch(batch)
    lengths = torch.cat([torch.empty(0), *(sample["padded_seq_len"].reshape(-1).cpu() for sample in batch)])
    gathered = get_global_seqlens_and_ids(lengths.to(torch.int32), dp_group)
    if not gathered[0]:
        raise ConfigError(NO_TARGETS)
    return batch, *gathered


def _unpack_batch(batch: list[Sample]) -> list[Sample]:
    """Returns the sub-samples of samples: those between the boundaries `cu_seqlens`, or each sample as it is.

    The newest version leaves out those between boundaries that have no loss.

    Raises:
        ConfigError: some samples have boundaries and some lengths, or one has more than one row.
    """
    if not batch:
        return batch
    is_unpacked = "padded_seq_len" in batch[0]
    for number, sample in enumerate(batch):
        if ("padded_seq_len" in sample) != is_unpacked or ("cu_seqlens" in sample) == is_unpacked:
            message = (
                f"expected either `padded_seq_len` in all samples or `cu_seqlens` in all, "
                f"found {', '.join(sample)} in sample {number}"
            )
            raise ConfigError(message)
        for name, value in sample.items():
            if value.ndim == 2:
                if value.shape[0] != 1:
                    message = f"expected one row as `{name}` of sample {number}, found shape {tuple(value.shape)}"
                    raise ConfigError(message, hint="packing takes micro-batches of size 1")
                sample[name] = value[0]
    if is_unpacked:
        return [
            {**sample, "original_seq_len": sample.get("original_seq_len", sample["padded_seq_len"].clone())}
            for sample in batch
        ]
    unpacked = []
    drops = is_newest()
    for sample in batch:
        bounds = sample["cu_seqlens"].tolist()
        for start, stop in itertools.pairwise(bounds):
            if stop > start and not (drops and not sample["loss_mask"][start:stop].any()):
                length = torch.tensor([stop - start], device=sample["tokens"].device)
                own = {name: sample[name][start:stop] for name in _PER_TOKEN}
                unpacked.append({**own, "original_seq_len": length, "padded_seq_len": length.clone()})
    return unpacked


def get_global_seqlens_and_ids(
    subsample_seqlens: Any, dp_group: Any
) -> tuple[list[tuple[int, int]], Any, Any, list[int]]:
    """Returns what ids the sub-samples of all data-parallel ranks have, and their lengths. Collective."""
    dp = Channel(dp_group)
    mine = subsample_seqlens.to("cpu", torch.int64).reshape(-1, 1).numpy()
    gathered = dp.all_gather_rows(mine, "lengths over DP")
    lengths: list[int] = np.concatenate(gathered)[:, 0].tolist()
    offsets = torch.tensor(np.cumsum([0, *map(len, gathered)]), dtype=torch.int32)
    ids = torch.arange(int(offsets[dp.rank]), int(offsets[dp.rank + 1]), dtype=torch.int32, device=dp.device)
    return list(enumerate(lengths)), ids, offsets, lengths


_get_global_seqlens_and_ids = get_global_seqlens_and_ids
"""The reference's name."""


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
) -> dict[int, Sample]:
    """Returns the sub-samples of this rank by id, all their tensors sent to where they are worked on. Collective.

    Args:
        batch: this rank's sub-samples; in the newest version maybe none.
        global_ids_this_rank: their ids.
        global_id_seqlens: (id, length) of all.
        sample_id_groups: ids by microbatch and rank of dp_cp.
        offsets: where the ids of each data-parallel rank begin.
        dp_group: the ranks that exchange.
        tp_group: not needed; where the next two are left out, this is dp_cp_group.
        dp_cp_group: whose ranks the plan names.
        total_dcp_gpus: not needed.
        sample_keys: what sub-samples have, where this rank has none; by default all that are known.

    Raises:
        ConfigError: a tensor is longer or shorter than its sub-sample, they do not all have the same, or in the newest
            version others than those of text.
    """
    del total_dcp_gpus
    if isinstance(dp_cp_group, Collection):  # the newest version's order
        sample_keys, dp_cp_group = dp_cp_group, None
    for number, sample in enumerate(batch):
        if set(sample) != set(batch[0]):
            message = f"Sample {number} keys {sorted(sample)} do not match sample 0 keys {sorted(batch[0])}"
            raise ConfigError(message)
    names = _names_to_send(batch, sample_keys)
    groups = dp_group, tp_group if dp_cp_group is None else dp_cp_group
    return send_samples(batch, global_ids_this_rank, global_id_seqlens, sample_id_groups, offsets, *groups, names)


def send_samples(
    batch: Sequence[Mapping[str, Any]],
    global_ids_this_rank: Any,
    global_id_seqlens: Sequence[tuple[int, int]],
    sample_id_groups: Sequence[Sequence[Sequence[int]]],
    offsets: Any,
    dp_group: Any,
    dp_cp_group: Any,
    names: Sequence[str],
) -> dict[int, Sample]:
    """Returns what `reroute_samples_to_dcp_ranks` does, of the tensors of these names. Collective."""
    dp, dp_cp = Channel(dp_group), Channel(dp_cp_group)
    lane = [dp_cp.global_ranks.index(rank) for rank in dp.global_ranks] if dp.size > 1 else [dp_cp.rank]
    wanted = [sorted({number for ranks in sample_id_groups for number in ranks[rank]}) for rank in lane]
    starts, lengths = [int(start) for start in offsets], dict(global_id_seqlens)
    place = {int(number): at for at, number in enumerate(global_ids_this_rank)}
    found: dict[int, Sample] = {number: {} for number in wanted[dp.rank]}
    for name in names:
        size_of = dict.fromkeys(lengths, 1) if name in _SCALARS else lengths
        dtype = _dtype_of(name, batch)
        pieces = {number: batch[at][name].reshape(-1).to(dtype) for number, at in place.items()}
        for number, piece in pieces.items():
            if len(piece) != size_of[number]:
                message = f"expected {size_of[number]} elements as `{name}` of sub-sample {number}, found {len(piece)}"
                raise ConfigError(message, hint="pad the tensors of a sub-sample to its `padded_seq_len`")
        width = dtype.itemsize
        nothing = torch.empty(0, dtype=dtype)
        outgoing = [torch.cat([nothing, *(pieces[n] for n in ids if n in pieces)]).view(torch.uint8) for ids in wanted]
        owned = [[n for n in wanted[dp.rank] if starts[r] <= n < starts[r + 1]] for r in range(dp.size)]
        sizes = [width * sum(size_of[number] for number in ids) for ids in owned]
        for ids, data in zip(owned, dp.all_to_all(outgoing, sizes, f"{name} over DP"), strict=True):
            for number, piece in zip(ids, data.view(dtype).split([size_of[n] for n in ids]), strict=True):
                found[number][name] = piece
    return found


def _names_to_send(batch: Sequence[Mapping[str, Any]], sample_keys: Collection[str] | None) -> list[str]:
    """Returns which tensors travel, in an order that all ranks have alike, whether they have sub-samples or not."""
    known = [*_PER_TOKEN, *_SCALARS]
    given = list(batch[0]) if batch else [name for name in known if sample_keys is None or name in sample_keys]
    if not is_newest():
        return given
    if unsupported := sorted(set(given) - set(known)):
        message = f"exchange supports only the text sample schema, found unsupported sample keys {unsupported}"
        raise ConfigError(message, hint=f"leave them out: {', '.join(known)} travel")
    return [name for name in known if name in given]


def _dtype_of(name: str, batch: Sequence[Mapping[str, Any]]) -> torch.dtype:
    """Returns the dtype in which a tensor travels; what the newest version has, all ranks know without a sub-sample."""
    if not batch or (is_newest() and name in _SCALARS):
        return torch.float32 if name == "loss_mask" else torch.int64
    dtype: torch.dtype = batch[0][name].dtype
    return dtype


def build_packed_microbatches(
    grouped_samples: Any,
    dev: Any,
    dcp_rank: int | None = None,
    device: Any = None,
    is_dynamic_cp: bool = False,  # noqa: FBT001, FBT002  the reference's parameters
) -> list[Sample]:
    """Returns the pack of each microbatch: its sub-samples one after the other, with whatever padding they have.

    Args:
        grouped_samples: the sub-samples of each microbatch; or all of this rank by id, and then:
        dev: the device; or the ids by microbatch and rank.
        dcp_rank: this rank, in that form.
        device: the device, in that form.
        is_dynamic_cp: whether packs say how many ranks share them, in that form.
    """
    if dcp_rank is None:
        return [_pack_samples(samples, dev) for samples in grouped_samples]
    packs = []
    for ranks in dev:
        pack = _pack_samples([grouped_samples[number] for number in ranks[dcp_rank]], device)
        if is_dynamic_cp:
            sharing = sum(ranks[dcp_rank][0] in ids for ids in ranks)
            pack["local_cp_size"] = torch.tensor(sharing, dtype=torch.int32, device=device)
        packs.append(pack)
    return packs


def _pack_samples(samples: Sequence[Mapping[str, Any]], dev: Any) -> Sample:
    padded, original = (torch.cat([sample[name].reshape(-1) for sample in samples]) for name in _SCALARS[::-1])
    return _pack_sequences(samples, padded, original, dev)


def _pack_sequences(
    samples: Sequence[Mapping[str, Any]], padded_lengths: Any, original_lengths: Any, dev: Any
) -> Sample:
    """Returns one pack: the tensors of sub-samples in a row, and the boundaries that follow from their lengths."""

    def boundaries(lengths: Any) -> Any:
        return torch.nn.functional.pad(lengths.to(dev, torch.int32).reshape(-1).cumsum(0, dtype=torch.int32), (1, 0))

    names = [name for name in _PER_TOKEN if name in samples[0]]
    return {
        **{name: torch.cat([sample[name].reshape(-1) for sample in samples]) for name in names},
        "cu_seqlens_padded": boundaries(padded_lengths),
        "max_seqlen": padded_lengths.max().to(dev, torch.int32),
        "cu_seqlens": boundaries(original_lengths),
    }


def broadcast_to_pp_group(
    new_samples: Any,
    num_micro_batches: Any,
    seqlen_sum_this_global_batch: Any,
    seqlen_squared_sum_this_global_batch: Any,
    pp_group: Any,
    dev: Any,
) -> tuple[Any, Any, Any, Any]:
    """Sends the metadata of packs, and sums, from the first stage of a pipeline to its middle stages. Collective."""
    if Channel(pp_group).size <= 2:
        return new_samples, num_micro_batches, seqlen_sum_this_global_batch, seqlen_squared_sum_this_global_batch
    numbers = (num_micro_batches, seqlen_sum_this_global_batch, seqlen_squared_sum_this_global_batch)
    whole = [0 if number is None else int(number) for number in numbers]
    packs, count, total, squares = exchange.broadcast_to_pp_group(
        new_samples, whole[0], whole[1], whole[2], pp_group, dev
    )
    return packs, count, float(total), float(squares)


def broadcast_scalars(values: Sequence[Any], group: Any, dev: Any, dtype: Any = torch.float32) -> list[Any]:
    """Returns the numbers of rank 0 of a group, exact up to 2**53; others give as many of any value. Collective."""
    channel = Channel(group)
    if channel.size == 1:
        return list(values)
    wide = torch.float64 if dtype.is_floating_point else torch.int64
    given = values if channel.rank == 0 else [0] * len(values)
    received = channel.broadcast(torch.tensor(given, dtype=wide, device=dev), 0, "scalars over TP")
    return list(values) if channel.rank == 0 else received.tolist()


def create_data_iterator(
    new_samples: Any,
    pp_group: Any = None,
    tp_group: Any = None,
    config: Any = None,
    vpp_needs_data: Sequence[bool] | None = None,
    is_dynamic_cp: bool = False,  # noqa: FBT001, FBT002  the reference's parameters
) -> Any:
    """Returns an iterator over packs, with virtual stages a list with one for each; None on ranks that read nothing.

    As versions before the newest call it, the first virtual stage of the first rank of a pipeline and the last one of
    the last get tokens, others metadata.

    Args:
        new_samples: the packs.
        pp_group: the stages of the pipeline; left out as the newest version calls it, which passes tp_group, config,
            vpp_needs_data and is_dynamic_cp.
        tp_group: the ranks whose first one reads.
        config: says how many virtual stages there are.
        vpp_needs_data: whether each virtual stage gets tokens.
        is_dynamic_cp: not needed; packs that say how many ranks share them go on doing so.
    """
    del is_dynamic_cp
    needs: list[bool] | None = list(vpp_needs_data) if isinstance(vpp_needs_data, Sequence) else None
    if hasattr(tp_group, "virtual_pipeline_model_parallel_size"):  # the newest version's order, by position
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
    return [rerunnable(one) for one in exchange.create_data_iterator(new_samples, None, config, needs)]


def get_cp_slice_for_thd(
    batch: Sample,
    cp_group: Any,
    keys: Sequence[str] | None = None,
    cp_partition_mode: str = ZIGZAG,
    partition_total_tokens: int | None = None,
) -> None:
    """Cuts a context-parallel rank's part out of the tensors of a pack, in place.

    Args:
        batch: a pack with `cu_seqlens_padded`.
        cp_group: the ranks that share it.
        keys: what is cut, where it is there; the four tensors of a pack, by default.
        cp_partition_mode: "zigzag" or "contiguous".
        partition_total_tokens: what the tensors are filled up to before.

    Raises:
        ConfigError: they are longer, cannot be cut so, or there is no such mode.
    """
    cp = Channel(cp_group)
    names = [name for name in (keys or _PER_TOKEN) if batch.get(name) is not None]
    if partition_total_tokens is not None:
        for name in names:
            missing = partition_total_tokens - batch[name].numel()
            if missing < 0:
                message = f"expected at most {partition_total_tokens} tokens as `{name}`, found {batch[name].numel()}"
                raise ConfigError(message)
            batch[name] = torch.nn.functional.pad(batch[name], (0, missing), value=name == "padding_mask")
    if cp.size == 1:
        return
    if cp_partition_mode not in (ZIGZAG, CONTIGUOUS):
        message = f"expected {ZIGZAG!r} or {CONTIGUOUS!r} as cp_partition_mode, found {cp_partition_mode!r}"
        raise ConfigError(message)
    bounds = batch["cu_seqlens_padded"]
    if cp_partition_mode == CONTIGUOUS:
        total = int(bounds[-1]) if partition_total_tokens is None else partition_total_tokens
        indices = contiguous_indices(total, cp_size=cp.size, cp_rank=cp.rank, device=bounds.device)
    else:
        indices = context_parallel_indices(bounds, cp_size=cp.size, cp_rank=cp.rank)
    for name in names:
        batch[name] = batch[name][indices]


def get_thd_partitioned_indices(cu_seqlens: Any, total_tokens: int, cp_size: int, cp_rank: int) -> Any:
    """Returns where in a pack the tokens of a context-parallel rank lie, as Transformer Engine's function does: int32.

    Example:
        >>> get_thd_partitioned_indices(torch.tensor([0, 8, 12]), 12, 2, 1).tolist()
        [2, 3, 4, 5, 9, 10]

    Raises:
        ConfigError: a sequence is no multiple of 2 × cp_size, or they do not have so many tokens.
    """
    if int(cu_seqlens[-1]) != total_tokens:
        message = f"expected boundaries up to {total_tokens} tokens, found {int(cu_seqlens[-1])}"
        raise ConfigError(message)
    return context_parallel_indices(cu_seqlens, cp_size=cp_size, cp_rank=cp_rank).to(torch.int32)
