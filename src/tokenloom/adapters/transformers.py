"""Hugging Face transformers: samples as arguments of its causal language models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tokenloom.datasets.tensors import SampleBatch, whole
from tokenloom.errors import ConfigError
from tokenloom.optional import require
from tokenloom.packing.batch import take_apart
from tokenloom.packing.prefixes import PrefixPack

IGNORED = -100
"""The label without loss in torch's cross entropy, in transformers and torchtitan."""

_NEEDED = ("tokens", "labels", "loss_mask", "position_ids")


class TransformersCollator:
    """Converts samples, or a batch of a loader, to arguments of a causal language model of transformers.

    Use it as `data_collator` of `Trainer`, or in a loop: `model(**collator(batch)).loss`, the mean over the labels with
    loss. Our labels are shifted already: they become `shift_labels`, which losses of transformers prefer, and, moved
    back without the last one of a row, `labels`.

    `position_ids` that restart at 0 separate documents that must not see each other. Flash attention of transformers
    does that for one row only: then the rows of a batch become one, with the boundaries as `cu_seq_lens_q` and so on. A
    dense mask becomes an additive one.

    Example:
        >>> import torch
        >>> row = torch.arange(4)
        >>> sample = {"tokens": row, "labels": row + 1, "loss_mask": torch.ones(4), "position_ids": row}
        >>> list(TransformersCollator()([sample, sample]))
        ['input_ids', 'labels', 'shift_labels']

    Args:
        model: the model or its config, to detect flash attention; None for one without.
        separate_documents: whether documents of a sample must not see each other; None for samples with boundaries
            (`inter_document_masking`, packs of conversations).
        one_row: whether rows with separate documents become one; None for a model with flash attention.
    """

    def __init__(
        self, model: Any = None, *, separate_documents: bool | None = None, one_row: bool | None = None
    ) -> None:
        implementation = getattr(getattr(model, "config", model), "_attn_implementation", None)
        self.separate_documents = separate_documents
        self.one_row: bool = "flash" in str(implementation) if one_row is None else one_row

    def __call__(self, samples: Sequence[Mapping[str, Any]] | Mapping[str, Any]) -> dict[str, Any]:
        """Returns the keyword arguments of a model for samples or a batch; new tensors except tokens."""
        batch = dict(samples) if isinstance(samples, Mapping) else whole(_as_batch(samples))
        if missing := [name for name in _NEEDED if name not in batch]:
            hint = "set `remove_unused_columns=False` in the arguments of the Trainer" if "tokens" in missing else None
            raise ConfigError(f"the samples have no {', '.join(map(repr, missing))}", hint=hint)
        shifted = labels_with_loss(batch)
        labels = shifted.roll(1, dims=-1)
        labels[..., 0] = IGNORED
        found = {"input_ids": batch["tokens"], "labels": labels, "shift_labels": shifted}
        return self._with_boundaries(found, batch)

    def _with_boundaries(self, found: dict[str, Any], batch: Mapping[str, Any]) -> dict[str, Any]:
        """Adds positions and the mask."""
        positions = batch["position_ids"]
        separate = "cu_seqlens" in batch if self.separate_documents is None else self.separate_documents
        if separate:
            found |= {"position_ids": positions, "use_cache": False}  # with a cache, positions do not tell them apart
            return _in_one_row(found) if self.one_row else found
        if "attention_mask" in batch and self.separate_documents is None:
            return {**found, "position_ids": positions, "attention_mask": _to_add(batch["attention_mask"])}
        if bool((positions[..., 1:] == 0).any()):
            if self.separate_documents is None:
                hint = "set `separate_documents`, or use `inter_document_masking`"
                raise ConfigError("the samples have several documents without boundaries", hint=hint)
            found |= {"position_ids": positions, "attention_mask": positions.new_ones(positions.shape)}
        return found


def _as_batch(samples: Sequence[Mapping[str, Any]]) -> Sequence[dict[str, Any]]:
    if isinstance(samples, SampleBatch):
        return samples
    if samples and isinstance(samples[0], Mapping) and "original_seq_len" not in samples[0]:
        return [dict(sample) for sample in samples]
    raise ConfigError(f"not samples of one length with named tensors: {samples[:1]!r}")


