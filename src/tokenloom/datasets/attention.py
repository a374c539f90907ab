"""Computes labels for multi-token prediction, and FlexAttention block masks from document boundaries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tokenloom.datasets.sample_arrays import Output
from tokenloom.errors import ConfigError
from tokenloom.kernels.samples import BLOCK_LISTS, fill_attention
from tokenloom.numbers import checked_integer
from tokenloom.optional import require

Attention = Literal["cu_seqlens", "document_ids", "block_mask"]

_INT32 = np.dtype(np.int32)


def attention_outputs(
    attention: Attention | None, *, length: int, block_size: int, has_prefixes: bool = False
) -> list[Output]:
    """Describes the arrays that `attention` adds to a sample; with `has_prefixes`, also the array `seen_stop`."""
    shapes: dict[str, tuple[int, ...]] = {}
    if attention == "document_ids":
        shapes = {"document_ids": (length,)}
    elif attention == "block_mask":
        count = -(-length // block_size)
        shapes = dict(zip(BLOCK_LISTS, ((1, count), (1, count, count)) * 2, strict=True))
    if has_prefixes:
        shapes["seen_stop"] = (length,)
    return [Output(name=name, shape=shape, dtype=_INT32) for name, shape in shapes.items()]


def block_mask_arrays(
    cu_seqlens: ArrayLike, *, block_size: int = 128, window: int | None = None
) -> dict[str, NDArray[np.int32]]:
    """Computes FlexAttention block lists from `cu_seqlens`, for packs that do not have block lists yet.

    Example:
        >>> arrays = block_mask_arrays([0, 5, 8], block_size=2)
        >>> arrays["kv_num_blocks"].tolist(), arrays["full_kv_num_blocks"].tolist()
        ([[1, 1, 3, 2]], [[0, 1, 0, 0]])

    Args:
        cu_seqlens: integers[num_documents + 1], optionally with a leading batch axis: the start of each document (0
            for the first), then the end of the last document. Repeat this end to pad a row.
        block_size: tokens per block of the mask.
        window: maximum number of tokens that a token attends to, including itself; None for no limit in its document.

    Returns:
        int32[1, blocks]: kv_num_blocks and full_kv_num_blocks. int32[1, blocks, blocks]: kv_indices and
        full_kv_indices. If `cu_seqlens` has a batch axis, each array also begins with a batch axis.

    Raises:
        ConfigError: `cu_seqlens` does not ascend from 0, or `block_size` or `window` is below 1.
    """
    bounds = np.ascontiguousarray(cu_seqlens, dtype=np.int32)
    if bounds.ndim not in (1, 2) or bounds.shape[-1] < 2 or not bounds.size:
        message = f"`cu_seqlens`: must be int32[num_documents + 1], got shape {list(bounds.shape)}"
        raise ConfigError(message, hint="pass [0, 5, 8] for two documents of 5 and 3 tokens")
    size, length = checked_integer("block_size", block_size, at_least=1), int(bounds.flat[-1])
    if window is not None:
        checked_integer("window", window, at_least=1)
    outputs = attention_outputs("block_mask", length=length, block_size=size)
    out = {each.name: np.empty((*bounds.shape[:-1], *each.shape), dtype=_INT32) for each in outputs}
    try:
        fill_attention(out | {"cu_seqlens": bounds}, length=length, block_size=size, window=window)
    except ValueError as error:
        raise ConfigError(str(error), hint="pass the start of each document, then the end of the last") from error
    return out


def flex_block_mask(batch: Mapping[str, Any], *, block_size: int = 128, window: int | None = None) -> Any:
    """Returns the `BlockMask` of a batch for torch's FlexAttention, equal to the result of `create_block_mask`.

    Args:
        batch: batch of samples with `attention="block_mask"`: torch tensors with a batch axis, on any device.
        block_size, window: the settings `attention_block_size` and `attention_window` of the dataset.

    Raises:
        ConfigError: the batch has no block lists, or block lists of another `block_size`.
        MissingExtraError: torch is not installed.
    """
    require("torch", extra="torch")
    from torch.nn.attention.flex_attention import BlockMask

    if missing := [name for name in ("position_ids", *BLOCK_LISTS) if name not in batch]:
        raise ConfigError(f"the batch has no {', '.join(missing)}", hint='set `attention="block_mask"` in the config')
    places = batch["position_ids"]  # from 0 in each document
    length, count = places.shape[-1], batch["kv_indices"].shape[-1]
    if count != -(-length // block_size):
        message = f"expected {-(-length // block_size)} blocks of {block_size} tokens in {length} tokens, found {count}"
        raise ConfigError(message, hint="pass the setting `attention_block_size` of the dataset as `block_size`")

    stops = batch.get("seen_stop")

    def sees(row: Any, _head: Any, query: Any, key: Any) -> Any:
        seen = key <= query if stops is None else key < stops[row, query]
        seen = seen & (query - key <= places[row, query])
        return seen if window is None else seen & (query - key < window)

    return BlockMask.from_kv_blocks(
        *(batch[name] for name in BLOCK_LISTS), BLOCK_SIZE=block_size, mask_mod=sees, seq_lengths=(length, length)
    )


def future_labels(batch: Mapping[str, Any], num_future: int) -> tuple[Any, Any]:
    """Returns `num_future` further labels per token for multi-token prediction, and the loss mask of these labels.

    Labels do not cross document boundaries; a missing label is 0, and so is its loss mask. Pass a batch before it is
    divided among context-parallel ranks.

    Example:
        >>> import torch
        >>> batch = {"labels": [2, 3, 8, 9], "loss_mask": [1.0] * 4, "position_ids": [0, 1, 2, 0]}
        >>> labels, loss_mask = future_labels({name: torch.tensor(row) for name, row in batch.items()}, 2)
        >>> labels.tolist(), loss_mask.tolist()
        ([[3, 0, 0, 0], [0, 0, 0, 0]], [[1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]])

    Args:
        batch: labels, loss_mask and position_ids, torch tensors [..., tokens]; position_ids restart at every document.
        num_future: number of further labels per token.

    Returns:
        labels and loss mask, both [..., num_future, tokens]; `labels[..., k, i]` is the label of token i + k + 1.

    Raises:
        ConfigError: `num_future` is below 1.
    """
    torch = require("torch", extra="torch")
    count = checked_integer("num_future", num_future, at_least=1)
    labels, loss_mask, places = (batch[name] for name in ("labels", "loss_mask", "position_ids"))
    own = torch.ones_like(loss_mask)  # 1 if token and label are of one document; also 1 for the last token
    own[..., :-1] = (places[..., 1:] == places[..., :-1] + 1).to(own.dtype)
    found = []
    for ahead in range(1, count + 1):
        same = places[..., ahead:] == places[..., :-ahead] + ahead
        mask = torch.zeros_like(loss_mask)
        mask[..., :-ahead] = loss_mask[..., ahead:] * own[..., ahead:] * same
        shifted = torch.zeros_like(labels)
        shifted[..., :-ahead] = labels[..., ahead:]
        found.append((torch.where(mask > 0, shifted, torch.zeros_like(shifted)), mask))
    further, masks = zip(*found, strict=True)
    return torch.stack(further, -2), torch.stack(masks, -2)
