"""Hugging Face transformers: collators that convert samples to arguments of causal language models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tokenloom.datasets.tensors import SampleBatch, batch_tensors
from tokenloom.errors import ConfigError
from tokenloom.optional import require
from tokenloom.packing.batch import take_apart
from tokenloom.packing.prefix_trees import PrefixPack

IGNORED = -100
"""The label that stands for "no loss" in torch's cross entropy, transformers and torchtitan."""

_REQUIRED = ("tokens", "labels", "loss_mask", "position_ids")


class TransformersCollator:
    """A collator that converts samples, or a loader's batch, to arguments of a transformers causal language model.

    Use it as `data_collator` of `Trainer`, or in a loop: `model(**collator(batch)).loss` is the mean over the labels
    with loss. tokenloom's labels are already shifted by one token: they become `shift_labels`, which transformers then
    uses for the loss. `labels` has the labels shifted back by one token, without the last label of each row.

    `position_ids` that restart at 0 prevent attention between documents. In transformers, flash attention supports such
    positions only in batches of one row: for flash attention, the collator concatenates the rows of a batch, and
    returns the document boundaries as `cu_seq_lens_q` and `cu_seq_lens_k`. A dense `attention_mask` becomes additive.

    Example:
        >>> import torch
        >>> row = torch.arange(4)
        >>> sample = {"tokens": row, "labels": row + 1, "loss_mask": torch.ones(4), "position_ids": row}
        >>> list(TransformersCollator()([sample, sample]))
        ['input_ids', 'labels', 'shift_labels']

    Args:
        model: the model or its config, to detect flash attention; None for a model without flash attention.
        separate_documents: whether to prevent attention between documents of a sample; None: only if samples have
            boundaries, as with `inter_document_masking` and in packs of conversations.
        one_row: whether to concatenate the rows of a batch if documents are separated; None: only for flash attention.
    """

    def __init__(
        self, model: Any = None, *, separate_documents: bool | None = None, one_row: bool | None = None
    ) -> None:
        implementation = getattr(getattr(model, "config", model), "_attn_implementation", None)
        self.separate_documents = separate_documents
        self.one_row: bool = "flash" in str(implementation) if one_row is None else one_row

    def __call__(self, samples: Sequence[Mapping[str, Any]] | Mapping[str, Any]) -> dict[str, Any]:
        """Returns the keyword arguments for a model; labels are copies, but tokens and position ids are not."""
        batch = dict(samples) if isinstance(samples, Mapping) else batch_tensors(_as_batch(samples))
        if missing := [name for name in _REQUIRED if name not in batch]:
            hint = "set `remove_unused_columns=False` in the arguments of the Trainer" if "tokens" in missing else None
            raise ConfigError(f"the samples have no {', '.join(map(repr, missing))}", hint=hint)
        shifted = labels_with_loss(batch)
        labels = shifted.roll(1, dims=-1)
        labels[..., 0] = IGNORED
        inputs = {"input_ids": batch["tokens"], "labels": labels, "shift_labels": shifted}
        positions = batch["position_ids"]
        separate = "cu_seqlens" in batch if self.separate_documents is None else self.separate_documents
        if separate:
            inputs |= {"position_ids": positions, "use_cache": False}  # with a cache, restarts of positions are ignored
            return _in_one_row(inputs) if self.one_row else inputs
        if "attention_mask" in batch and self.separate_documents is None:
            return {**inputs, "position_ids": positions, "attention_mask": _additive(batch["attention_mask"])}
        if bool((positions[..., 1:] == 0).any()):
            if self.separate_documents is None:
                hint = "pass `separate_documents`, or load the data with `inter_document_masking=True`"
                raise ConfigError("a sample has several documents, but no document boundaries", hint=hint)
            inputs |= {"position_ids": positions, "attention_mask": positions.new_ones(positions.shape)}
        return inputs


def _as_batch(samples: Sequence[Mapping[str, Any]]) -> Sequence[dict[str, Any]]:
    if isinstance(samples, SampleBatch):
        return samples
    if samples and isinstance(samples[0], Mapping) and "original_seq_len" not in samples[0]:
        return [dict(sample) for sample in samples]
    raise ConfigError(f"`samples`: must be mappings with tensors of equal lengths, got {samples[:1]!r}")


