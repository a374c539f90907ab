"""Context parallelism of packed samples: which tokens each rank holds, and what attention is told about them.

Each sequence of a pack is cut into 2 × cp equal chunks, and rank c holds chunks c and 2 × cp - 1 - c of every sequence,
in order. Under a causal mask all ranks then have the same work, whatever the lengths. Where settings name a shape, as
CUDA graphs need it, packs are filled up before they are cut; that tail is padding in the mask, whatever it is called.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from tokenloom.errors import ConfigError, InputError, MissingExtraError
from tokenloom.optional import require
from tokenloom.packing.config import EXTEND_LAST, ZIGZAG, PackingConfig


@dataclass(slots=True, kw_only=True)
class PackedSeqParams:
    """What attention is told about a pack; Megatron's attention takes it for its own class of this name.

    Lengths are those of whole sequences, not of this rank's part of them. All four arrays of boundaries are the padded
    ones, because that is where sequences lie; of packs that are filled up to a shape, the first two count without
    padding, and `pad_between_seqs` says so.

    Attributes:
        qkv_format: "thd", tokens × heads × width without a batch axis.
        cu_seqlens_q, cu_seqlens_kv, cu_seqlens_q_padded, cu_seqlens_kv_padded: int32[num_sequences + 1] tensors.
        max_seqlen_q, max_seqlen_kv: the longest padded sequence, in tokens; what the shape allows, where it says how
            many sequences there are.
        local_cp_size: ranks that share this pack, where that differs between packs; else None.
        cp_group: the process group of those ranks; else None.
        total_tokens: what this rank holds, of packs that are filled up to any number of sequences; else None.
        pad_between_seqs: True of packs that are filled up to a shape; else None.
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
    """What attention is told about a pack of several datasets or sources, and which these are.

    Attributes:
        dataset_ids: int64[num_sequences] tensor, the dataset of a blend, or source of a run, that each sequence is
            from; -1 of one that does not say, and of what fills a pack up. No attention looks at it.
    """

    dataset_ids: Any


