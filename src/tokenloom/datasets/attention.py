"""What models are told of the documents in samples: for attention the blocks of its mask, and labels further on.

The lists of blocks are those of torch's FlexAttention, made of where documents begin: no mask is looked at.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tokenloom.datasets.outputs import Output
from tokenloom.errors import ConfigError
from tokenloom.kernels.samples import BLOCK_LISTS, fill_attention
from tokenloom.numbers import checked_integer
from tokenloom.optional import require

Attention = Literal["cu_seqlens", "document_ids", "block_mask"]

_INT32 = np.dtype(np.int32)


def attention_outputs(
    attention: Attention | None, *, length: int, block_size: int, has_prefixes: bool = False
) -> list[Output]:
    """Returns the arrays of a sample beside its boundaries."""
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
    cu_seqlens: ArrayLike, *, block_size: int = 128, window: int | None = None, prefixes: ArrayLike | None = None
) -> dict[str, NDArray[np.int32]]:
    """Returns the blocks of a mask from where documents begin, as samples have them: for packs that are made otherwise.

    Example:
        >>> arrays = block_mask_arrays([0, 5, 8], block_size=2)
        >>> arrays["kv_num_blocks"].tolist(), arrays["full_kv_num_blocks"].tolist()
        ([[1, 1, 3, 2]], [[0, 1, 0, 0]])

    Args:
        cu_seqlens: integers[num_documents + 1] or [batch, n], where documents begin, from 0, and the end of all; a row
            may be filled up by repeating the end.
        block_size: tokens of a block of the mask.
        window: how many tokens a token sees, itself included; None for all of its document before it.
        prefixes: integers[num_documents] or [batch, n - 1], how many tokens at the start of each document see each
            other, as in a prefix language model; excludes a window.

    Returns:
        int32 arrays, with the batch axis that `cu_seqlens` has: kv_num_blocks and full_kv_num_blocks [1, blocks],
        kv_indices and full_kv_indices [1, blocks, blocks]; with prefixes also seen_stop [tokens], where what each
        token sees ends.

    Raises:
        ConfigError: the boundaries do not rise from 0, a prefix is longer than its document, or a setting is below 1.
    """
    bounds = np.ascontiguousarray(cu_seqlens, dtype=np.int32)
    if bounds.ndim not in (1, 2) or bounds.shape[-1] < 2 or not bounds.size:
        message = f"expected boundaries of documents, int32[num_documents + 1], found shape {list(bounds.shape)}"
        raise ConfigError(message, hint="such as [0, 5, 8] for two documents of 5 and 3 tokens")
    size, length = checked_integer("block_size", block_size, at_least=1), int(bounds.flat[-1])
    check_window("window", window)
    outputs = attention_outputs("block_mask", length=length, block_size=size)
    out = {each.name: np.empty((*bounds.shape[:-1], *each.shape), dtype=_INT32) for each in outputs}
    if prefixes is not None:
        check_prefixes(window)
        out["seen_stop"] = _seen_stops(bounds, np.asarray(prefixes), length)
    try:
        fill_attention(out | {"cu_seqlens": bounds}, length=length, block_size=size, window=window)
    except ValueError as error:
        raise ConfigError(str(error), hint="as `cu_seqlens` of a sample are") from error
    return out


def _seen_stops(bounds: NDArray[np.int32], prefixes: NDArray[Any], length: int) -> NDArray[np.int32]:
    """Returns where what each token sees ends: behind itself, or behind the prefix of its document."""
    sizes = np.diff(bounds)
    is_like = prefixes.shape == sizes.shape and prefixes.dtype.kind in "iu"
    if not is_like or (prefixes < 0).any() or (prefixes > np.maximum(sizes, 0)).any():
        message = f"expected a prefix within each document, integers{list(sizes.shape)}, found {prefixes.tolist()}"
        raise ConfigError(message, hint="0 for a document without one")
    stops = np.broadcast_to(np.arange(1, length + 1, dtype=_INT32), (*bounds.shape[:-1], length)).copy()
    rows = zip(bounds.reshape(-1, bounds.shape[-1]), prefixes.reshape(-1, sizes.shape[-1]), strict=True)
    for row, (begins, counts) in zip(stops.reshape(-1, length), rows, strict=True):
        for begin, count in zip(begins[:-1].tolist(), counts.tolist(), strict=True):
            row[begin : begin + count] = begin + count
    return stops


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

    missing = [name for name in ("position_ids", *BLOCK_LISTS) if name not in batch]
    if missing:
        message = f"expected lists of blocks in a batch, found none under {', '.join(missing)}"
        raise ConfigError(message, hint='make samples with `attention="block_mask"`')
    places = batch["position_ids"]  # from 0 in each document
    length, count = places.shape[-1], batch["kv_indices"].shape[-1]
    if count != -(-length // block_size):
        message = f"expected {-(-length // block_size)} blocks of {block_size} for {length} tokens, found {count}"
        raise ConfigError(message, hint="give the `attention_block_size` of the samples as `block_size`")

    stops = batch.get("seen_stop")

    def sees(row: Any, _head: Any, query: Any, key: Any) -> Any:
        seen = key <= query if stops is None else key < stops[row, query]
        seen = seen & (query - key <= places[row, query])
        return seen if window is None else seen & (query - key < window)

    return BlockMask.from_kv_blocks(
        *(batch[name] for name in BLOCK_LISTS), BLOCK_SIZE=block_size, mask_mod=sees, seq_lengths=(length, length)
    )


def future_labels(batch: Mapping[str, Any], num_future: int) -> tuple[Any, Any]:
    """Returns labels of tokens further on, and their loss mask, for training with multi-token prediction.

    None goes over the end of a document; there, and where no label is known, the label is 0 without loss. Packs have
    to be labelled before their tokens are divided among context-parallel ranks.

    Example:
        >>> import torch
        >>> batch = {"labels": [2, 3, 8, 9], "loss_mask": [1.0] * 4, "position_ids": [0, 1, 2, 0]}
        >>> labels, loss_mask = future_labels({name: torch.tensor(row) for name, row in batch.items()}, 2)
        >>> labels.tolist(), loss_mask.tolist()
        ([[3, 0, 0, 0], [0, 0, 0, 0]], [[1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]])

    Args:
        batch: torch tensors [..., tokens]: labels, loss_mask, and position_ids from 0 in each document.
        num_future: how many labels further than the next token.

    Returns:
        labels and loss mask, both [..., num_future, tokens]: entry k is the label of the token k + 1 places further on.

    Raises:
        ConfigError: the number is below 1.
    """
    torch = require("torch", extra="torch")
    count = checked_integer("num_future", num_future, at_least=1)
    labels, loss_mask, places = (batch[name] for name in ("labels", "loss_mask", "position_ids"))
    own = torch.ones_like(loss_mask)  # whether a label is of the document of its token; of the last one nothing says no
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


def check_prefixes(window: int | None) -> None:
    """Checks that prefixes have no window beside them."""
    if window is not None:
        message = f"a window and prefixes exclude each other, found both, a window of {window}"
        raise ConfigError(message, hint="leave one of them out")


def check_window(name: str, window: int | None) -> None:
    """Checks how many tokens a token sees."""
    if window is not None:
        checked_integer(name, window, at_least=1)
