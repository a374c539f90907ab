"""Kernels of samples: tokens and masks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom import _native
from tokenloom.kernels.arrays import Int64s
from tokenloom.kernels.storage import Watch

BLOCK_LISTS = ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices")
"""Partial and full blocks, as in `BlockMask.from_kv_blocks`."""

BlockLists = tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]


def fill_attention(out: Mapping[str, NDArray[Any]], *, length: int, block_size: int, window: int | None) -> None:
    """Fills the document of each token, or the blocks of the mask, from the boundaries of samples.

    Args:
        out: arrays by name. `cu_seqlens`, int32[..., num_bounds], from 0 to the tokens of a row, is read. If present,
            `document_ids`, int32[..., length], and `BLOCK_LISTS`, int32[..., blocks] and [..., blocks, blocks], are
            filled; and `seen_stop`, int32[..., length], the end of the tokens that each one sees, by `loss_mask`: those
            of a document up to the first one with loss see each other. Without `loss_mask`, `seen_stop` is read.
        length: tokens of a row.
        block_size: tokens of a block.
        window: number of tokens that a token sees; None for all of its document before it.

    Raises:
        ValueError: boundaries do not rise from 0 to the end of their row.
    """
    get, bounds = out.get, out["cu_seqlens"]
    seen_stop = get("seen_stop")
    loss_mask = None if seen_stop is None else get("loss_mask")
    numbers = (bounds.shape[-1], length, block_size, window or 0)
    _native.fill_attention(bounds, *numbers, get("document_ids"), loss_mask, seen_stop, block_lists(out))


def block_lists(sample: Mapping[str, NDArray[Any]]) -> BlockLists | None:
    """Returns the `BLOCK_LISTS` among arrays, or None."""
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
    """Copies the tokens of spans, back to back, from mapped bytes into `out`; raises ChangedFileError by `watch`."""
    native = None if watch is None else watch.native
    _native.gather_spans(data, pointers, dtype_code, sequences, starts, lengths, out, native)
