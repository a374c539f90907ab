"""Sub-samples and packs as tensors: read from iterators, sent between ranks, and cut for context-parallel ranks.

Partition mode "zigzag" cuts each sequence into 2 × cp equal chunks; rank c gets chunks c and 2 × cp - 1 - c, so that
all ranks have the same work under a causal mask. Packs of a fixed shape, as for CUDA graphs, are padded before the cut.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from tokenloom.distributed.meeting import Attempt
from tokenloom.errors import BuildError, ConfigError, InputError, MissingExtraError
from tokenloom.numbers import checked_integer
from tokenloom.optional import require
from tokenloom.packing.config import PackingConfig
from tokenloom.packing.groups import Place, place_of


@dataclass(slots=True, kw_only=True)
class PackedSeqParams:
    """The attention parameters of a pack, with the fields of Megatron's class of this name.

    Lengths and boundaries describe whole sequences, not this rank's part. `cu_seqlens_…_padded` always include the
    padding of each sequence; `cu_seqlens_q` and `cu_seqlens_kv` include it only if `pad_packed_seq_alignment` is None.

    Attributes:
        qkv_format: "thd" for queries, keys and values of shape [tokens, heads, width], without a batch axis.
        cu_seqlens_q, cu_seqlens_kv, cu_seqlens_q_padded, cu_seqlens_kv_padded: int32[num_sequences + 1] tensors.
        max_seqlen_q, max_seqlen_kv: length of the longest padded sequence; but if both `pad_packed_seq_alignment` and
            `thd_max_packed_sequences` are set, length of the whole padded pack.
        local_cp_size, cp_group: number and process group of the ranks that share this pack; both None for all cp ranks.
        total_tokens: number of tokens of this rank if `pad_packed_seq_alignment` is set and `thd_max_packed_sequences`
            is None; else None.
        pad_between_seqs: True if `cu_seqlens_q` and `cu_seqlens_kv` exclude padding, else None.
        cp_partition_mode: "zigzag" or "contiguous", as in `PackingConfig`.
    """

    qkv_format: str | None = None
    cu_seqlens_q: Any = None
    cu_seqlens_kv: Any = None
    cu_seqlens_q_padded: Any = None
    cu_seqlens_kv_padded: Any = None
    max_seqlen_q: int | None = None
    max_seqlen_kv: int | None = None
    local_cp_size: int | None = None
    cp_group: Any = None
    total_tokens: int | None = None
    pad_between_seqs: bool | None = None
    cp_partition_mode: str = "zigzag"


@dataclass(slots=True, kw_only=True)
class SourcedPackedSeqParams(PackedSeqParams):
    """The parameters of a pack whose sequences have a `dataset_id`.

    Attributes:
        dataset_ids: int64[num_sequences] tensor, for each sequence the index of its dataset in a blend or of its source
            in a run; -1 if unknown, and for sequences of padding. Attention does not read this tensor.
    """

    dataset_ids: Any


def context_parallel_indices(cu_seqlens_padded: Any, *, cp_size: int, cp_rank: int) -> Any:
    """Returns the ascending indices, in a pack, of the tokens that one context-parallel rank gets.

    Args:
        cu_seqlens_padded: integer[num_sequences + 1] tensor, boundaries of the padded sequences, starting with 0.
        cp_size, cp_rank: number of ranks that share the pack, and the rank of one of them, in [0, cp_size).

    Returns:
        int64[num_tokens / cp_size] on the device of the boundaries. Sequences may be empty. On CUDA, Transformer
        Engine's function `thd_get_partitioned_indices` computes these indices if Transformer Engine is installed.

    Raises:
        ConfigError: the length of a sequence is not a multiple of 2 × `cp_size`, or `cp_rank` is out of range.
        MissingExtraError: torch is not installed.

    Example:
        >>> import torch
        >>> context_parallel_indices(torch.tensor([0, 8, 12]), cp_size=2, cp_rank=1).tolist()
        [2, 3, 4, 5, 9, 10]
    """
    torch = require("torch", extra="torch")
    checked_integer("cp_rank", cp_rank, at_least=0, below=cp_size)
    boundaries = cu_seqlens_padded.to(torch.int64)
    num_tokens = int(boundaries[-1])
    if cp_size == 1:
        return torch.arange(num_tokens, device=boundaries.device)
    lengths = boundaries.diff()
    uneven = (lengths % (2 * cp_size)).nonzero()
    if len(uneven):
        length = int(lengths[uneven[0]])
        message = f"sequence {int(uneven[0])} has {length} tokens, not a multiple of 2 * cp_size = {2 * cp_size}"
        raise ConfigError(message, hint="pad each sequence before packing")
    if boundaries.device.type == "cuda" and (engine := _transformer_engine()) is not None:
        cu_seqlens = cu_seqlens_padded.to(torch.int32)
        return engine.thd_get_partitioned_indices(cu_seqlens, num_tokens, cp_size, cp_rank).to(torch.int64)
    chunks = lengths // (2 * cp_size)
    sequences = torch.repeat_interleave(torch.arange(len(lengths), device=boundaries.device), 2 * chunks)
    within = torch.arange(num_tokens // cp_size, device=boundaries.device) - boundaries[sequences] // cp_size
    chunk = chunks[sequences]
    chunks_before = torch.where(within < chunk, cp_rank, 2 * cp_size - 2 - cp_rank)
    return boundaries[sequences] + within + chunk * chunks_before


def cut_for_rank(
    pack: Mapping[str, Any],
    settings: PackingConfig,
    *,
    cp_size: int,
    cp_rank: int,
    cp_group: Any = None,
    tells_gaps: bool = False,
) -> tuple[Any, Any, PackedSeqParams]:
    """Cuts a pack for a context-parallel rank; first pads the pack if `settings.pad_packed_seq_alignment` is set.

    Returns the indices in the padded pack of this rank's tokens, int64, the padding mask of these tokens, bool, and the
    attention parameters. With `tells_gaps`, `cu_seqlens_q` and `cu_seqlens_kv` never include padding.
    """
    torch = require("torch", extra="torch")
    real, padded, longest = pack["cu_seqlens"], pack["cu_seqlens_padded"], int(pack["max_seqlen"])
    mask = padding_mask_of(real, padded)
    is_filled = settings.pad_packed_seq_alignment is not None
    if is_filled:
        tail = _tail(settings, len(mask), cp_size)
        mask = torch.nn.functional.pad(mask, (0, tail), value=True)
        real, padded, longest = _with_tail(settings, tail, real, padded, longest)
    if settings.cp_partition_mode == "zigzag":
        indices = context_parallel_indices(padded, cp_size=cp_size, cp_rank=cp_rank)
    else:
        if len(mask) % cp_size:
            message = f"a pack of {len(mask)} tokens cannot be divided evenly among {cp_size} ranks"
            raise ConfigError(message, hint="pad each sequence before packing, or set `pad_packed_seq_alignment`")
        share = len(mask) // cp_size
        indices = torch.arange(cp_rank * share, (cp_rank + 1) * share, device=mask.device)
    is_any_number = settings.thd_max_packed_sequences is None
    parameters: dict[str, Any] = {
        "qkv_format": "thd",
        **dict.fromkeys(("cu_seqlens_q", "cu_seqlens_kv"), real if is_filled or tells_gaps else padded),
        **dict.fromkeys(("cu_seqlens_q_padded", "cu_seqlens_kv_padded"), padded),
        **dict.fromkeys(("max_seqlen_q", "max_seqlen_kv"), longest),
        "local_cp_size": int(pack.get("local_cp_size", 0)) or None,
        "cp_group": cp_group,
        "total_tokens": len(indices) if is_filled and is_any_number else None,
        "pad_between_seqs": True if is_filled or tells_gaps else None,
        "cp_partition_mode": settings.cp_partition_mode,
    }
    if (sources := pack.get("dataset_ids")) is None:
        return indices, mask[indices], PackedSeqParams(**parameters)
    sources = torch.nn.functional.pad(sources, (0, len(padded) - 1 - len(sources)), value=-1)
    return indices, mask[indices], SourcedPackedSeqParams(**parameters, dataset_ids=sources)


def _tail(settings: PackingConfig, num_tokens: int, cp_size: int) -> int:
    num_rows, alignment = settings.max_seqlen_per_dp_cp_rank, settings.pad_packed_seq_alignment
    if isinstance(alignment, int):
        num_rows = -(-num_tokens // (cp_size * alignment)) * alignment
    tail = num_rows * cp_size - num_tokens
    if tail < 0:
        message = f"a pack of {num_tokens} tokens exceeds the limit of {num_rows} tokens on each of {cp_size} ranks"
        raise ConfigError(message, hint="increase `max_seqlen_per_dp_cp_rank`, or leave out sub-samples")
    if settings.cp_partition_mode == "zigzag" and cp_size > 1 and tail % (2 * cp_size):
        message = f"a pack needs {tail} tokens of padding, not a multiple of 2 * cp_size = {2 * cp_size}"
        raise ConfigError(message, hint="set `pad_packed_seq_alignment` to an even number of tokens per rank")
    return tail


def _with_tail(settings: PackingConfig, tail: int, real: Any, padded: Any, longest: int) -> tuple[Any, Any, int]:
    cat = require("torch", extra="torch").cat
    if tail and settings.thd_tail_padding_policy == "extend_last":
        padded = cat([padded[:-1], padded[-1:] + tail])
    elif tail:
        real, padded = (cat([row, row[-1:] + tail]) for row in (real, padded))
    if (most := settings.thd_max_packed_sequences) is None:
        return real, padded, max(longest, int(padded[-1] - padded[-2]))
    missing = most + 1 - len(padded)
    if missing < 0:
        raise ConfigError(f"a pack has {len(padded) - 1} sequences, more than `thd_max_packed_sequences` {most}")
    real, padded = (cat([row, row[-1:].expand(missing)]) for row in (real, padded))
    return real, padded, int(padded[-1])


def padding_mask_of(cu_seqlens: Any, cu_seqlens_padded: Any) -> Any:
    """Returns the padding mask of a pack, bool[num_tokens]; `cu_seqlens` are the boundaries without padding."""
    torch = require("torch", extra="torch")
    lengths, padded = cu_seqlens.diff(), cu_seqlens_padded.diff()
    if lengths.shape != padded.shape or bool((lengths > padded).any()) or bool((lengths < 0).any()):
        raise InputError(f"cu_seqlens_padded {cu_seqlens_padded.tolist()} do not fit cu_seqlens {cu_seqlens.tolist()}")
    index = torch.arange(int(cu_seqlens_padded[-1]), device=padded.device)
    return index >= torch.repeat_interleave(cu_seqlens_padded[:-1] + lengths, padded)


@cache
def _transformer_engine() -> Any:
    try:
        return require("transformer_engine_torch", extra="torch")
    except MissingExtraError:
        return None


SubSample = dict[str, Any]
"""1-D tensors under the names in `DTYPES`, with or without padding; the integers `original_seq_len` (tokens without
padding) and `padded_seq_len`; optionally `dataset_id`, the index of a dataset in a blend or of a source in a run."""

DTYPES = {"tokens": "int64", "labels": "int64", "position_ids": "int64", "loss_mask": "float32"}
"""Names and dtypes of the tensors of a sub-sample or pack; wide dtypes first, to align all tensors in `to_bytes`."""

_WORD_BYTES = 8


def take_apart(items: Iterable[Any]) -> Iterator[SubSample]:
    """Splits the items of a data iterator into sub-samples without padding.

    An item is a mapping with the tensors of `DTYPES`, or a list of such mappings; tensors are [length] or [1, length].
    A mapping without `cu_seqlens` is one sub-sample; its `original_seq_len` and `padded_seq_len` default to the length
    of the tensors. A mapping with `cu_seqlens`, the boundaries of padded sub-samples, has them one after another;
    `cu_seqlens_original`, if given, has the boundaries without padding. `dataset_id` is one integer, or one integer per
    sub-sample. Other entries of a mapping have no effect.

    Raises:
        InputError: a tensor is missing, or the length of a tensor does not match the tokens or the boundaries.
    """
    for number, item in enumerate(items):
        for part in item if isinstance(item, list) else [item]:
            yield from _take_apart(part, f"item {number} of the data iterator")


def _take_apart(item: Any, where: str) -> Iterator[SubSample]:
    if not isinstance(item, Mapping):
        raise InputError(f"{where} must be a mapping of tensors, or a list of mappings, got {type(item).__name__}")
    if missing := [f"`{name}`" for name in DTYPES if name not in item]:
        raise InputError(f"{', '.join(missing)} missing in {where}, which has {', '.join(item)}")
    tensors = {name: _row(item[name], dtype, f"`{name}` of {where}") for name, dtype in DTYPES.items()}
    size = len(tensors["tokens"])
    for name, tensor in tensors.items():
        if len(tensor) != size:
            raise InputError(f"{where} has {size} tokens, but {len(tensor)} elements of `{name}`")
    bounds = list(_bounds(item, size))
    sources = _row(item["dataset_id"], "int64", "`dataset_id`").tolist() if "dataset_id" in item else None
    if sources is not None and len(sources) not in (1, len(bounds)):
        raise InputError(f"{where} has {len(sources)} elements of `dataset_id` for {len(bounds)} sub-samples")
    for number, (start, original, padded) in enumerate(bounds):
        if not 0 <= original <= padded or start + original > size:
            message = f"{where} has {size} tokens and cannot have a sub-sample of {original} tokens "
            raise InputError(f"{message}(padded: {padded}) at offset {start}")
        sample: SubSample = {name: tensor[start : start + original] for name, tensor in tensors.items()}
        sample |= {"original_seq_len": original, "padded_seq_len": padded}
        if sources is not None:
            sample["dataset_id"] = sources[number % len(sources)]
        yield sample


def _bounds(item: Mapping[str, Any], size: int) -> Iterator[tuple[int, int, int]]:
    """Yields (offset, original length, padded length) of each sub-sample in an item."""
    if "cu_seqlens" not in item:
        original = int(item.get("original_seq_len", size))
        yield 0, original, int(item.get("padded_seq_len", max(size, original)))
        return
    padded = _row(item["cu_seqlens"], "int64", "`cu_seqlens`").tolist()
    originals = _row(item.get("cu_seqlens_original", item["cu_seqlens"]), "int64", "`cu_seqlens_original`").tolist()
    for (start, stop), (original_start, original_stop) in zip(
        itertools.pairwise(padded), itertools.pairwise(originals), strict=True
    ):
        if stop > start:  # arrays of boundaries may be padded with copies of the last boundary
            yield start, original_stop - original_start, stop - start


def _row(value: Any, dtype: str, name: str) -> Any:
    torch = require("torch", extra="torch")
    tensor = torch.as_tensor(value)
    if tensor.ndim == 0 or (tensor.ndim == 2 and len(tensor) == 1):
        tensor = tensor.reshape(-1)
    if tensor.ndim != 1:
        raise InputError(f"{name} must be a vector, got shape {list(tensor.shape)}", hint="use micro-batches of size 1")
    return tensor.to(getattr(torch, dtype))


def to_bytes(samples: Sequence[Mapping[str, Any]], names: Iterable[str] = DTYPES) -> Any:
    """Returns the bytes of the tensors `names` of all samples, uint8[n], name by name; zeros pad to a multiple of 8."""
    torch = require("torch", extra="torch")
    if not samples:
        return torch.empty(0, dtype=torch.uint8)
    parts = [torch.cat([sample[name] for sample in samples]).view(torch.uint8) for name in names]
    filler = -sum(map(len, parts)) % _WORD_BYTES
    return torch.cat([*parts, torch.zeros(filler, dtype=torch.uint8, device=parts[0].device)])


def num_bytes(lengths: Iterable[int], names: Iterable[str] = DTYPES) -> int:
    """Returns the number of bytes in the result of `to_bytes` for sub-samples of `lengths` tokens."""
    torch = require("torch", extra="torch")
    size: int = sum(lengths) * sum(getattr(torch, DTYPES[name]).itemsize for name in names)
    return size + -size % _WORD_BYTES


def from_bytes(data: Any, lengths: Sequence[int], names: Iterable[str] = DTYPES) -> list[SubSample]:
    """Returns the sub-samples that `to_bytes` encoded as `data`; their tensors are views of `data`."""
    torch = require("torch", extra="torch")
    samples: list[SubSample] = [{} for _ in lengths]
    offset, total = 0, sum(lengths)
    for name in names:
        dtype = getattr(torch, DTYPES[name])
        stop = offset + total * dtype.itemsize
        for sample, part in zip(samples, data[offset:stop].view(dtype).split(list(lengths)), strict=True):
            sample[name] = part
        offset = stop
    return samples


Pack = dict[str, Any]
"""The n padded sub-samples, concatenated to 1-D tensors under the names in `DTYPES`; the entries in `METADATA`; and
`dataset_ids`, int64[n] (-1: unknown), if a sub-sample has a `dataset_id`. Stages without tokens: only `METADATA`."""

METADATA = ("cu_seqlens", "cu_seqlens_padded", "max_seqlen", "local_cp_size")
"""`cu_seqlens` and `cu_seqlens_padded`, int32[n + 1]: boundaries without and with padding; `max_seqlen`, int32 scalar:
the longest padded length; `local_cp_size`: number of ranks that share the pack, absent if cp groups share all packs."""

_INT32_MAX = 2**31 - 1
_PLAIN = PackingConfig(max_seqlen_per_dp_cp_rank=_INT32_MAX)

Batch = tuple[Any, Any, Any, None, Any, PackedSeqParams, Any]


def build_packed_microbatches(
    grouped_samples: Sequence[Sequence[Mapping[str, Any]]], dev: Any, *, cp_sizes: Sequence[int] | None = None
) -> list[Pack]:
    """Returns one pack per microbatch: the sub-samples, each padded to its `padded_seq_len`, concatenated in order.

    A pack has tokens, labels and position_ids int64[T] and loss_mask float32[T], all 0 at padding; boundaries
    cu_seqlens and cu_seqlens_padded int32[n + 1]; max_seqlen, int32 scalar, the longest padded length;
    local_cp_size, if `cp_sizes` is given; and dataset_ids int64[n], if a sub-sample has a `dataset_id`.

    Args:
        grouped_samples: the sub-samples of each microbatch: {name: tensor} with `original_seq_len`, `padded_seq_len`.
        dev: device of the packs.
        cp_sizes: number of ranks that share each pack; None if all cp ranks share every pack.

    Raises:
        ConfigError: a microbatch has no sub-sample, or a pack has 2**31 tokens or more.
    """
    torch = require("torch", extra="torch")
    packs = []
    for number, samples in enumerate(grouped_samples):
        if not samples:
            raise ConfigError(f"microbatch {number} has no sub-samples")
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
    """Returns the `METADATA` of a pack; `lengths` of sub-samples are without padding, `padded` are with padding."""
    if sum(padded) > _INT32_MAX:
        raise ConfigError(f"a pack has {sum(padded)} tokens, more than 2**31 - 1")
    bounds, padded_bounds = ([0, *itertools.accumulate(counts)] for counts in (lengths, padded))
    return _metadata(bounds, padded_bounds, max(padded), cp_size or 0, dev)


def _metadata(bounds: Sequence[int], padded_bounds: Sequence[int], longest: int, cp_size: int, dev: Any) -> Pack:
    torch = require("torch", extra="torch")
    named = zip(METADATA, (bounds, padded_bounds, longest), strict=False)
    pack = {name: torch.tensor(value, dtype=torch.int32, device=dev) for name, value in named}
    return pack | {"local_cp_size": cp_size} if cp_size else pack


def encode_metadata(packs: Iterable[Mapping[str, Any]]) -> list[int]:
    """Encodes packs, without the tensors of `DTYPES`, as integers for `decode_metadata`."""
    integers: list[int] = []
    for pack in packs:
        sources = pack["dataset_ids"].tolist() if "dataset_ids" in pack else []
        sizes = (len(pack["cu_seqlens"]), len(sources), int(pack["max_seqlen"]), int(pack.get("local_cp_size", 0)))
        integers += [*sizes, *pack["cu_seqlens"].tolist(), *pack["cu_seqlens_padded"].tolist(), *sources]
    return integers


def decode_metadata(integers: Sequence[int], dev: Any) -> list[Pack]:
    """Returns the packs that `encode_metadata` encoded; the packs lack the tensors of `DTYPES`."""
    torch = require("torch", extra="torch")
    packs: list[Pack] = []
    start = 0
    while start < len(integers):
        count, num_sources, max_seqlen, cp_size = integers[start : start + 4]
        first, second = start + 4 + count, start + 4 + 2 * count
        pack = _metadata(integers[start + 4 : first], integers[first:second], max_seqlen, cp_size, dev)
        start = second + num_sources
        if num_sources:
            pack["dataset_ids"] = torch.tensor(integers[second:start], dtype=torch.int64, device=dev)
        packs.append(pack)
    return packs


def metadata_of(pack: Mapping[str, Any], *more: str) -> Pack:
    """Returns the entries of a pack whose names are in `METADATA` or `more`."""
    return {name: pack[name] for name in (*METADATA, *more) if name in pack}


def get_batch_on_this_rank_for_sequence_packing(
    data_iterator: Iterator[Pack] | None,
    vpp_size: int | None = None,
    mtp_on_this_rank: bool = False,  # noqa: FBT001, FBT002  Megatron's order of parameters
    vp_stage: int | None = None,
    pg_collection: Any = None,
    config: Any = None,
) -> Batch:
    """Returns this rank's part of the next microbatch; all ranks of a tensor-parallel group must call this together.

    Args:
        data_iterator: on rank 0 of a tensor-parallel group, an iterator from `wrap_data_iterator`; else None.
        vpp_size: virtual pipeline stages per rank; None for no virtual stages.
        mtp_on_this_rank: whether this stage has multi-token prediction, which needs tokens and labels.
        vp_stage: index of this virtual stage, in [0, `vpp_size`); None for no virtual stages.
        pg_collection: a `ProcessGroups`, or an object with the same attributes; None for a single process.
        config: a `PackingConfig`, or an object with the same attributes, equal on all ranks; required for packs of a
            fixed shape or contiguous partitions. None for zigzag partitions without tail padding.

    Returns:
        (tokens, labels, loss_mask, None, position_ids, packed_seq_params, padding_mask). Tensors are [1, T / cp]:
        loss_mask float32, padding_mask bool, the others int64. At padding, padding_mask is True, other tensors are 0.
        The first stage has tokens and position_ids, the last stage has labels and loss_mask, and stages with
        `mtp_on_this_rank` have all four; missing tensors are None. If the stage has one of these four tensors and the
        pack has `dataset_ids`, packed_seq_params is a `SourcedPackedSeqParams`.

    Raises:
        ConfigError: an iterator is missing or not allowed on a rank; the virtual stage does not exist; or a pack does
            not fit the fixed shape.
        InputError: the pack lacks tensors that this stage needs.
        BuildError: rank 0 of the tensor-parallel group failed.
        StopIteration: there are no more microbatches.
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
    """Implements `get_batch_on_this_rank_for_sequence_packing` for a `Place`; `tells_gaps`: see `cut_for_rank`."""
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
            raise BuildError(
                f"rank {place.tp.global_ranks[0]} failed to read its pack", hint="see the log of that rank"
            )
        indices, mask, params = cut(*decode_metadata(integers, place.device))
        part = {}
        if names:
            data = torch.empty(num_bytes([len(indices)], names), dtype=torch.uint8)
            received = place.tp.broadcast(data, 0, "tokens over TP").to(place.device)
            (part,) = from_bytes(received, [len(indices)], names)
    tokens, labels, position_ids, loss_mask = (part[name].view(1, -1) if name in names else None for name in DTYPES)
    return tokens, labels, loss_mask, None, position_ids, params, mask.view(1, -1)


