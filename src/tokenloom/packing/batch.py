"""Packs: sub-samples in a row as one microbatch, and what of it a rank works on."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from tokenloom.distributed.meeting import Attempt
from tokenloom.errors import BuildError, ConfigError, InputError
from tokenloom.optional import require
from tokenloom.packing.config import PackingConfig
from tokenloom.packing.context_parallel import PackedSeqParams, cut_for_rank
from tokenloom.packing.groups import Place, place_of
from tokenloom.packing.subsamples import DTYPES, from_bytes, num_bytes, to_bytes

Pack = dict[str, Any]
"""The tensors of `DTYPES`, 1-D, concatenated with padding between; `cu_seqlens` and `cu_seqlens_padded`, int32[n + 1],
boundaries counted without and with padding; `max_seqlen`, int32 scalar, the longest padded length; and `local_cp_size`,
where plans have context-parallel groups of several sizes. Stages that see no tokens have the last four only. Where
sub-samples say which dataset of a blend, or source of a run, they are from, stages with tokens have `dataset_ids`, too:
int64[n], that of each sub-sample, -1 of one that does not say."""

METADATA = ("cu_seqlens", "cu_seqlens_padded", "max_seqlen", "local_cp_size")
"""What every stage of a pipeline has of a pack."""

_INT32_MAX = 2**31 - 1
_PLAIN = PackingConfig(max_seqlen_per_dp_cp_rank=_INT32_MAX)

Batch = tuple[Any, Any, Any, None, Any, PackedSeqParams, Any]


def build_packed_microbatches(
    grouped_samples: Sequence[Sequence[Mapping[str, Any]]], dev: Any, *, cp_sizes: Sequence[int] | None = None
) -> list[Pack]:
    """Returns the pack of each microbatch, its sub-samples concatenated in order, each padded to its padded length.

    Padding has token, label, position and loss mask 0.

    Args:
        grouped_samples: the sub-samples of each microbatch: tensors by name, `original_seq_len` and `padded_seq_len`.
        dev: the device of the packs.
        cp_sizes: the ranks that share each pack, where that differs between packs.

    Returns:
        One dict per microbatch: tokens, labels, position_ids int64[T] and loss_mask float32[T]; cu_seqlens and
        cu_seqlens_padded int32[n + 1]; max_seqlen, int32 scalar, padding included; local_cp_size, where given;
        dataset_ids int64[n], where a sub-sample has a `dataset_id`.

    Raises:
        ConfigError: a microbatch has no sub-sample, or more tokens than 32 bits count.
    """
    torch = require("torch", extra="torch")
    packs = []
    for number, samples in enumerate(grouped_samples):
        if not samples:
            message = f"expected at least one sub-sample in each microbatch, found none in microbatch {number}"
            raise ConfigError(message)
        lengths = [int(sample["original_seq_len"]) for sample in samples]
        padded = [int(sample["padded_seq_len"]) for sample in samples]
        pack = pack_metadata(lengths, padded, dev, cp_size=None if cp_sizes is None else cp_sizes[number])
        gaps = [longer - length for length, longer in zip(lengths, padded, strict=True)]
        for name, dtype in DTYPES.items():
            filler = torch.zeros(max(gaps), dtype=getattr(torch, dtype), device=dev)
            rows = [sample[name][:length].to(dev) for sample, length in zip(samples, lengths, strict=True)]
            pack[name] = torch.cat([part for row, gap in zip(rows, gaps, strict=True) for part in (row, filler[:gap])])
        if any("dataset_id" in sample for sample in samples):
            sources = [int(sample.get("dataset_id", -1)) for sample in samples]
            pack["dataset_ids"] = torch.tensor(sources, dtype=torch.int64, device=dev)
        packs.append(pack)
    return packs


def pack_metadata(lengths: Sequence[int], padded: Sequence[int], dev: Any, *, cp_size: int | None = None) -> Pack:
    """Returns what every stage of a pipeline has of a pack, from the lengths of its sub-samples."""
    torch = require("torch", extra="torch")
    if sum(padded) > _INT32_MAX:
        message = f"expected at most {_INT32_MAX} tokens in a pack, found {sum(padded)}"
        raise ConfigError(message)

    def boundaries(counts: Sequence[int]) -> Any:
        return torch.tensor([0, *itertools.accumulate(counts)], dtype=torch.int32, device=dev)

    metadata = {
        "cu_seqlens": boundaries(lengths),
        "cu_seqlens_padded": boundaries(padded),
        "max_seqlen": torch.tensor(max(padded), dtype=torch.int32, device=dev),
    }
    return metadata if cp_size is None else metadata | {"local_cp_size": cp_size}


def encode_metadata(packs: Iterable[Mapping[str, Any]]) -> list[int]:
    """Returns all but the tensors of `DTYPES` as integers, which `decode_metadata` takes."""
    integers: list[int] = []
    for pack in packs:
        sources = pack["dataset_ids"].tolist() if "dataset_ids" in pack else []
        sizes = (len(pack["cu_seqlens"]), len(sources), int(pack["max_seqlen"]), int(pack.get("local_cp_size", 0)))
        integers += [*sizes, *pack["cu_seqlens"].tolist(), *pack["cu_seqlens_padded"].tolist(), *sources]
    return integers


def decode_metadata(integers: Sequence[int], dev: Any) -> list[Pack]:
    """Returns packs without the tensors of `DTYPES`."""
    torch = require("torch", extra="torch")
    packs: list[Pack] = []
    start = 0
    while start < len(integers):
        count, num_sources, max_seqlen, cp_size = integers[start : start + 4]
        first, second = start + 4 + count, start + 4 + 2 * count
        pack = {
            "cu_seqlens": torch.tensor(integers[start + 4 : first], dtype=torch.int32, device=dev),
            "cu_seqlens_padded": torch.tensor(integers[first:second], dtype=torch.int32, device=dev),
            "max_seqlen": torch.tensor(max_seqlen, dtype=torch.int32, device=dev),
        }
        start = second + num_sources
        if cp_size:
            pack["local_cp_size"] = cp_size
        if num_sources:
            pack["dataset_ids"] = torch.tensor(integers[second:start], dtype=torch.int64, device=dev)
        packs.append(pack)
    return packs


def metadata_of(pack: Mapping[str, Any], *more: str) -> Pack:
    """Returns what every stage of a pipeline has of a pack, and more, where the pack has it."""
    return {name: pack[name] for name in (*METADATA, *more) if name in pack}


def get_batch_on_this_rank_for_sequence_packing(
    data_iterator: Iterator[Pack] | None,
    vpp_size: int | None = None,
    mtp_on_this_rank: bool = False,  # noqa: FBT001, FBT002  the reference's order of parameters
    vp_stage: int | None = None,
    pg_collection: Any = None,
    config: Any = None,
) -> Batch:
    """Returns this rank's part of the next microbatch; all ranks of a tensor-parallel group must call it together.

    Args:
        data_iterator: yields packs, from `wrap_data_iterator`; None unless this is rank 0 of its tensor-parallel group.
        vpp_size: virtual pipeline stages per rank; None without.
        mtp_on_this_rank: whether this stage predicts several tokens, and so needs tokens and labels.
        vp_stage: this virtual stage, below `vpp_size`.
        pg_collection: a `ProcessGroups`, or what has its attributes; None where there is one process only.
        config: a `PackingConfig`, or what has its attributes, of runs that fill packs up to a shape or share them in
            contiguous pieces; the same on all ranks. None for packs as they are, in zigzag.

    Returns:
        (tokens, labels, loss_mask, None, position_ids, packed_seq_params, padding_mask). Tensors are [1, T / cp]:
        int64, loss_mask float32, padding_mask bool and True at padding, where all others are 0. Tokens and position_ids
        are for the first stage, labels and loss_mask for the last, all four with `mtp_on_this_rank`; they are None
        elsewhere. The last two are for every stage; with tokens or labels, and data that say which dataset or source
        they are from, packed_seq_params is a `SourcedPackedSeqParams`.

    Raises:
        ConfigError: an iterator is missing, or is where none is read; the virtual stage does not exist; a pack is too
            large for its shape.
        InputError: the pack lacks what this stage needs.
        BuildError: rank 0 of the tensor-parallel group failed.
        StopIteration: the microbatches are at their end.
    """
    return batch_in(place_of(pg_collection), data_iterator, vpp_size, vp_stage, mtp=mtp_on_this_rank, config=config)


def batch_in(
    place: Place,
    data_iterator: Any,
    vpp_size: int | None,
    vp_stage: int | None,
    *,
    mtp: bool,
    config: Any,
    tells_gaps: bool = False,
) -> Batch:
    """Returns what `get_batch_on_this_rank_for_sequence_packing` does, of a process at a place.

    With `tells_gaps`, boundaries without padding are told of all packs, not only of those that are filled up.
    """
    torch = require("torch", extra="torch")
    names = _names_needed(place, vpp_size, vp_stage, mtp=mtp)
    settings = _PLAIN
    if config is not None:
        has_shape = getattr(config, "pad_packed_seq_alignment", None) is not None
        settings = PackingConfig.of(config, **({} if has_shape else {"max_seqlen_per_dp_cp_rank": _INT32_MAX}))

    def cut(pack: Pack) -> tuple[Any, Any, PackedSeqParams]:
        size = int(pack.get("local_cp_size", 0))
        cp_size, cp_rank = (size, place.rank_among(size)) if size else (place.cp.size, place.cp.rank)
        group = place.cp_of_size.get(size) if size and place.cp_of_size is not None else None
        return cut_for_rank(pack, settings, cp_size=cp_size, cp_rank=cp_rank, cp_group=group, tells_gaps=tells_gaps)

    def take() -> tuple[Pack, Any, PackedSeqParams]:
        pack = _next_pack(place, data_iterator, names)
        indices, mask, params = cut(pack)
        num_tokens = int(params.cu_seqlens_q_padded[-1])
        for name in names:
            filled = torch.nn.functional.pad(pack[name], (0, num_tokens - len(pack[name])))
            pack[name] = filled[indices].masked_fill_(mask, 0)
        return pack, mask, params

    if place.tp.rank == 0:
        attempt = Attempt(take)
        if place.tp.size > 1:
            packs = [] if attempt.result is None else [attempt.result[0]]
            place.tp.broadcast_integers(encode_metadata(packs), 0, "metadata over TP")
            if names and packs:
                place.tp.broadcast(to_bytes(packs, names), 0, "tokens over TP")
        if attempt.error is not None:
            raise attempt.error
        assert attempt.result is not None
        part, mask, params = attempt.result
    else:
        refuse_iterator(place, data_iterator)
        integers = place.tp.broadcast_integers(None, 0, "metadata over TP")
        if not integers:
            message = f"rank {place.tp.global_ranks[0]}, which reads for this tensor-parallel group, failed"
            raise BuildError(message, hint="look at the log of that rank")
        indices, mask, params = cut(*decode_metadata(integers, place.device))
        part = {}
        if names:
            data = torch.empty(num_bytes([len(indices)], names), dtype=torch.uint8)
            received = place.tp.broadcast(data, 0, "tokens over TP").to(place.device)
            (part,) = from_bytes(received, [len(indices)], names)
    tokens, labels, position_ids, loss_mask = (part[name].view(1, -1) if name in names else None for name in DTYPES)
    return tokens, labels, loss_mask, None, position_ids, params, mask.view(1, -1)


def _next_pack(place: Place, data_iterator: Iterator[Pack] | None, names: Sequence[str]) -> Pack:
    """Returns what this stage of the pipeline needs of the next pack, on its device."""
    if data_iterator is None:
        message = "expected a data iterator on rank 0 of a tensor-parallel group, found None"
        raise ConfigError(message, hint="pass what `wrap_data_iterator` returned on this rank")
    pack = next(data_iterator)
    missing = [name for name in (*names, *METADATA[:3]) if pack.get(name) is None]
    if missing:
        message = f"{', '.join(f'`{name}`' for name in missing)} missing in a pack for this stage of the pipeline"
        raise InputError(message, hint="iterate over packs of `wrap_data_iterator`, one iterator per virtual stage")
    needed = metadata_of(pack, *names, *(["dataset_ids"] if names else []))
    return {name: value.to(place.device) if hasattr(value, "to") else value for name, value in needed.items()}


def refuse_iterator(place: Place, data_iterator: Any) -> None:
    """Raises if a rank other than 0 of its tensor-parallel group was given an iterator, or a list with one."""
    given = data_iterator if isinstance(data_iterator, list) else [data_iterator]
    if any(iterator is not None for iterator in given):
        message = f"expected no data iterator on rank {place.tp.rank} of a tensor-parallel group, found one"
        raise ConfigError(message, hint="only rank 0 of the group reads data; pass None elsewhere")


def _names_needed(place: Place, vpp_size: int | None, vp_stage: int | None, *, mtp: bool) -> list[str]:
    """Returns the tensors that this stage of the pipeline needs."""
    stages = vpp_size or 1
    if vp_stage is None and vpp_size is None:
        vp_stage = 0
    if vp_stage is None or not 0 <= vp_stage < stages:
        message = f"expected a virtual pipeline stage below {stages}, found {vp_stage}"
        raise ConfigError(message, hint="pass `vpp_size` and `vp_stage` together")
    is_first = place.pp.rank == 0 and vp_stage == 0
    is_last = place.pp.rank == place.pp.size - 1 and vp_stage == stages - 1
    needed = {"tokens": is_first, "position_ids": is_first, "labels": is_last, "loss_mask": is_last}
    return [name for name in DTYPES if needed[name] or mtp]
