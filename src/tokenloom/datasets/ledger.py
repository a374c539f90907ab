"""Where the conversations of a dataset and their tokens went: a count that must balance to zero."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """Conversations, and their tokens."""

    conversations: int = 0
    tokens: int = 0

    def __add__(self, other: Count) -> Count:
        return Count(conversations=self.conversations + other.conversations, tokens=self.tokens + other.tokens)

    def __mul__(self, times: int) -> Count:
        return Count(conversations=self.conversations * times, tokens=self.tokens * times)

    def __sub__(self, other: Count) -> Count:
        return Count(conversations=self.conversations - other.conversations, tokens=self.tokens - other.tokens)


NOTHING = Count()
"""No conversation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatLedger:
    """What became of every conversation and token of the passes over a split, and what fills its samples.

    A conversation is read, dropped for one reason, or not reached, because the samples that were asked for end before
    the last pass does. The tokens of one that is read are trained, masked, or cut off.

    Attributes:
        num_epochs: passes over the split that were begun.
        exposed: conversations and tokens of these passes.
        dropped_empty: too short to hold an input and a label.
        dropped_long: longer than a sample, and not to be truncated.
        dropped_untrainable: those without a token to train on (in what a sample holds of them).
        not_reached: those of the last pass that were not reached.
        read: those in the samples, whole or truncated.
        truncated: those of them that were cut, and the tokens cut off.
        num_trained_tokens: labels with loss.
        num_masked_tokens: read without loss.
        num_samples: number of samples of the dataset.
        num_untrainable_samples: those without any loss.
        num_slots: positions of all samples.
        num_filled_slots: positions that hold a token.
        num_padding_slots: all others.
        balance: see there.
    """

    num_epochs: int
    exposed: Count
    dropped_empty: Count
    dropped_long: Count
    dropped_untrainable: Count
    not_reached: Count
    read: Count
    truncated: Count
    num_trained_tokens: int
    num_masked_tokens: int
    num_samples: int
    num_untrainable_samples: int
    num_slots: int
    num_filled_slots: int
    num_padding_slots: int
    balance: tuple[int, int, int, int] = field(init=False)
    """Conversations, tokens, tokens read, and slots that are not accounted for: all 0, or a count is wrong."""

    def __post_init__(self) -> None:
        """Computes the balance."""
        dropped = self.dropped_empty + self.dropped_long + self.dropped_untrainable
        left = self.exposed - dropped - self.not_reached - self.read
        read = self.read.tokens - self.truncated.tokens - self.num_trained_tokens - self.num_masked_tokens
        slots = self.num_slots - self.num_filled_slots - self.num_padding_slots
        object.__setattr__(self, "balance", (left.conversations, left.tokens, read, slots))

    @property
    def fill(self) -> float:
        """The share of slots that hold a token; 1 where there are none."""
        return self.num_filled_slots / self.num_slots if self.num_slots else 1.0

    def lines(self) -> list[tuple[str, str]]:
        """Returns names and numbers for people."""

        def both(count: Count) -> str:
            return f"{count.conversations:,} conversations, {count.tokens:,} tokens"

        return [
            (f"exposed ({self.num_epochs} epochs)", both(self.exposed)),
            ("dropped: empty", both(self.dropped_empty)),
            ("dropped: too long", both(self.dropped_long)),
            ("dropped: nothing to train", both(self.dropped_untrainable)),
            ("not reached", both(self.not_reached)),
            ("read", both(self.read)),
            ("truncated", f"{self.truncated.conversations:,} conversations, {self.truncated.tokens:,} tokens cut off"),
            ("trained tokens", f"{self.num_trained_tokens:,}"),
            ("masked tokens", f"{self.num_masked_tokens:,}"),
            ("samples", f"{self.num_samples:,}, {self.num_untrainable_samples:,} without loss"),
            ("slots", f"{self.num_slots:,}, {100 * self.fill:.2f} % filled"),
        ]
