"""How often a dataset is walked through, and whether its last walk is shuffled apart."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from tokenloom.errors import ConfigError
from tokenloom.numbers import checked_integer
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
        num_samples: windows (or packs) that the passes hold; at least what was asked for.
        num_samples_sans_final_epoch: those complete before the last pass; equals num_samples unless that pass is
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
        tokens_per_epoch: tokens of all exposed sequences.
        num_samples: wanted at least.
        sequence_length: tokens from one window to the next.
        extra: tokens a window reads beyond its length, 0 or 1.
        keep_partial: whether a last, incomplete window counts.

    Raises:
        ConfigError: samples are wanted from no tokens at all.
    """
    _check_number(num_samples, tokens_per_epoch)
    num_epochs = 1
    if num_samples:
        num_epochs = max(1, -(-(num_samples * sequence_length + extra) // tokens_per_epoch))
    return plan_of_epochs(
        tokens_per_epoch,
        num_epochs,
        num_samples,
        sequence_length=sequence_length,
        extra=extra,
        keep_partial=keep_partial,
    )


def plan_of_epochs(
    tokens_per_epoch: int,
    num_epochs: int,
    num_samples: int | None,
    *,
    sequence_length: int,
    extra: int,
    keep_partial: bool,
) -> EpochPlan:
    """Returns the windows of so many epochs, however few of them would do.

    Args:
        tokens_per_epoch: tokens of an epoch.
        num_epochs: epochs.
        num_samples: samples that are wanted at least.
        sequence_length: tokens from one window to the next.
        extra: tokens a window reads beyond its length, 0 or 1.
        keep_partial: whether a last, incomplete window counts.

    Raises:
        ConfigError: the last epoch is not needed, or more than it holds is.
    """

    def windows(epochs: int, *, partial: bool = False) -> int:
        return num_windows(epochs * tokens_per_epoch, sequence_length, extra=extra, keep_partial=partial)

    before_final, per_epoch = windows(num_epochs - 1), windows(1)
    if num_epochs > 1 and num_samples is not None and not 0 <= num_samples - before_final <= per_epoch + 1:
        message = (
            f"expected {num_epochs} epochs to be those that {num_samples} samples take, found {before_final} samples "
            f"in all but the last of them, and {per_epoch} in one"
        )
        raise ConfigError(message)
    total = windows(num_epochs, partial=keep_partial)
    return _plan(tokens_per_epoch, num_epochs, num_samples, total, before_final, per_epoch)


def plan_packed_epochs(tokens_per_epoch: int, num_samples: int | None, *, packs_per_epoch: int) -> EpochPlan:
    """Returns the epochs needed for `num_samples` packs, or one epoch if that is None or 0.

    Each epoch is packed by itself, into as many packs. The last one is shuffled apart by the rule for windows.

    Args:
        tokens_per_epoch: tokens of all exposed sequences.
        num_samples: wanted at least.
        packs_per_epoch: number of packs that the documents make.

    Raises:
        ConfigError: samples are wanted from no tokens at all.
    """
    _check_number(num_samples, tokens_per_epoch)
    num_epochs = max(1, -(-num_samples // packs_per_epoch)) if num_samples else 1
    before_final = (num_epochs - 1) * packs_per_epoch
    return _plan(tokens_per_epoch, num_epochs, num_samples, num_epochs * packs_per_epoch, before_final, packs_per_epoch)


def _check_number(num_samples: int | None, tokens_per_epoch: int) -> None:
    if num_samples is not None:
        checked_integer("num_samples", num_samples, at_least=0)
    if num_samples and tokens_per_epoch == 0:
        message = f"{num_samples} samples were asked for, but the documents hold no tokens"
        raise ConfigError(message, hint="give this split more documents, or ask for no samples from it")


def _plan(
    tokens_per_epoch: int, num_epochs: int, asked: int | None, total: int, before_final: int, per_epoch: int
) -> EpochPlan:
    """Returns the plan of so many epochs, which decides whether the last one is shuffled apart."""
    separate = num_epochs > 1 and asked is not None and asked - before_final < int(FINAL_EPOCH_THRESHOLD * per_epoch)
    return EpochPlan(
        tokens_per_epoch=tokens_per_epoch,
        num_epochs=num_epochs,
        num_samples=total,
        num_samples_sans_final_epoch=before_final if separate else total,
        separate_final_epoch=separate,
    )


class Epochs(ABC):
    """How many samples a dataset has, and from how many epochs, as a function of the samples asked of it.

    Attributes:
        num_tokens: number of tokens of an epoch.
    """

    num_tokens: int

    @abstractmethod
    def plan(self, num_samples: int | None) -> EpochPlan:
        """Returns the epochs for that many samples, or one epoch.

        Raises:
            ConfigError: samples are wanted from no tokens at all.
        """

    @abstractmethod
    def passes(self, num_samples: int) -> float:
        """Returns how often that many samples go through the tokens."""

    def num_samples(self, asked: int | None) -> int:
        """Returns how many samples there will be; none if there are no tokens to make them of."""
        return 0 if asked and self.num_tokens == 0 else self.plan(asked).num_samples


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowEpochs(Epochs):
    """Epochs that are one stream, cut into windows.

    Attributes:
        num_tokens: number of tokens of an epoch.
        sequence_length: tokens from one window to the next.
        extra: tokens a window reads beyond its length.
        keep_partial: whether a last, incomplete window counts.
    """

    num_tokens: int
    sequence_length: int
    extra: int
    keep_partial: bool

    def plan(self, num_samples: int | None) -> EpochPlan:
        """Returns the epochs for that many samples, see `Epochs`."""
        return plan_epochs(
            self.num_tokens,
            num_samples,
            sequence_length=self.sequence_length,
            extra=self.extra,
            keep_partial=self.keep_partial,
        )

    def passes(self, num_samples: int) -> float:
        """Returns how often that many samples go through the tokens."""
        return num_samples * self.sequence_length / self.num_tokens if self.num_tokens else 0.0
