"""What attention is told of the documents of samples: the document of each token, and the blocks of the mask.

The lists of blocks are those of torch's FlexAttention, made of where documents begin: no mask is looked at.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tokenloom import kernels
from tokenloom.datasets.outputs import Output
from tokenloom.datasets.protocols import Int64s
from tokenloom.errors import ConfigError
from tokenloom.numbers import checked_integer
from tokenloom.optional import require

Attention = Literal["cu_seqlens", "document_ids", "block_mask"]
ATTENTION: tuple[Attention, ...] = get_args(Attention)

BLOCK_LISTS = ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices")
"""Blocks in which some token sees another, and those in which all see all, as `BlockMask.from_kv_blocks` takes them."""

_INT32 = np.dtype(np.int32)


def attention_outputs(attention: Attention | None, *, length: int, block_size: int) -> list[Output]:
    """Returns the arrays of a sample beside its boundaries."""
    if attention in (None, "cu_seqlens"):
        return []
    shapes: dict[str, tuple[int, ...]] = {"document_ids": (length,)}
    if attention == "block_mask":
        count = -(-length // block_size)
        shapes |= dict(zip(BLOCK_LISTS, ((1, count), (1, count, count)) * 2, strict=True))
    return [Output(name=name, shape=shape, dtype=_INT32) for name, shape in shapes.items()]


def fill_attention(out: Mapping[str, Any], *, block_size: int, window: int | None, rows: Int64s | None = None) -> None:
    """Fills what samples have beside their boundaries, in some rows of a batch, or in all."""
    lists = [out[name] for name in BLOCK_LISTS] if "kv_indices" in out else []
    kernels.fill_attention(
        out["cu_seqlens"], out["document_ids"], lists, block_size=block_size, window=window, rows=rows
    )


def block_mask_arrays(
    cu_seqlens: ArrayLike, *, block_size: int = 128, window: int | None = None
) -> dict[str, NDArray[np.int32]]:
    """Returns what `attention="block_mask"` adds to samples, from where documents begin: for packs made otherwise.

    Example:
        >>> arrays = block_mask_arrays([0, 5, 8], block_size=2)
        >>> arrays["document_ids"].tolist(), arrays["kv_num_blocks"].tolist(), arrays["full_kv_num_blocks"].tolist()
        ([0, 0, 0, 0, 0, 1, 1, 1], [[1, 1, 3, 2]], [[0, 1, 0, 0]])

    Args:
        cu_seqlens: integers[num_documents + 1] or [batch, n], where documents begin, from 0, and the end of all; a row
            may be filled up by repeating the end.
        block_size: tokens of a block of the mask.
        window: how many tokens a token sees, itself included; None for all of its document before it.

    Returns:
        int32 arrays, with the batch axis that `cu_seqlens` has: document_ids [tokens], kv_num_blocks and
        full_kv_num_blocks [1, blocks], kv_indices and full_kv_indices [1, blocks, blocks].

    Raises:
        ConfigError: the boundaries do not rise from 0, or a setting is below 1.
    """
    bounds = np.ascontiguousarray(cu_seqlens, dtype=np.int32)
    if bounds.ndim not in (1, 2) or bounds.shape[-1] < 2 or not bounds.size:
        message = f"expected boundaries of documents, int32[num_documents + 1], found shape {list(bounds.shape)}"
        raise ConfigError(message, hint="such as [0, 5, 8] for two documents of 5 and 3 tokens")
    size = checked_integer("block_size", block_size, at_least=1)
    check_window("window", window)
    outputs = attention_outputs("block_mask", length=int(bounds.flat[-1]), block_size=size)
    out = {each.name: np.empty((*bounds.shape[:-1], *each.shape), dtype=_INT32) for each in outputs}
    try:
        fill_attention(out | {"cu_seqlens": bounds}, block_size=size, window=window)
    except ValueError as error:
        raise ConfigError(str(error), hint="as `cu_seqlens` of a sample are") from error
    return out


def flex_block_mask(batch: Mapping[str, Any], *, block_size: int = 128, window: int | None = None) -> Any:
    """Returns the `BlockMask` of a batch for torch's FlexAttention, equal to what `create_block_mask` makes.

    Args:
        batch: torch tensors with a batch axis, of samples with `attention="block_mask"`, on any device.
        block_size, window: the `attention_block_size` and `attention_window` of these samples.

    Raises:
        ConfigError: the batch has no lists of blocks, or they are of another size.
        MissingExtraError: torch is not installed.
    """
    require("torch", extra="torch")
    from torch.nn.attention.flex_attention import BlockMask

    missing = [name for name in ("document_ids", *BLOCK_LISTS) if name not in batch]
    if missing:
        message = f"expected lists of blocks in a batch, found none under {', '.join(missing)}"
        raise ConfigError(message, hint='make samples with `attention="block_mask"`')
    documents = batch["document_ids"]
    length, count = documents.shape[-1], batch["kv_indices"].shape[-1]
    if count != -(-length // block_size):
        message = f"expected {-(-length // block_size)} blocks of {block_size} for {length} tokens, found {count}"
        raise ConfigError(message, hint="give the `attention_block_size` of the samples as `block_size`")

    def sees(row: Any, _head: Any, query: Any, key: Any) -> Any:
        seen = (key <= query) & (documents[row, query] == documents[row, key])
        return seen if window is None else seen & (query - key < window)

    return BlockMask.from_kv_blocks(
        *(batch[name] for name in BLOCK_LISTS), BLOCK_SIZE=block_size, mask_mod=sees, seq_lengths=(length, length)
    )


def check_window(name: str, window: int | None) -> None:
    """Checks how many tokens a token sees."""
    if window is not None:
        checked_integer(name, window, at_least=1)
