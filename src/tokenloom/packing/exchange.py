"""What moves between ranks: lengths, sub-samples, the metadata of packs, and the iterators over what came of them.

The steps of `pipeline.py`, one function each. All sums are in integers, and metadata travels as 64-bit integers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tokenloom.distributed.meeting import Attempt, ConsequenceError
from tokenloom.errors import InputError
from tokenloom.optional import require
from tokenloom.packing.batch import METADATA, Pack
from tokenloom.packing.channels import Channel
from tokenloom.packing.config import PackingSettings
from tokenloom.packing.plan import Int64s
from tokenloom.packing.subsamples import SubSample, from_bytes, num_bytes, take_apart, to_bytes

_END = object()

Wrapped = tuple[Any, int, int, int]
"""(iterator or list of iterators or None, number of microbatches, sum of lengths, sum of their squares)."""


class GlobalBatch(NamedTuple):
    """The sub-samples that a rank has fetched, and the lengths of all of its data-parallel group.

    Sub-samples have global ids 0, 1, …, those of data-parallel rank 0 first.
    """

    batch: list[SubSample]
    """This rank's sub-samples."""
    global_id_seqlens: list[tuple[int, int]]
    """(id, padded length) of all."""
    global_ids_this_rank: Int64s
    """int64, the ids of this rank's."""
    offsets: Int64s
    """int64[dp size + 1], where the ids of each data-parallel rank begin."""
    padded_seqlens: Int64s
    """int64, by id."""
    original_seqlens: Int64s
    """int64, by id, without padding."""


def get_batch_and_global_seqlens(data_iterator: Iterator[Any], num_microbatches: int, dp_group: Any) -> GlobalBatch:
    """Returns the sub-samples of the next items, and the lengths of those of all data-parallel ranks. Collective.

    Args:
        data_iterator: see `wrap_data_iterator`.
        num_microbatches: how many items are taken.
        dp_group: the data-parallel group; None is this process alone.

    Raises:
        InputError: the iterator ended, or yields something else. Other ranks of the group then raise too.
    """
    return gather_lengths(Attempt(lambda: fetch(data_iterator, num_microbatches)), Channel(dp_group))[0]


def gather_lengths(fetching: Attempt[list[SubSample]], dp: Channel) -> tuple[GlobalBatch, Int64s]:
    """Gathers the lengths, or the word that a rank could not fetch: then all raise, and nobody waits for it.

    Returns:
        The global batch, and the dataset or source of each sub-sample by id: int64, -1 where it says none.
    """
    batch = fetching.result or []
    rows = np.array(
        [[sample["original_seq_len"], sample["padded_seq_len"], sample.get("dataset_id", -1)] for sample in batch],
        dtype=np.int64,
    ).reshape(-1, 3)
    failure = np.full((1, 3), -1, dtype=np.int64)
    gathered = dp.all_gather_rows(rows if fetching.error is None else failure, "lengths over DP")
    if fetching.error is not None:
        raise fetching.error
    failed = [dp.global_ranks[rank] for rank, theirs in enumerate(gathered) if (theirs[:, 0] < 0).any()]
    if failed:
        message = f"rank {failed[0]} failed to fetch its part of the global batch"
        raise ConsequenceError(message, hint="look at the log of that rank")
    lengths = np.concatenate(gathered)
    offsets = np.cumsum([0, *map(len, gathered)], dtype=np.int64)
    fetched = GlobalBatch(
        batch=batch,
        global_id_seqlens=list(enumerate(lengths[:, 1].tolist())),
        global_ids_this_rank=np.arange(offsets[dp.rank], offsets[dp.rank + 1]),
        offsets=offsets,
        padded_seqlens=np.ascontiguousarray(lengths[:, 1]),
        original_seqlens=np.ascontiguousarray(lengths[:, 0]),
    )
    return fetched, np.ascontiguousarray(lengths[:, 2])


def fetch(data_iterator: Iterator[Any], num_microbatches: int, required: Sequence[str] = ()) -> list[SubSample]:
    """Returns the sub-samples of the next items.

    Args:
        data_iterator: needs `__next__` only.
        num_microbatches: how many items are taken.
        required: what each sub-sample must hold.

    Raises:
        InputError: the iterator ended, yields something else, or a sub-sample lacks what is required.
    """
    items: list[Any] = []
    while len(items) < num_microbatches and (item := next(data_iterator, _END)) is not _END:
        items.append(item)
    if len(items) < num_microbatches:
        message = f"expected {num_microbatches} items in a global batch, but the data iterator ended after {len(items)}"
        raise InputError(message)
    samples = list(take_apart(items))
    missing = [name for name in required if any(name not in sample for sample in samples)]
    if missing:
        message = f"{', '.join(f'`{name}`' for name in missing)} missing in sub-samples, which the scheduler requires"
        raise InputError(message, hint="change `get_required_sample_keys` of the scheduler")
    return samples


