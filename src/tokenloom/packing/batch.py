"""Packs: sub-samples in a row as one microbatch, and what of it a rank works on."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokenloom.distributed.meeting import Attempt
from tokenloom.errors import BuildError, ConfigError, InputError
from tokenloom.optional import require
from tokenloom.packing.context_parallel import (
    PackedSeqParams,
    SourcedPackedSeqParams,
    context_parallel_indices,
    contiguous_indices,
)
from tokenloom.packing.groups import Place, place_of
from tokenloom.packing.static_shapes import CONTIGUOUS, ZIGZAG, StaticShape, partition_mode
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

Batch = tuple[Any, Any, Any, None, Any, PackedSeqParams, Any]


def build_packed_microbatches(
    grouped_samples: Sequence[Sequence[Mapping[str, Any]]], dev: Any, *, cp_sizes: Sequence[int] | None = None
) -> list[Pack]:
    """Returns the pack of each microbatch, its sub-samples concatenated in order, each padded to its padded length.

    Padding has token, label, position and loss mask 0.

    Args:
        grouped_samples: the sub-samples of each microbatch, as `get_batch_and_global_seqlens` returns them.
        dev: the device of the packs.
        cp_sizes: the ranks that share each pack, where that differs between packs.

    Returns:
        One dict per microbatch: tokens, labels, position_ids int64[T] and loss_mask float32[T]; cu_seqlens and
        cu_seqlens_padded int32[n + 1]; max_seqlen, int32 scalar, padding included; local_cp_size, where given;
        dataset_ids int64[n], where a sub-sample has a `dataset_id`.

    Raises:
        ConfigError: a microbatch has no sub-sample, or more tokens than 32 bits count.
    """
    packs = []
    for number, samples in enumerate(grouped_samples):
        if not samples:
            message = f"expected at least one sub-sample in each microbatch, found none in microbatch {number}"
            raise ConfigError(message)
        lengths = [int(sample["original_seq_len"]) for sample in samples]
        padded = [int(sample["padded_seq_len"]) for sample in samples]
        metadata = pack_metadata(lengths, padded, dev, cp_size=None if cp_sizes is None else cp_sizes[number])
        packs.append(_concatenate(samples, lengths, padded, dev) | metadata | _sources_of(samples, dev))
    return packs


def _sources_of(samples: Sequence[Mapping[str, Any]], dev: Any) -> Pack:
    """Returns the number of the dataset of each sub-sample, if any says one."""
    if not any("dataset_id" in sample for sample in samples):
        return {}
    torch = require("torch", extra="torch")
    numbers = [int(sample.get("dataset_id", -1)) for sample in samples]
    return {"dataset_ids": torch.tensor(numbers, dtype=torch.int64, device=dev)}


def _concatenate(samples: Sequence[Mapping[str, Any]], lengths: list[int], padded: list[int], dev: Any) -> Pack:
    torch = require("torch", extra="torch")
    most = max(longer - length for length, longer in zip(lengths, padded, strict=True))
    pack = {}
    for name, dtype in DTYPES.items():
        filler = torch.zeros(most, dtype=getattr(torch, dtype), device=dev)
        parts = []
        for sample, length, longer in zip(samples, lengths, padded, strict=True):
            parts += [sample[name][:length].to(dev), filler[: longer - length]]
        pack[name] = torch.cat(parts)
    return pack


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


def padding_mask_of(cu_seqlens: Any, cu_seqlens_padded: Any) -> Any:
    """Returns bool[T], True at padding, from the boundaries of a pack without and with it.

    Raises:
        InputError: the boundaries do not fit each other.
    """
    torch = require("torch", extra="torch")
    lengths, padded = cu_seqlens.diff(), cu_seqlens_padded.diff()
    if lengths.shape != padded.shape or bool((lengths > padded).any()) or bool((lengths < 0).any()):
        message = f"boundaries {cu_seqlens_padded.tolist()} do not hold sequences bounded by {cu_seqlens.tolist()}"
        raise InputError(message)
    index = torch.arange(int(cu_seqlens_padded[-1]), device=padded.device)
    return index >= torch.repeat_interleave(cu_seqlens_padded[:-1] + lengths, padded)


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
    names = _names_needed(place, vpp_size, vp_stage, mtp=mtp)
    shape = StaticShape.of(config)
    layout = _Layout(shape, partition_mode(config) == ZIGZAG, tells_gaps or shape is not None)
    if place.tp.rank == 0:
        attempt = Attempt(lambda: _local_part(place, data_iterator, names, layout))
        _send_over_tp(place, attempt.result, names)
        if attempt.error is not None:
            raise attempt.error
        assert attempt.result is not None
        part = attempt.result
    else:
        refuse_iterator(place, data_iterator)
        part = _receive_over_tp(place, names, layout)
    rows = {name: part.tensors[name].view(1, -1) if name in names else None for name in DTYPES}
    mask = part.cut.padding_mask.view(1, -1)
    params = _params(place, part, layout, with_sources=bool(names))
    return rows["tokens"], rows["labels"], rows["loss_mask"], None, rows["position_ids"], params, mask


def _params(place: Place, part: _Part, layout: _Layout, *, with_sources: bool) -> PackedSeqParams:
    cut, size = part.cut, part.local_cp_size
    boundaries = ("cu_seqlens_q", "cu_seqlens_kv", "cu_seqlens_q_padded", "cu_seqlens_kv_padded")
    settings: dict[str, Any] = {
        "qkv_format": "thd",
        **dict.fromkeys(boundaries, cut.cu_seqlens_padded),
        "max_seqlen_q": cut.max_seqlen,
        "max_seqlen_kv": cut.max_seqlen,
        "local_cp_size": size or None,
        "cp_group": place.cp_of_size.get(size) if size and place.cp_of_size is not None else None,
        "cp_partition_mode": ZIGZAG if layout.zigzag else CONTIGUOUS,
    }
    if layout.tells_gaps:
        settings |= dict.fromkeys(boundaries[:2], cut.cu_seqlens) | {"pad_between_seqs": True}
    if layout.shape is not None and layout.shape.num_sequences is None:
        settings["total_tokens"] = len(cut.padding_mask)
    if part.dataset_ids is None or not with_sources:
        return PackedSeqParams(**settings)
    torch = require("torch", extra="torch")
    missing = len(cut.cu_seqlens_padded) - 1 - len(part.dataset_ids)
    filled = torch.nn.functional.pad(part.dataset_ids, (0, missing), value=-1)
    return SourcedPackedSeqParams(**settings, dataset_ids=filled)


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


@dataclass(frozen=True, slots=True)
class _Layout:
    """What a run makes of all its packs: the shape that they are filled up to, how ranks share them, and whether
    attention is told of padding between sequences."""

    shape: StaticShape | None
    zigzag: bool
    tells_gaps: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cut:
    """Which tokens of a pack, filled up to its shape, one context-parallel rank has."""

    indices: Any
    padding_mask: Any
    """Of these tokens."""
    cu_seqlens: Any
    cu_seqlens_padded: Any
    max_seqlen: int
    num_tokens: int
    """Of the whole pack."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """What one context-parallel rank has of a pack."""

    tensors: Mapping[str, Any]
    cut: _Cut
    cu_seqlens: Any
    cu_seqlens_padded: Any
    max_seqlen: int
    local_cp_size: int
    """0 where all packs have the same."""
    dataset_ids: Any = None


def _local_part(place: Place, data_iterator: Iterator[Pack] | None, names: Sequence[str], layout: _Layout) -> _Part:
    """Takes the next pack and cuts this rank's part out of it."""
    torch = require("torch", extra="torch")
    if data_iterator is None:
        message = "expected a data iterator on rank 0 of a tensor-parallel group, found None"
        raise ConfigError(message, hint="pass what `wrap_data_iterator` returned on this rank")
    pack = next(data_iterator)
    missing = [name for name in (*names, *METADATA[:3]) if pack.get(name) is None]
    if missing:
        message = f"{', '.join(f'`{name}`' for name in missing)} missing in a pack for this stage of the pipeline"
        raise InputError(message, hint="iterate over packs of `wrap_data_iterator`, one iterator per virtual stage")
    device = place.device
    cu_seqlens, cu_seqlens_padded = (pack[name].to(device) for name in ("cu_seqlens", "cu_seqlens_padded"))
    local_cp_size, max_seqlen = int(pack.get("local_cp_size", 0)), int(pack["max_seqlen"])
    cut = _cut(place, layout, cu_seqlens, cu_seqlens_padded, max_seqlen, local_cp_size)

    def own_part(tensor: Any) -> Any:
        filled = torch.nn.functional.pad(tensor.to(device), (0, cut.num_tokens - len(tensor)))
        return filled[cut.indices].masked_fill_(cut.padding_mask, 0)

    return _Part(
        tensors={name: own_part(pack[name]) for name in names},
        cut=cut,
        cu_seqlens=cu_seqlens,
        cu_seqlens_padded=cu_seqlens_padded,
        max_seqlen=max_seqlen,
        local_cp_size=local_cp_size,
        dataset_ids=pack["dataset_ids"].to(device) if "dataset_ids" in pack else None,
    )


