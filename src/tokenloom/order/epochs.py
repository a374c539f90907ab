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


class Epochs(ABC):
    """How many samples a dataset has, and from how many epochs, as a function of the samples asked of it.

    Attributes:
        num_tokens: number of tokens of an epoch.
    """

    num_tokens: int

    @abstractmethod
    def plan(self, num_samples: int | None) -> EpochPlan:
        """Returns the epochs for that many samples, or one epoch if that is None or 0.

        Raises:
            ConfigError: samples are wanted from no tokens at all.
        """

    @abstractmethod
    def passes(self, num_samples: int) -> float:
        """Returns how often that many samples go through the tokens."""

    def num_samples(self, asked: int | None) -> int:
        """Returns how many samples there will be; none if there are no tokens to make them of."""
        return 0 if asked and self.num_tokens == 0 else self.plan(asked).num_samples

    def _check(self, asked: int | None) -> None:
        if asked is not None:
            checked_integer("num_samples", asked, at_least=0)
        if asked and self.num_tokens == 0:
            message = f"{asked} samples were asked for, but the documents hold no tokens"
            raise ConfigError(message, hint="give this split more documents, or ask for no samples from it")

    def _plan(self, num_epochs: int, asked: int | None, total: int, before_final: int, per_epoch: int) -> EpochPlan:
        """Returns the plan of so many epochs, which decides whether the last one is shuffled apart."""
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
        num_tokens: number of tokens of an epoch.
        sequence_length: tokens from one window to the next.
        extra: tokens a window reads beyond its length, 0 or 1.
        keep_partial: whether a last, incomplete window counts.
    """

    num_tokens: int
    sequence_length: int
    extra: int
    keep_partial: bool

    def plan(self, num_samples: int | None) -> EpochPlan:
        """Returns the epochs for that many samples, see `Epochs`. O(1), where the reference adds up epoch by epoch."""
        self._check(num_samples)
        num_epochs = 1
        if num_samples:
            num_epochs = max(1, -(-(num_samples * self.sequence_length + self.extra) // self.num_tokens))
        return self.plan_of(num_epochs, num_samples)

    def plan_of(self, num_epochs: int, num_samples: int | None) -> EpochPlan:
        """Returns the windows of so many epochs, however few of them would do.

        Raises:
            ConfigError: the last epoch is not needed, or more than it holds is.
        """
        before_final, per_epoch = self._num_windows(num_epochs - 1), self._num_windows(1)
        if num_epochs > 1 and num_samples is not None and not 0 <= num_samples - before_final <= per_epoch + 1:
            message = (
                f"expected {num_epochs} epochs to be those that {num_samples} samples take, found {before_final} "
                f"samples in all but the last of them, and {per_epoch} in one"
            )
            raise ConfigError(message)
        total = self._num_windows(num_epochs, keep_partial=self.keep_partial)
        return self._plan(num_epochs, num_samples, total, before_final, per_epoch)

    def _num_windows(self, num_epochs: int, *, keep_partial: bool = False) -> int:
        num_tokens = num_epochs * self.num_tokens
        return num_windows(num_tokens, self.sequence_length, extra=self.extra, keep_partial=keep_partial)

    def passes(self, num_samples: int) -> float:
        """Returns how often that many samples go through the tokens."""
        return num_samples * self.sequence_length / self.num_tokens if self.num_tokens else 0.0
