"""The number of epochs of a dataset, and whether the last one is shuffled apart."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from tokenloom.errors import ConfigError
from tokenloom.numbers import checked_integer
from tokenloom.order.windows import num_windows

FINAL_EPOCH_THRESHOLD = 0.80
"""The last epoch is shuffled apart if less than this share of it is needed; the reference's value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochPlan:
    """How many samples come from how many epochs: a pure function of counts.

    Attributes:
        tokens_per_epoch: tokens of all exposed sequences.
        num_epochs: passes over them, at least 1.
        num_samples: windows (or packs) of all passes; at least those asked for.
        num_samples_sans_final_epoch: those before the last pass if that is shuffled apart, else all.
        separate_final_epoch: whether documents and samples of the last pass are shuffled apart.
    """

    tokens_per_epoch: int
    num_epochs: int
    num_samples: int
    num_samples_sans_final_epoch: int
    separate_final_epoch: bool


class Epochs(ABC):
    """The number of samples and epochs of a dataset, by the samples asked for; `num_tokens` is that of an epoch."""

    num_tokens: int

    @abstractmethod
    def plan(self, num_samples: int | None) -> EpochPlan:
        """Returns the epochs for `num_samples`, one for None or 0; raises ConfigError if there are no tokens."""

    @abstractmethod
    def passes(self, num_samples: int) -> float:
        """Returns the number of passes over the tokens of `num_samples`."""

    def num_samples(self, asked: int | None) -> int:
        """Returns the number of samples; 0 without tokens."""
        return 0 if asked and self.num_tokens == 0 else self.plan(asked).num_samples

    def _check(self, asked: int | None) -> None:
        if asked is not None:
            checked_integer("num_samples", asked, at_least=0)
        if asked and self.num_tokens == 0:
            message = f"{asked} samples were asked for, but the documents hold no tokens"
            raise ConfigError(message, hint="give this split more documents, or ask for no samples from it")

    def _plan(self, num_epochs: int, asked: int | None, total: int, before_final: int, per_epoch: int) -> EpochPlan:
        needed = int(FINAL_EPOCH_THRESHOLD * per_epoch)
        separate = num_epochs > 1 and asked is not None and asked - before_final < needed
        return EpochPlan(
            tokens_per_epoch=self.num_tokens,
            num_epochs=num_epochs,
            num_samples=total,
            num_samples_sans_final_epoch=before_final if separate else total,
            separate_final_epoch=separate,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowEpochs(Epochs):
    """Epochs that are one stream, cut into windows.

    Attributes:
        num_tokens: tokens of an epoch.
        sequence_length: tokens from one window to the next.
        extra: tokens read beyond that, 0 or 1.
        keep_partial: whether a last, incomplete window counts.
    """

    num_tokens: int
    sequence_length: int
    extra: int
    keep_partial: bool

    def plan(self, num_samples: int | None) -> EpochPlan:
        """See `Epochs`; O(1)."""
        self._check(num_samples)
        num_epochs = 1
        if num_samples:
            num_epochs = max(1, -(-(num_samples * self.sequence_length + self.extra) // self.num_tokens))
        return self.plan_of(num_epochs, num_samples)

    def plan_of(self, num_epochs: int, num_samples: int | None) -> EpochPlan:
        """Returns the windows of `num_epochs`; raises ConfigError if `num_samples` do not end in the last one."""
        before_final, per_epoch = self._num_windows(num_epochs - 1), self._num_windows(1)
        if num_epochs > 1 and num_samples is not None and not 0 <= num_samples - before_final <= per_epoch + 1:
            raise ConfigError(f"{num_samples} samples do not take {num_epochs} epochs of {per_epoch}")
        total = self._num_windows(num_epochs, keep_partial=self.keep_partial)
        return self._plan(num_epochs, num_samples, total, before_final, per_epoch)

    def _num_windows(self, num_epochs: int, *, keep_partial: bool = False) -> int:
        num_tokens = num_epochs * self.num_tokens
        return num_windows(num_tokens, self.sequence_length, extra=self.extra, keep_partial=keep_partial)

    def passes(self, num_samples: int) -> float:
        return num_samples * self.sequence_length / self.num_tokens if self.num_tokens else 0.0
