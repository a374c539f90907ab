"""Labels as other frameworks mark those without loss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

IGNORED = -100
"""The label without loss in torch's cross entropy, in transformers and torchtitan."""


def labels_with_loss(batch: Mapping[str, Any]) -> Any:
    """Returns the labels of a batch of torch tensors as int64, `IGNORED` where there is no loss."""
    return batch["labels"].long().masked_fill(batch["loss_mask"] == 0, IGNORED)