def _cut(
    place: Place, layout: _Layout, cu_seqlens: Any, cu_seqlens_padded: Any, max_seqlen: int, local_cp_size: int
) -> _Cut:
    """Fills a pack up to its shape, and says which of its tokens this rank has; on all tensor-parallel ranks alike."""
    torch = require("torch", extra="torch")
    cp_size, cp_rank = place.cp.size, place.cp.rank
    if local_cp_size:
        cp_size, cp_rank = local_cp_size, place.rank_among(local_cp_size)
    mask = padding_mask_of(cu_seqlens, cu_seqlens_padded)
    num_tokens, bounds = len(mask), cu_seqlens_padded
    if layout.shape is not None:
        filled = layout.shape.fill(cu_seqlens, cu_seqlens_padded, max_seqlen, cp_size=cp_size, zigzag=layout.zigzag)
        mask = torch.nn.functional.pad(mask, (0, filled.num_tokens - num_tokens), value=True)
        cu_seqlens, cu_seqlens_padded, max_seqlen = filled.cu_seqlens, filled.cu_seqlens_padded, filled.max_seqlen
        num_tokens, bounds = filled.num_tokens, cu_seqlens_padded[: filled.num_sequences + 1]
    if layout.zigzag:
        indices = context_parallel_indices(bounds, cp_size=cp_size, cp_rank=cp_rank)
    else:
        indices = contiguous_indices(num_tokens, cp_size=cp_size, cp_rank=cp_rank, device=mask.device)
    return _Cut(
        indices=indices,
        padding_mask=mask[indices],
        cu_seqlens=cu_seqlens,
        cu_seqlens_padded=cu_seqlens_padded,
        max_seqlen=max_seqlen,
        num_tokens=num_tokens,
    )