def _to_add(mask: Any) -> Any:
    """Returns a mask, True for hidden tokens, as an additive one, which all attentions take."""
    torch = require("torch", extra="torch")
    return torch.zeros(mask.shape).masked_fill_(mask, torch.finfo(torch.float32).min)


def _in_one_row(found: dict[str, Any]) -> dict[str, Any]:
    """Returns a batch as one row, with the boundaries of its documents."""
    torch = require("torch", extra="torch")
    begins = found["position_ids"] == 0
    begins[..., 0] = True
    flat = {name: value.reshape(1, -1) if torch.is_tensor(value) else value for name, value in found.items()}
    total = begins.new_tensor([begins.numel()], dtype=torch.int32)
    bounds = torch.cat([begins.flatten().nonzero().flatten().to(torch.int32), total])
    longest = int(bounds.diff().max())
    flat |= dict.fromkeys(("cu_seq_lens_q", "cu_seq_lens_k"), bounds)
    return flat | dict.fromkeys(("max_length_q", "max_length_k"), longest)


def labels_with_loss(batch: Mapping[str, Any]) -> Any:
    """Returns the labels of a batch of torch tensors as int64, `IGNORED` where there is no loss."""
    return batch["labels"].long().masked_fill(batch["loss_mask"] == 0, IGNORED)


class PrefixCollator:
    """Packs sequences with common prefixes into one row that has each prefix once, for a causal language model.

    Use it as `data_collator` of `Trainer`, with `compute_loss_func=collator.loss`: the mean over the labels with loss,
    as over the sequences one by one. Such sequences are turns of one conversation and preference pairs; group those of
    one conversation or prompt into one batch. Set `remove_unused_columns=False` in the arguments.

    Example:
        >>> chosen, rejected = {"input_ids": [1, 2, 3]}, {"input_ids": [1, 2, 4], "labels": [-100, -100, 4]}
        >>> PrefixCollator()([chosen, rejected])["input_ids"].tolist()
        [[1, 2, 3, 4]]

    Args:
        model: the model or its config: FlexAttention gets a `BlockMask`, others and None an additive mask.
        pad_to: the length of the row is padded to a multiple of it.

    Raises:
        ConfigError: the model uses flash attention, which takes no such mask.
    """

    def __init__(self, model: Any = None, *, pad_to: int = 1) -> None:
        self.attention: str = str(getattr(getattr(model, "config", model), "_attn_implementation", None))
        if "flash" in self.attention:
            hint = 'load it with `attn_implementation="flex_attention"` or "sdpa"'
            raise ConfigError(f"{self.attention} takes no mask", hint=hint)
        self.pad_to = pad_to

    def __call__(self, features: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Returns the keyword arguments of a model for sequences.

        Args:
            features: `input_ids` and `labels` as transformers has them, not shifted, or samples of conversations.
        """
        if all("input_ids" in feature for feature in features):
            rows = [list(feature["input_ids"]) for feature in features]
            given = [list(feature.get("labels", row)) for feature, row in zip(features, rows, strict=True)]
            pack = PrefixPack.of(rows, labels=[[*row[1:], IGNORED] for row in given], multiple=self.pad_to)
        else:
            pack = PrefixPack.of_subsamples(list(take_apart(features)), multiple=self.pad_to)
        mask = pack.block_mask() if self.attention == "flex_attention" else _to_add(~pack.attention_mask()[None, None])
        terms = {name: getattr(pack, f"term_{name}") for name in ("places", "labels", "weights")}
        inputs = {"input_ids": pack.tokens[None], "position_ids": pack.position_ids[None], "attention_mask": mask}
        return {**inputs, "use_cache": False, "labels": terms}

    def loss(self, outputs: Any, labels: Mapping[str, Any], num_items_in_batch: Any = None) -> Any:
        """Returns the mean cross entropy of a batch, from the model's outputs and the batch's `labels`."""
        logits = outputs["logits"][0].float()
        log_probs = logits[labels["places"], labels["labels"]] - logits.logsumexp(-1)[labels["places"]]
        return -(log_probs * labels["weights"]).sum() / labels["weights"].sum()
