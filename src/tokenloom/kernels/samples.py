"""Kernels that fill tokens and attention masks of samples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom import _native
from tokenloom.kernels.storage import Watch

Int64s = NDArray[np.int64]
BLOCK_LISTS = ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices")
"""Names of the arrays of partial and full blocks, as in `BlockMask.from_kv_blocks`."""

BlockLists = tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]


def fill_attention(out: Mapping[str, NDArray[Any]], *, length: int, block_size: int, window: int | None) -> None:
    """Fills document numbers and block lists of attention masks from the boundaries of documents in samples.

    Args:
        out: arrays by name. Reads `cu_seqlens`, int32[..., num_bounds], which ascends from 0 to the end of the row.
            Fills, if present, `document_ids`, int32[..., length], and the four arrays named in `BLOCK_LISTS`: counts,
            int32[..., blocks], and lists, int32[..., blocks, blocks]. Uses `seen_stop`, int32[..., length], if present:
            token i attends only to tokens before `seen_stop[i]`. With `loss_mask`, `seen_stop` is filled: tokens attend
            to all tokens of their document up to its first token with loss. Without `loss_mask`, `seen_stop` is read.
        length: tokens per row.
        block_size: tokens per block.
        window: number of tokens that a token attends to, including itself; None for all earlier tokens of its document.

    Raises:
        ValueError: boundaries do not ascend from 0 to the end of their row.
    """
    get, bounds = out.get, out["cu_seqlens"]
    seen_stop = get("seen_stop")
    loss_mask = None if seen_stop is None else get("loss_mask")
    numbers = (bounds.shape[-1], length, block_size, window or 0)
    _native.fill_attention(bounds, *numbers, get("document_ids"), loss_mask, seen_stop, block_lists(out))


def block_lists(sample: Mapping[str, NDArray[Any]]) -> BlockLists | None:
    """Returns the arrays named in `BLOCK_LISTS`, or None if the sample lacks them."""
    if (first := sample.get("kv_num_blocks")) is None:
        return None
    return first, sample["kv_indices"], sample["full_kv_num_blocks"], sample["full_kv_indices"]


def gather_spans(
    data: NDArray[np.uint8],
    pointers: Int64s,
    *,
    dtype_code: int,
    sequences: Int64s,
    starts: Int64s,
    lengths: Int64s,
    out: NDArray[np.generic],
    watch: Watch | None = None,
) -> None:
    """Copies the tokens of spans from mapped bytes into `out`; raises ChangedFileError if `watch` detects a change.

    `pointers` are the byte offsets of all sequences in `data`. Span i has `lengths[i]` tokens of sequence
    `sequences[i]`, from token `starts[i]` of the sequence on.
    """
    native = None if watch is None else watch.native
    _native.gather_spans(data, pointers, dtype_code, sequences, starts, lengths, out, native)