def reroute_samples_to_dcp_ranks(
    batch: Sequence[SubSample],
    global_ids_this_rank: Int64s,
    global_id_seqlens: Sequence[tuple[int, int]],
    sample_id_groups: Sequence[Sequence[Sequence[int]]],
    offsets: Int64s,
    dp_group: Any,
    dp_cp_group: Any,
    *,
    original_seqlens: Int64s | None = None,
) -> dict[int, SubSample]:
    """Sends each sub-sample to the ranks that work on it, in one all-to-all of bytes. Collective in the group dp.

    Ranks of one context-parallel index hold the whole global batch between them, so these exchange among themselves.
    What a rank keeps is not sent, nor is padding.

    Args:
        batch: this rank's sub-samples, as `get_batch_and_global_seqlens` returns them.
        global_ids_this_rank: their ids.
        global_id_seqlens: (id, padded length) of all.
        sample_id_groups: the ids by microbatch and rank of dp_cp.
        offsets: int64[dp size + 1], where the ids of each data-parallel rank begin.
        dp_group: the data-parallel group; None is this process alone.
        dp_cp_group: data × context parallel; None where one of the two is alone.
        original_seqlens: lengths without padding by id, where there is padding.

    Returns:
        The sub-samples of this rank, by id.
    """
    dp, dp_cp = Channel(dp_group), Channel(dp_group if dp_cp_group is None else dp_cp_group)
    lane = [dp_cp.global_ranks.index(rank) for rank in dp.global_ranks] if dp.size > 1 else [dp_cp.rank]
    padded = np.array([length for _, length in global_id_seqlens], dtype=np.int64)
    fetched = GlobalBatch(
        batch=list(batch),
        global_id_seqlens=list(global_id_seqlens),
        global_ids_this_rank=global_ids_this_rank,
        offsets=offsets,
        padded_seqlens=padded,
        original_seqlens=padded if original_seqlens is None else original_seqlens,
    )
    numbers = np.array([[sample.get("dataset_id", -1)] for sample in batch], dtype=np.int64).reshape(-1, 1)
    sources = np.concatenate(dp.all_gather_rows(numbers, "sources over DP"))[:, 0]
    wanted = [np.unique([number for ranks in sample_id_groups for number in ranks[rank]]) for rank in lane]
    return exchange_samples(fetched, sources, wanted, dp)


def exchange_samples(
    fetched: GlobalBatch, sources: Int64s, wanted: Sequence[Int64s], dp: Channel
) -> dict[int, SubSample]:
    """Returns the sub-samples `wanted[dp.rank]` by id; `wanted` has what each works on, ascending."""
    torch = require("torch", extra="torch")
    batch, offsets = fetched.batch, fetched.offsets

    def owned_by(rank: int, ids: Int64s) -> list[int]:
        first, last = np.searchsorted(ids, offsets[rank : rank + 2])
        owned: list[int] = ids[first:last].tolist()
        return owned

    mine = int(offsets[dp.rank])
    kept = {number: batch[number - mine] for number in owned_by(dp.rank, wanted[dp.rank])}
    if dp.size == 1:
        return kept
    nothing = torch.empty(0, dtype=torch.uint8)
    outgoing = [
        nothing if rank == dp.rank else to_bytes([batch[number - mine] for number in owned_by(dp.rank, ids)])
        for rank, ids in enumerate(wanted)
    ]
    incoming = [[] if rank == dp.rank else owned_by(rank, wanted[dp.rank]) for rank in range(dp.size)]
    sizes = [[int(fetched.original_seqlens[number]) for number in ids] for ids in incoming]
    received = dp.all_to_all(outgoing, [num_bytes(row) for row in sizes], "sub-samples over DP")
    for ids, row, data in zip(incoming, sizes, received, strict=True):
        for number, tensors in zip(ids, from_bytes(data, row), strict=True):
            tensors["original_seq_len"] = int(fetched.original_seqlens[number])
            tensors["padded_seq_len"] = int(fetched.padded_seqlens[number])
            if sources[number] >= 0:
                tensors["dataset_id"] = int(sources[number])
            kept[number] = tensors
    return kept


