"""Computes the number of epochs of a dataset, and whether the last epoch is shuffled separately."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from tokenloom.errors import ConfigError
from tokenloom.numbers import checked_integer
from tokenloom.order.windows import num_windows

FINAL_EPOCH_THRESHOLD = 0.80
"""The last epoch is shuffled separately if less than this fraction of it is needed; the reference's value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochPlan:
    """The numbers of samples and epochs of a dataset.

    Attributes:
        tokens_per_epoch: number of tokens of all documents of the split.
        num_epochs: number of epochs, at least 1.
        num_samples: number of windows (or packs) of all epochs; at least the requested number.
        num_samples_sans_final_epoch: samples before the final epoch if it is shuffled separately, else `num_samples`.
        separate_final_epoch: whether the final epoch is shuffled separately.
    """

    tokens_per_epoch: int
    num_epochs: int
    num_samples: int
    num_samples_sans_final_epoch: int
    separate_final_epoch: bool


class Epochs(ABC):
    """The base class of objects that compute numbers of samples and epochs; an epoch has `num_tokens` tokens."""

    num_tokens: int

    @abstractmethod
    def plan(self, num_samples: int | None) -> EpochPlan:
        """Plans at least `num_samples` samples, or one epoch for None; raises ConfigError if there are no tokens."""

    @abstractmethod
    def passes(self, num_samples: int) -> float:
        """Returns the number of epochs that `num_samples` samples cover, such as 2.4."""

    def num_samples(self, requested: int | None) -> int:
        """Returns the number of samples in the plan for `requested` samples; 0 if there are no tokens."""
        return 0 if requested and self.num_tokens == 0 else self.plan(requested).num_samples

    def _check(self, requested: int | None) -> None:
        if requested is not None:
            checked_integer("num_samples", requested, at_least=0)
        if requested and self.num_tokens == 0:
            message = f"the documents of the split have no tokens, but {requested} samples are requested"
            raise ConfigError(message, hint="raise the weight of this split, or request 0 samples from it")

    def _plan(self, num_epochs: int, requested: int | None, total: int, before_final: int, per_epoch: int) -> EpochPlan:
        needed = int(FINAL_EPOCH_THRESHOLD * per_epoch)
        separate = num_epochs > 1 and requested is not None and requested - before_final < needed
        return EpochPlan(
            tokens_per_epoch=self.num_tokens,
            num_epochs=num_epochs,
            num_samples=total,
            num_samples_sans_final_epoch=before_final if separate else total,
            separate_final_epoch=separate,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowEpochs(Epochs):
    """Computes the numbers of samples and epochs if samples are windows over concatenated epochs.

    Attributes:
        num_tokens: tokens per epoch.
        sequence_length: distance between the starts of windows, in tokens.
        extra: tokens that a window reads beyond `sequence_length`, 0 or 1.
        keep_partial: whether an incomplete last window counts.
    """

    num_tokens: int
    sequence_length: int
    extra: int
    keep_partial: bool

    def plan(self, num_samples: int | None) -> EpochPlan:
        """Returns the plan for at least `num_samples` samples, one epoch if None; O(1)."""
        self._check(num_samples)
        num_epochs = 1
        if num_samples:
            num_epochs = max(1, -(-(num_samples * self.sequence_length + self.extra) // self.num_tokens))
        return self.plan_of(num_epochs, num_samples)

    def plan_of(self, num_epochs: int, num_samples: int | None) -> EpochPlan:
        """Returns the plan of `num_epochs` epochs; raises ConfigError if `num_samples` need fewer or more epochs."""
        before_final, per_epoch = self._num_windows(num_epochs - 1), self._num_windows(1)
        if num_epochs > 1 and num_samples is not None and not 0 <= num_samples - before_final <= per_epoch + 1:
            raise ConfigError(f"the last of {num_samples} samples is not in epoch {num_epochs} ({per_epoch} per epoch)")
        total = self._num_windows(num_epochs, keep_partial=self.keep_partial)
        return self._plan(num_epochs, num_samples, total, before_final, per_epoch)

    def _num_windows(self, num_epochs: int, *, keep_partial: bool = False) -> int:
        num_tokens = num_epochs * self.num_tokens
        return num_windows(num_tokens, self.sequence_length, extra=self.extra, keep_partial=keep_partial)

    def passes(self, num_samples: int) -> float:
        return num_samples * self.sequence_length / self.num_tokens if self.num_tokens else 0.0