def context_parallel_indices(cu_seqlens_padded: Any, *, cp_size: int, cp_rank: int) -> Any:
    """Returns where in a pack the tokens of one context-parallel rank lie, in its order.

    Args:
        cu_seqlens_padded: integer[num_sequences + 1] tensor, boundaries of the sequences, from 0.
        cp_size: ranks that share the pack.
        cp_rank: which of them.

    Returns:
        int64[num_tokens / cp_size] on the same device. Sequences may be empty. On a CUDA device, Transformer Engine's
        `thd_get_partitioned_indices` makes it where that is installed; the values are the same.

    Raises:
        ConfigError: a length is no multiple of 2 × cp, or there is no such rank.
        MissingExtraError: torch is not installed.

    Example:
        >>> import torch
        >>> context_parallel_indices(torch.tensor([0, 8, 12]), cp_size=2, cp_rank=1).tolist()
        [2, 3, 4, 5, 9, 10]
    """
    torch = require("torch", extra="torch")
    if not 0 <= cp_rank < cp_size:
        message = f"expected a context-parallel rank below {cp_size}, found {cp_rank}"
        raise ConfigError(message)
    boundaries = cu_seqlens_padded.to(torch.int64)
    num_tokens = int(boundaries[-1])
    if cp_size == 1:
        return torch.arange(num_tokens, device=boundaries.device)
    lengths = boundaries.diff()
    uneven = (lengths % (2 * cp_size)).nonzero()
    if len(uneven):
        number = int(uneven[0])
        found = f"sequence {number} of {int(lengths[number])} tokens"
        message = f"expected padded lengths that are multiples of 2 * {cp_size}, found {found}"
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
    """Fills a pack up to its shape, if settings name one, and cuts it for the ranks that share it.

    Args:
        pack: its boundaries, and what else it has but tokens.
        settings: the shape, and how ranks share a pack.
        cp_size: ranks that share the pack.
        cp_rank: which of them.
        cp_group: their process group, for packs that say how many ranks share them.
        tells_gaps: whether boundaries without padding are told of all packs, not only of those that are filled up.

    Returns:
        Where in the pack the tokens of this rank lie, int64; which of these are padding, bool; and what attention is
        told.

    Raises:
        ConfigError: the pack is too large for the shape, or cannot be cut for these ranks.
        InputError: the boundaries do not fit each other.
    """
    torch = require("torch", extra="torch")
    real, padded, longest = pack["cu_seqlens"], pack["cu_seqlens_padded"], int(pack["max_seqlen"])
    mask = padding_mask_of(real, padded)
    is_filled = settings.pad_packed_seq_alignment is not None
    if is_filled:
        tail = _tail(settings, len(mask), cp_size)
        mask = torch.nn.functional.pad(mask, (0, tail), value=True)
        real, padded, longest = _with_tail(settings, tail, real, padded, longest)
    if settings.cp_partition_mode == ZIGZAG:
        indices = context_parallel_indices(padded, cp_size=cp_size, cp_rank=cp_rank)
    else:
        if len(mask) % cp_size:
            message = f"expected a pack of a multiple of {cp_size} tokens, found {len(mask)}"
            raise ConfigError(message, hint="pad each sequence before packing, or set `pad_packed_seq_alignment`")
        share = len(mask) // cp_size
        indices = torch.arange(cp_rank * share, (cp_rank + 1) * share, device=mask.device)
    is_any_number = settings.thd_max_packed_sequences is None
    told: dict[str, Any] = {
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
        return indices, mask[indices], PackedSeqParams(**told)
    sources = torch.nn.functional.pad(sources, (0, len(padded) - 1 - len(sources)), value=-1)
    return indices, mask[indices], SourcedPackedSeqParams(**told, dataset_ids=sources)


def _tail(settings: PackingConfig, num_tokens: int, cp_size: int) -> int:
    """Returns how many tokens fill a pack up to its shape."""
    num_rows, alignment = settings.max_seqlen_per_dp_cp_rank, settings.pad_packed_seq_alignment
    if isinstance(alignment, int):
        num_rows = -(-num_tokens // (cp_size * alignment)) * alignment
    tail = num_rows * cp_size - num_tokens
    if tail < 0:
        message = f"expected at most {num_rows} tokens for each of {cp_size} ranks in a pack, found {num_tokens} in all"
        raise ConfigError(message, hint="raise `max_seqlen_per_dp_cp_rank`, or leave out sub-samples")
    if settings.cp_partition_mode == ZIGZAG and cp_size > 1 and tail % (2 * cp_size):
        message = f"expected a tail of a multiple of 2 * {cp_size} tokens, to cut it for these ranks, found {tail}"
        raise ConfigError(message, hint="fill up to an even number of tokens per rank")
    return tail


def _with_tail(settings: PackingConfig, tail: int, real: Any, padded: Any, longest: int) -> tuple[Any, Any, int]:
    """Returns the boundaries of a pack that is filled up, without and with padding, and its longest sequence."""
    cat = require("torch", extra="torch").cat
    if tail and settings.thd_tail_padding_policy == EXTEND_LAST:
        padded = cat([padded[:-1], padded[-1:] + tail])
    elif tail:
        real, padded = (cat([row, row[-1:] + tail]) for row in (real, padded))
    if (most := settings.thd_max_packed_sequences) is None:
        return real, padded, max(longest, int(padded[-1] - padded[-2]))
    missing = most + 1 - len(padded)
    if missing < 0:
        message = f"expected at most {most} sequences in a pack, found {len(padded) - 1}"
        raise ConfigError(message, hint="raise `thd_max_packed_sequences`")
    real, padded = (cat([row, row[-1:].expand(missing)]) for row in (real, padded))
    return real, padded, int(padded[-1])


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


@cache
def _transformer_engine() -> Any:
    """Returns Transformer Engine's extension for torch, or None where it is not installed."""
    try:
        return require("transformer_engine_torch", extra="torch")
    except MissingExtraError:
        return None
