"""A GPT sample made step by step of its text, as the reference does: for classes that change one of the steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from tokenloom.datasets.tensors import Sample
from tokenloom.errors import ConfigError

if TYPE_CHECKING:
    from tokenloom.datasets.gpt import GPTDataset

Masks = tuple[torch.Tensor | None, torch.Tensor, torch.Tensor]


def sample_of_text(
    dataset: GPTDataset,
    text: NDArray[Any],
    lengths: Sequence[int] | None,
    masks: Callable[[torch.Tensor], Masks],
) -> Sample:
    """Returns a sample of a text.

    Args:
        dataset: whose settings count.
        text: integers[sequence_length + 1], or without the 1 where no extra token is read; other lengths will do.
        lengths: tokens of each document in it, the padding not counted; None where that is not known.
        masks: gives attention mask, loss mask and positions of the tokens.

    Raises:
        ConfigError: samples hold boundaries of documents, and `lengths` is None.
    """
    config, pad = dataset.config, dataset._pad_token_id
    given = torch.from_numpy(np.asarray(text)).long()
    if config.add_extra_token_to_sequence:
        tokens, labels = given[:-1].clone(), given[1:].clone()
    else:
        tokens, labels = given.clone(), torch.roll(given, -1)
        labels[-1] = pad
    attention_mask, loss_mask, position_ids = masks(tokens)
    loss_mask[labels == pad] = 0.0
    for ids in (tokens, labels):
        ids[ids == pad] = 0  # an id that an embedding has
    sample = {"tokens": tokens, "labels": labels}
    if config.inter_document_masking:
        boundaries = _boundaries(dataset, lengths)
        inside = torch.from_numpy(_positions(boundaries))
        return {**sample, "loss_mask": loss_mask, "position_ids": inside, **_sequences(boundaries)}
    if config.create_attention_mask:
        assert attention_mask is not None
        sample["attention_mask"] = attention_mask
    return {**sample, "loss_mask": loss_mask, "position_ids": position_ids}


def _boundaries(dataset: GPTDataset, lengths: Sequence[int] | None) -> NDArray[np.int64]:
    """Returns where documents begin in the tokens of a sample, and its end; padding belongs to the last of them."""
    if lengths is None:
        name = f"{type(dataset).__name__}._query_document_sample_shuffle_indices"
        message = f"expected text, documents and their lengths from `{name}` for `inter_document_masking`, found two"
        raise ConfigError(message, hint="return the number of tokens of each document as a third value")
    size = dataset.config.sequence_length
    counts = [int(count) for count in lengths]
    if dataset.config.add_extra_token_to_sequence:
        counts[-1] -= 1
        if not counts[-1]:
            counts.pop()
    if (missing := size - sum(counts)) > 0:
        counts[-1:] = [missing + sum(counts[-1:])]
    return np.cumsum([0, *counts])


def _positions(boundaries: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns the place of each token in its document."""
    return np.arange(boundaries[-1]) - np.repeat(boundaries[:-1], np.diff(boundaries))


def _sequences(boundaries: NDArray[np.int64]) -> Sample:
    """Returns the boundaries, filled up with the end to one more than there are tokens, and the longest document."""
    size = int(boundaries[-1])
    cu_seqlens = torch.full((size + 1,), size, dtype=torch.int32)
    cu_seqlens[: len(boundaries)] = torch.from_numpy(boundaries)
    return {"cu_seqlens": cu_seqlens, "max_seqlen": torch.tensor(int(np.diff(boundaries).max()), dtype=torch.int32)}


def masks_and_position_ids(
    data: torch.Tensor,
    eod_token: int,
    reset_position_ids: bool,  # noqa: FBT001 - the reference's signature
    reset_attention_mask: bool,  # noqa: FBT001
    eod_mask_loss: bool,  # noqa: FBT001
    create_attention_mask: bool,  # noqa: FBT001
) -> Masks:
    """Returns the attention mask, loss mask and positions of a text.

    Args:
        data: int64[S], tokens.
        eod_token: id that ends a document.
        reset_position_ids: whether positions begin again after it.
        reset_attention_mask: whether nothing attends to what is before it.
        eod_mask_loss: whether it has no loss.
        create_attention_mask: whether to make the attention mask.

    Returns:
        attention mask: bool[1, S, S], True = masked; or None.
        loss mask: float32[S].
        positions: int64[S].
    """
    size, device = data.numel(), data.device
    is_end = data == eod_token
    places = torch.arange(size, dtype=torch.long, device=device)
    loss_mask = torch.ones(size, dtype=torch.float, device=device)
    if eod_mask_loss:
        loss_mask[is_end] = 0.0
    before = torch.cumsum(is_end, 0) - is_end.long()  # ends before each token
    attention_mask = None
    if create_attention_mask:
        attention_mask = places[None, :] > places[:, None]
        if reset_attention_mask:
            attention_mask = attention_mask | (before[None, :] != before[:, None])
        attention_mask = attention_mask[None]
    if reset_position_ids:
        begins = torch.cat([places.new_zeros(1), places[is_end] + 1])
        places = places - begins[before]
    return attention_mask, loss_mask, places