def broadcast_to_pp_group(
    new_samples: list[Pack] | None,
    num_micro_batches: int,
    seqlen_sum_this_global_batch: int,
    seqlen_squared_sum_this_global_batch: int,
    pp_group: Any,
    dev: Any,
) -> tuple[list[Pack], int, int, int]:
    """Sends the metadata of packs, and sums, from the first stage of a pipeline to its middle stages. Collective.

    Ranks with packs keep theirs; those that give None get cu_seqlens, cu_seqlens_padded, max_seqlen, and local_cp_size
    where there is one, and the three numbers. All travels as 64-bit integers.

    Args:
        new_samples: the packs of this stage; None on a stage without.
        num_micro_batches, seqlen_sum_this_global_batch, seqlen_squared_sum_this_global_batch: ignored with None.
        pp_group: the stages, in order; None is this process alone.
        dev: the device of what is received.
    """
    pp = Channel(pp_group)
    numbers = (num_micro_batches, seqlen_sum_this_global_batch, seqlen_squared_sum_this_global_batch)
    if pp.size <= 2:
        assert new_samples is not None
        return (new_samples, *numbers)
    message = None
    if pp.rank == 0:
        assert new_samples is not None
        message = [*numbers, *_encode_metadata(new_samples)]
    received = pp.broadcast_integers(message, 0, "metadata over PP")
    if new_samples is not None:
        return (new_samples, *numbers)
    return _decode_metadata(received[3:], dev), received[0], received[1], received[2]


def _encode_metadata(packs: Sequence[Pack]) -> Iterator[int]:
    for pack in packs:
        yield from (len(pack["cu_seqlens"]), int(pack["max_seqlen"]), int(pack.get("local_cp_size", 0)))
        yield from pack["cu_seqlens"].tolist()
        yield from pack["cu_seqlens_padded"].tolist()


def _decode_metadata(integers: Sequence[int], dev: Any) -> list[Pack]:
    torch = require("torch", extra="torch")
    packs: list[Pack] = []
    offset = 0
    while offset < len(integers):
        count, max_seqlen, local_cp_size = integers[offset : offset + 3]
        both = torch.tensor(integers[offset + 3 : offset + 3 + 2 * count], dtype=torch.int32, device=dev)
        pack = {
            "cu_seqlens": both[:count],
            "cu_seqlens_padded": both[count:],
            "max_seqlen": torch.tensor(max_seqlen, dtype=torch.int32, device=dev),
        }
        packs.append(pack | ({"local_cp_size": local_cp_size} if local_cp_size else {}))
        offset += 3 + 2 * count
    return packs


def broadcast_scalars(values: Sequence[int], group: Any, dev: Any) -> list[int]:
    """Returns the integers of rank 0 of a group, exact up to 64 bits; others give as many of any value. Collective."""
    channel = Channel(group)
    if channel.size == 1:
        return list(values)
    tensor = require("torch", extra="torch").tensor(list(values), device=dev)
    received: list[int] = channel.broadcast(tensor, 0, "scalars over TP").tolist()
    return received


def broadcast_tensor(item: Any, src_rank: int, group: Any) -> None:
    """Fills a tensor with that of a rank of a group, in place; does nothing with None. Collective.

    Args:
        item: tensor of the same shape and dtype on all ranks, on the device that the group works on; or None on all.
        src_rank: the rank among all of the run.
        group: None is this process alone.
    """
    channel = Channel(group)
    if item is not None and channel.size > 1:
        item.copy_(channel.broadcast(item, channel.global_ranks.index(src_rank), "tensors"))


def create_data_iterator(
    new_samples: list[Pack] | None, tp_group: Any, config: PackingSettings, vpp_has_data: Sequence[bool]
) -> Any:
    """Returns an iterator over packs, with virtual stages a list with one for each; None on ranks that read nothing.

    Args:
        new_samples: the packs of this rank.
        tp_group: the tensor-parallel group, whose rank 0 reads.
        config: says how many virtual stages there are.
        vpp_has_data: whether each virtual stage needs tokens; the others get the metadata only.
    """
    stages = config.virtual_pipeline_model_parallel_size
    if Channel(tp_group).rank != 0:
        return None if stages is None else [None] * stages
    assert new_samples is not None
    iterators = [iter([dict(pack) if needs else _metadata(pack) for pack in new_samples]) for needs in vpp_has_data]
    return iterators[0] if stages is None else iterators


def _metadata(pack: Mapping[str, Any]) -> Pack:
    return {name: pack[name] for name in METADATA if name in pack}