def _additive(mask: Any) -> Any:
    """Converts a bool mask, True = hidden, to an additive mask, which all attention implementations accept."""
    torch = require("torch", extra="torch")
    return torch.zeros(mask.shape).masked_fill_(mask, torch.finfo(torch.float32).min)


def _in_one_row(inputs: dict[str, Any]) -> dict[str, Any]:
    """Concatenates the rows of a batch, and adds the boundaries of its documents."""
    torch = require("torch", extra="torch")
    begins = inputs["position_ids"] == 0
    begins[..., 0] = True
    flat = {name: value.reshape(1, -1) if torch.is_tensor(value) else value for name, value in inputs.items()}
    total = begins.new_tensor([begins.numel()], dtype=torch.int32)
    bounds = torch.cat([begins.flatten().nonzero().flatten().to(torch.int32), total])
    longest = int(bounds.diff().max())
    flat |= dict.fromkeys(("cu_seq_lens_q", "cu_seq_lens_k"), bounds)
    return flat | dict.fromkeys(("max_length_q", "max_length_k"), longest)


def labels_with_loss(batch: Mapping[str, Any]) -> Any:
    """Returns the labels of a batch as an int64 tensor; labels without loss are `IGNORED`."""
    return batch["labels"].long().masked_fill(batch["loss_mask"] == 0, IGNORED)


class PrefixCollator:
    """A collator that packs sequences with common prefixes into one row, which contains each prefix once.

    Use it as `data_collator` of `Trainer`, with `compute_loss_func=collator.loss` and `remove_unused_columns=False`.
    The loss is the mean over the labels with loss, the same as without packing. Put sequences with a common prefix,
    such as turns of a conversation or preference pairs, into one batch. Flash attention is not supported.

    Example:
        >>> chosen, rejected = {"input_ids": [1, 2, 3]}, {"input_ids": [1, 2, 4], "labels": [-100, -100, 4]}
        >>> PrefixCollator()([chosen, rejected])["input_ids"].tolist()
        [[1, 2, 3, 4]]

    Args:
        model: the model or its config; with FlexAttention, the mask is a `BlockMask`, else an additive mask.
        pad_to: number of tokens; the row is padded to a multiple of `pad_to`.
    """

    def __init__(self, model: Any = None, *, pad_to: int = 1) -> None:
        self.attention: str = str(getattr(getattr(model, "config", model), "_attn_implementation", None))
        if "flash" in self.attention:
            hint = 'load the model with `attn_implementation="flex_attention"` or `attn_implementation="sdpa"`'
            raise ConfigError(f"`model`: must support attention masks, got a model with {self.attention}", hint=hint)
        self.pad_to = pad_to

    def __call__(self, features: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Returns the keyword arguments for a model.

        Features are {"input_ids": …}, optionally with unshifted "labels"; or samples of conversations (`SFTDataset`).
        """
        if all("input_ids" in feature for feature in features):
            rows = [list(feature["input_ids"]) for feature in features]
            labels = [list(feature.get("labels", row)) for feature, row in zip(features, rows, strict=True)]
            pack = PrefixPack.of(rows, labels=[[*row[1:], IGNORED] for row in labels], multiple=self.pad_to)
        else:
            pack = PrefixPack.of_subsamples(list(take_apart(features)), multiple=self.pad_to)
        is_flex = self.attention == "flex_attention"
        mask = pack.block_mask() if is_flex else _additive(~pack.attention_mask()[None, None])
        terms = {name: getattr(pack, f"term_{name}") for name in ("places", "labels", "weights")}
        inputs = {"input_ids": pack.tokens[None], "position_ids": pack.position_ids[None], "attention_mask": mask}
        return {**inputs, "use_cache": False, "labels": terms}

    def loss(self, outputs: Any, labels: Mapping[str, Any], num_items_in_batch: Any = None) -> Any:
        """Returns the mean cross entropy of a batch from the model's outputs and the collator's `labels`."""
        logits = outputs["logits"][0].float()
        log_probs = logits[labels["places"], labels["labels"]] - logits.logsumexp(-1)[labels["places"]]
        return -(log_probs * labels["weights"]).sum() / labels["weights"].sum()
