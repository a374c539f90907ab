"""Context parallelism of packed samples: which tokens each rank holds, and what attention is told about them.

Each sequence of a pack is cut into 2 × cp equal chunks, and rank c holds chunks c and 2 × cp - 1 - c of every sequence,
in order. Under a causal mask all ranks then have the same work, whatever the lengths.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from tokenloom.errors import ConfigError, MissingExtraError
from tokenloom.optional import require


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


def contiguous_indices(num_tokens: int, *, cp_size: int, cp_rank: int, device: Any = None) -> Any:
    """Returns where in a pack the tokens of one context-parallel rank lie, if each has a piece of the whole: int64."""
    if num_tokens % cp_size:
        message = f"expected a pack of a multiple of {cp_size} tokens, found {num_tokens}"
        raise ConfigError(message, hint="pad each sequence before packing, or set `pad_packed_seq_alignment`")
    share = num_tokens // cp_size
    return require("torch", extra="torch").arange(cp_rank * share, (cp_rank + 1) * share, device=device)


@cache
def _transformer_engine() -> Any:
    """Returns Transformer Engine's extension for torch, or None where it is not installed."""
    try:
        return require("transformer_engine_torch", extra="torch")
    except MissingExtraError:
        return None
