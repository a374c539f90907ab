"""Packs of one shape, under the names of the reference's development branch."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch
import torch.nn.functional as F

from tokenloom.distributed.collectives import Channel
from tokenloom.errors import ConfigError
from tokenloom.megatron.core.datasets.parallel_groups import parallel_state
from tokenloom.numbers import checked_integer
from tokenloom.packing.static_shapes import APPEND_DUMMY_SEQ, EXTEND_LAST, ZIGZAG, StaticShape, tail_padding_policy

_PER_TOKEN = ("tokens", "labels", "loss_mask", "position_ids", "padding_mask")


def resolve_thd_tail_padding_policy(config: Any) -> str:
    """Returns "append_dummy_seq", by default, or "extend_last".

    Raises:
        ConfigError: the configuration says another word.
    """
    return tail_padding_policy(config)


def get_thd_padding_kwargs(
    pad_packed_seq_alignment: int | str,
    max_seqlen_per_dp_cp_rank: int | None,
    thd_max_packed_sequences: int | None,
    cuda_graph_static: bool,  # noqa: FBT001  the reference's parameters
) -> tuple[int | None, int | None, int | None]:
    """Returns (alignment, target_len, max_num_seqs) for `pad_sequence_for_thd`; one of the first two is None."""
    if cuda_graph_static or pad_packed_seq_alignment == "max":
        if max_seqlen_per_dp_cp_rank is None:
            message = "expected max_seqlen_per_dp_cp_rank, to which packs are filled up, found None"
            raise ConfigError(message)
        return None, int(max_seqlen_per_dp_cp_rank), thd_max_packed_sequences
    return int(pad_packed_seq_alignment), None, thd_max_packed_sequences


def get_packed_sequence_alignment(config: Any, tp_size: int) -> tuple[int, bool]:
    """Returns what the tokens of a rank are made a multiple of, and whether packs are filled up.

    Args:
        config: has pad_packed_seq_alignment, sequence_parallel, fp8 and fp8_recipe, where it says them.
        tp_size: tensor-parallel ranks, which share the tokens with sequence parallelism.

    Raises:
        ConfigError: the alignment is not positive.

    Example:
        >>> from types import SimpleNamespace
        >>> get_packed_sequence_alignment(SimpleNamespace(fp8="hybrid", fp8_recipe="mxfp8", sequence_parallel=True), 4)
        (128, True)
    """
    requested = getattr(config, "pad_packed_seq_alignment", None)
    in_blocks = getattr(config, "fp8", None) is not None and getattr(config, "fp8_recipe", None) == "mxfp8"
    shares = tp_size if getattr(config, "sequence_parallel", False) else 1
    alignment = math.lcm(2 * shares, 32 * shares if in_blocks else 1)
    if requested not in (None, "max"):
        alignment = math.lcm(alignment, checked_integer("pad_packed_seq_alignment", requested, at_least=1))
    return alignment, requested is not None or in_blocks


def align_sequences(batch: dict[str, Any], cp_size: int) -> None:
    """Pads each sequence of a pack to a multiple of 2 × cp, in place of its tensors and boundaries."""
    physical = batch["cu_seqlens_padded"]
    lengths = physical.diff()
    padded = lengths + -lengths % (2 * cp_size if cp_size > 1 else 1)
    if torch.equal(padded, lengths):
        return
    bounds = F.pad(padded.cumsum(0, dtype=physical.dtype), (1, 0))
    places = torch.arange(int(physical[-1]), device=physical.device)
    places += torch.repeat_interleave(bounds[:-1] - physical[:-1], lengths)
    for name in _PER_TOKEN:
        if batch.get(name) is not None:
            filled = batch[name].new_full((int(bounds[-1]),), name == "padding_mask")
            batch[name] = filled.index_copy(0, places, batch[name])
    batch["cu_seqlens_padded"] = bounds
    batch["max_seqlen"] = padded.max().to(torch.int32)


def pad_packed_batch_before_cp_slice(batch: dict[str, Any], config: Any, cp_size: int, tp_size: int) -> None:
    """Fills a whole pack up, in place, before ranks get their parts: each sequence, then a dummy one without loss.

    Args:
        batch: tensors [T] of a pack, where they are there, and its boundaries.
        config: see `get_packed_sequence_alignment`; and `max_seqlen_per_dp_cp_rank`, what a rank holds at most.
        cp_size: ranks that share it.
        tp_size: tensor-parallel ranks.

    Raises:
        ConfigError: the pack is too large, or what a rank holds is no multiple of the alignment.
    """
    alignment, enabled = get_packed_sequence_alignment(config, tp_size)
    if not enabled:
        return
    align_sequences(batch, cp_size)
    total = int(batch["cu_seqlens_padded"][-1])
    here = -(-total // cp_size)
    limit = getattr(config, "max_seqlen_per_dp_cp_rank", None)
    target = -(-here // alignment) * alignment
    if getattr(config, "pad_packed_seq_alignment", None) == "max":
        if limit is None or limit % alignment:
            message = f"expected max_seqlen_per_dp_cp_rank to be a multiple of {alignment}, found {limit}"
            raise ConfigError(message)
        target = max(limit, here)
    if limit is not None and target > limit:
        message = f"a pack of {here} tokens per rank, filled up to {target}, exceeds max_seqlen_per_dp_cp_rank={limit}"
        raise ConfigError(message, hint="raise the limit, or put less into a pack")
    if not (tail := target * cp_size - total):
        return
    for name in _PER_TOKEN:
        if batch.get(name) is not None:
            batch[name] = F.pad(batch[name], (0, tail), value=name == "padding_mask")
    for name in ("cu_seqlens", "cu_seqlens_padded"):
        batch[name] = torch.cat([batch[name], batch[name][-1:] + tail])
    batch["max_seqlen"] = batch["cu_seqlens_padded"].diff().max().to(torch.int32)


def extend_thd_padding_before_cp_slice(
    cu_seqlens_padded: Any,
    max_seqlen: Any,
    *,
    alignment: int | None,
    target_len: int | None,
    cp_size: int,
    cp_partition_mode: str,
) -> tuple[Any, Any, int]:
    """Returns the boundaries of a whole pack whose last sequence has the tail, its longest, and its tokens."""
    shape = StaticShape(num_tokens=target_len, multiple=alignment, num_sequences=None, extends_last=True)
    zigzag = cp_partition_mode == ZIGZAG
    filled = shape.fill(cu_seqlens_padded, cu_seqlens_padded, int(max_seqlen), cp_size=cp_size, zigzag=zigzag)
    longest = filled.max_seqlen if filled.num_tokens > int(cu_seqlens_padded[-1]) else int(max_seqlen)
    if isinstance(max_seqlen, torch.Tensor):
        longest = torch.full_like(max_seqlen, longest)
    return filled.cu_seqlens_padded, longest, filled.num_tokens


def pad_sequence_for_thd(
    tokens: Any,
    labels: Any,
    loss_mask: Any,
    position_ids: Any,
    packed_seq_params: Any,
    alignment: int | None = None,
    target_len: int | None = None,
    max_num_seqs: int | None = None,
    tail_padding_policy: str = APPEND_DUMMY_SEQ,
    padding_mask: Any = None,
    cp_group: Any = None,
    cp_size: int | None = None,
    cp_rank: int | None = None,
) -> tuple[Any, Any, Any, Any, Any, Any]:
    """Returns the tensors of a pack, or of a rank's part of one, with their tail: zeros, True in the mask.

    Args:
        tokens, labels, loss_mask, position_ids: [1, T] or None.
        packed_seq_params: what attention is told, of the whole pack.
        alignment: what T becomes a multiple of; or
        target_len: what it becomes.
        max_num_seqs: the most sequences, dummy included; boundaries become one more.
        tail_padding_policy: "append_dummy_seq" or "extend_last"; the latter for whole packs only.
        padding_mask: [1, T], what is padding already.
        cp_group, cp_size: the ranks that share the pack.
        cp_rank: not needed.

    Returns:
        (tokens, labels, loss_mask, position_ids, packed_seq_params, padding_mask).

    Raises:
        ConfigError: it is too large, or the tail cannot be cut for these ranks.
    """
    del cp_rank
    if (alignment is None) == (target_len is None):
        message = f"expected either an alignment or a target_len, found {alignment} and {target_len}"
        raise ConfigError(message)
    params = packed_seq_params
    num_ranks = _num_sharing(params, cp_group, cp_size)
    extends = tail_padding_policy == EXTEND_LAST
    given: Any = next((one for one in (tokens, labels, loss_mask, position_ids, padding_mask) if one is not None), None)
    whole: Any = next((one for one in (params.cu_seqlens_q_padded, params.cu_seqlens_q) if one is not None), None)
    if whole is None and given is None:
        message = "expected tensors of a pack, or its boundaries, found neither"
        raise ConfigError(message)
    here = given.shape[-1] if given is not None else int(whole[-1]) // num_ranks
    there = int(whole[-1]) if whole is not None else here * num_ranks
    num_rows = target_len if target_len is not None else -(-here // int(alignment or 1)) * int(alignment or 1)
    has_tail = num_rows * num_ranks > there
    if has_tail and extends and num_ranks > 1:
        message = "expected a whole pack, to give its last sequence the tail, found a part"
        raise ConfigError(message, hint="fill it up with `extend_thd_padding_before_cp_slice` before it is cut")
    shape = StaticShape(num_tokens=num_rows, multiple=None, num_sequences=max_num_seqs, extends_last=extends)
    mode = getattr(params, "cp_partition_mode", ZIGZAG)
    made_up = has_tail and extends  # without padded boundaries, the tail makes some
    changes: dict[str, Any] = {}
    for side in ("q", "kv"):
        names = [f"cu_seqlens_{side}", f"cu_seqlens_{side}_padded"]
        valid, padded = (getattr(params, name) for name in names)
        if valid is None and padded is None:
            continue
        filled = shape.fill(
            padded if valid is None else valid,
            valid if padded is None else padded,
            int(getattr(params, f"max_seqlen_{side}") or 0),
            cp_size=num_ranks,
            zigzag=mode == ZIGZAG,
        )
        own = {names[0]: filled.cu_seqlens, names[1]: filled.cu_seqlens_padded, f"max_seqlen_{side}": filled.max_seqlen}
        missing = [name for name, value in zip(names, (valid, padded), strict=True) if value is None and not made_up]
        changes |= {name: value for name, value in own.items() if name not in missing}
    changes["total_tokens"] = num_rows if max_num_seqs is None else None
    changes["pad_between_seqs"] = _has_gaps(params, has_tail=has_tail, fixed=max_num_seqs is not None, extends=extends)
    known = {field.name for field in dataclasses.fields(params)}
    params = dataclasses.replace(params, **{name: value for name, value in changes.items() if name in known})
    rows = [
        None if one is None else F.pad(one, (0, num_rows - here)) for one in (tokens, labels, loss_mask, position_ids)
    ]
    device = given.device if given is not None else whole.device
    mask = torch.zeros(1, here, dtype=torch.bool, device=device) if padding_mask is None else padding_mask
    return *rows, params, F.pad(mask, (0, num_rows - here), value=True)


def _has_gaps(params: Any, *, has_tail: bool, fixed: bool, extends: bool) -> bool | None:
    """Returns what attention is told about padding between the sequences of a pack with its tail."""
    before: bool | None = getattr(params, "pad_between_seqs", None)
    if fixed or (has_tail and extends):
        return True
    if not has_tail or before is not None:
        return before
    sides = [(params.cu_seqlens_q, params.cu_seqlens_q_padded), (params.cu_seqlens_kv, params.cu_seqlens_kv_padded)]
    return any(None not in (a, b) and not torch.equal(a, b) for a, b in sides)


def _num_sharing(params: Any, cp_group: Any, cp_size: int | None) -> int:
    """Returns how many ranks share a pack."""
    group = cp_group if cp_group is not None or cp_size is not None else params.cp_group
    if group is not None:
        return Channel(group).size
    size = cp_size if cp_size is not None else params.local_cp_size
    state = parallel_state()
    if size is None and state is not None:
        size = state.get_context_parallel_world_size()
    return int(size or 1)