def _next_pack(place: Place, data_iterator: Iterator[Pack] | None, names: Sequence[str]) -> Pack:
    if data_iterator is None:
        message = "no data iterator on rank 0 of a tensor-parallel group"
        raise ConfigError(message, hint="pass the iterator of `wrap_data_iterator`")
    pack = next(data_iterator)
    if missing := [f"`{name}`" for name in (*names, *METADATA[:3]) if pack.get(name) is None]:
        message = f"{', '.join(missing)} missing in a pack for this stage of the pipeline"
        raise InputError(message, hint="pass the iterator of `wrap_data_iterator` for this virtual stage")
    needed = metadata_of(pack, *names, *(["dataset_ids"] if names else []))
    return {name: value.to(place.device) if hasattr(value, "to") else value for name, value in needed.items()}


def refuse_iterator(place: Place, data_iterator: Any) -> None:
    """Raises if a rank above 0 of a tensor-parallel group has an iterator, or a list that contains an iterator."""
    given = data_iterator if isinstance(data_iterator, list) else [data_iterator]
    if any(iterator is not None for iterator in given):
        message = f"rank {place.tp.rank} of a tensor-parallel group has a data iterator, but only rank 0 reads data"
        raise ConfigError(message, hint="pass None on ranks other than 0")


def _names_needed(place: Place, vpp_size: int | None, vp_stage: int | None, *, mtp: bool) -> list[str]:
    stages = vpp_size or 1
    if vp_stage is None and vpp_size is None:
        vp_stage = 0
    if vp_stage is None or not 0 <= vp_stage < stages:
        message = f"virtual pipeline stage {vp_stage} out of range: there are {stages} virtual stages"
        raise ConfigError(message, hint="pass `vpp_size` and `vp_stage` together")
    is_first = place.pp.rank == 0 and vp_stage == 0
    is_last = place.pp.rank == place.pp.size - 1 and vp_stage == stages - 1
    needed = {"tokens": is_first, "position_ids": is_first, "labels": is_last, "loss_mask": is_last}
    return [name for name in DTYPES if needed[name] or mtp]
