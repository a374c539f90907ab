"""How often a dataset is walked through, and whether its last walk is shuffled apart."""

from __future__ import annotations

from dataclasses import dataclass

from tokenloom.errors import ConfigError
from tokenloom.order.windows import num_windows

FINAL_EPOCH_THRESHOLD = 0.80
"""The last epoch is shuffled apart when less than this share of it is needed, so that its unused rest does not
displace first looks at other documents. The reference's value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochPlan:
    """How many samples come from how many epochs. A pure function of counts: needs no index.

    Attributes:
        tokens_per_epoch: tokens of all exposed sequences.
        num_epochs: passes over them, at least 1.
        num_samples: windows that the passes hold; at least what was asked for.
        num_samples_sans_final_epoch: windows complete before the last pass; equals num_samples unless that pass is
            shuffled apart.
        separate_final_epoch: whether documents and samples of the last pass are shuffled among themselves.
    """

    tokens_per_epoch: int
    num_epochs: int
    num_samples: int
    num_samples_sans_final_epoch: int
    separate_final_epoch: bool


def plan_epochs(
    tokens_per_epoch: int,
    num_samples: int | None,
    *,
    sequence_length: int,
    extra: int,
    keep_partial: bool,
) -> EpochPlan:
    """Returns the epochs needed for `num_samples` windows, or one epoch if that is None or 0.

    O(1), where the reference adds up one epoch after the other.

    Args:
        tokens_per_epoch: of all exposed sequences.
        num_samples: wanted at least.
        sequence_length: tokens from one window to the next.
        extra: tokens a window reads beyond its length, 0 or 1.
        keep_partial: whether a last, incomplete window counts.

    Raises:
        ConfigError: samples are wanted from no tokens at all.
    """
    if num_samples is not None and num_samples < 0:
        message = f"expected num_samples of at least 0, found {num_samples}"
        raise ConfigError(message)
    num_epochs = 1
    if num_samples:
        if tokens_per_epoch == 0:
            message = f"{num_samples} samples were asked for, but the documents hold no tokens"
            raise ConfigError(message, hint="give this split more documents, or ask for no samples from it")
        num_epochs = max(1, -(-(num_samples * sequence_length + extra) // tokens_per_epoch))

    def windows(epochs: int, *, partial: bool = False) -> int:
        return num_windows(epochs * tokens_per_epoch, sequence_length, extra=extra, keep_partial=partial)

    total = windows(num_epochs, partial=keep_partial)
    if num_epochs == 1 or num_samples is None:
        separate, sans_final = False, total
    else:
        before_final = windows(num_epochs - 1)
        separate = num_samples - before_final < int(FINAL_EPOCH_THRESHOLD * windows(1))
        sans_final = before_final if separate else total
    return EpochPlan(
        tokens_per_epoch=tokens_per_epoch,
        num_epochs=num_epochs,
        num_samples=total,
        num_samples_sans_final_epoch=sans_final,
        separate_final_epoch=separate,
    )