def _send_over_tp(place: Place, part: _Part | None, names: Sequence[str]) -> None:
    """Sends the part to the other ranks of the tensor-parallel group, or word that there is none."""
    if place.tp.size == 1:
        return
    if part is None:
        place.tp.broadcast_integers([], 0, "metadata over TP")
        return
    boundaries = [*part.cu_seqlens.tolist(), *part.cu_seqlens_padded.tolist()]
    sources = [] if part.dataset_ids is None else part.dataset_ids.tolist()
    integers = [part.max_seqlen, part.local_cp_size, len(sources), *boundaries, *sources]
    place.tp.broadcast_integers(integers, 0, "metadata over TP")
    if names:
        place.tp.broadcast(to_bytes([part.tensors], names), 0, "tokens over TP")


def _receive_over_tp(place: Place, names: Sequence[str], layout: _Layout) -> _Part:
    torch = require("torch", extra="torch")
    integers = place.tp.broadcast_integers(None, 0, "metadata over TP")
    if not integers:
        message = f"rank {place.tp.global_ranks[0]}, which reads for this tensor-parallel group, failed"
        raise BuildError(message, hint="look at the log of that rank")
    max_seqlen, local_cp_size, num_sources, *numbers = integers
    stop = len(numbers) - num_sources
    both = torch.tensor(numbers[:stop], dtype=torch.int32, device=place.device).view(2, -1)
    sources = torch.tensor(numbers[stop:], dtype=torch.int64, device=place.device) if num_sources else None
    cut = _cut(place, layout, both[0], both[1], max_seqlen, local_cp_size)
    tensors: Mapping[str, Any] = {}
    if names:
        data = torch.empty(num_bytes([len(cut.indices)], names), dtype=torch.uint8)
        received = place.tp.broadcast(data, 0, "tokens over TP").to(place.device)
        (tensors,) = from_bytes(received, [len(cut.indices)], names)
    return _Part(
        tensors=tensors,
        cut=cut,
        cu_seqlens=both[0],
        cu_seqlens_padded=both[1],
        max_seqlen=max_seqlen,
        local_cp_size=local_cp_size,
        dataset_ids=sources,
    )
