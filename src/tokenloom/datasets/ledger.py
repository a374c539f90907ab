"""Counts of conversations, tokens and slots of samples, which must balance."""

from __future__ import annotations

from dataclasses import dataclass, fields
from operator import add, attrgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokenloom.datasets.protocols import Int64s
from tokenloom.order.windows import SpanBatch

Bools = NDArray[np.bool_]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotCounts:
    """Counts of the slots of samples, and of the tokens that these samples read.

    A slot has a label if a token follows its own. `slots` = `with_loss` + `eod_masked` + `prompt` + `denied_slots` +
    `pad_id` + `no_label` + `padding`. A token is counted as a label, so that two windows that read it count it once:
    `tokens` + `read_twice` = `with_loss` + `eod_masked` + `prompt` + `denied_tokens` + `pad_id` + `first_tokens` +
    `rearranged` + `truncated`. For samples that were not read, `not_counted_slots` and `not_counted_tokens` take the
    place of these sums.

    Attributes:
        samples: number of samples.
        slots: their slots.
        with_loss: slots with loss.
        eod_masked: no loss: the token ends a document, and `eod_mask_loss` is set.
        prompt: no loss: part of a prompt.
        denied_slots: no loss: the token or its label is denied.
        pad_id: no loss: the label is the tokenizer's padding id, which occurs in the data.
        no_label: no loss: the token is the last of its text.
        padding: no loss: no token.
        tokens: tokens that these samples account for.
        read_twice: tokens of these that another sample reads as well, where a long document is cut into packs.
        denied_tokens: tokens that are not trained since they, or the token before, are denied.
        first_tokens: tokens that are no label: the first of a pack or conversation, or of a window without extra token.
        rearranged: tokens that fill in the middle drops at the end of samples, less those that it adds.
        truncated: tokens of conversations behind the end of a sample.
        not_counted_slots, not_counted_tokens: with or without loss.
    """

    samples: int = 0
    slots: int = 0
    with_loss: int = 0
    eod_masked: int = 0
    prompt: int = 0
    denied_slots: int = 0
    pad_id: int = 0
    no_label: int = 0
    padding: int = 0
    tokens: int = 0
    read_twice: int = 0
    denied_tokens: int = 0
    first_tokens: int = 0
    rearranged: int = 0
    truncated: int = 0
    not_counted_slots: int = 0
    not_counted_tokens: int = 0

    def __add__(self, other: SlotCounts) -> SlotCounts:
        if other is NO_SLOTS:
            return self
        return SlotCounts(**dict(zip(_NAMES, map(add, _NUMBERS(self), _NUMBERS(other)), strict=True)))

    def __mul__(self, times: int) -> SlotCounts:
        return SlotCounts(**dict(zip(_NAMES, (number * times for number in _NUMBERS(self)), strict=True)))

    @property
    def balance(self) -> tuple[int, int]:
        """Slots and tokens unaccounted for: 0, or a count is wrong."""
        masked = self.with_loss + self.eod_masked + self.prompt + self.pad_id
        slots = self.slots - masked - self.denied_slots - self.no_label - self.padding - self.not_counted_slots
        read = masked + self.denied_tokens + self.first_tokens + self.rearranged + self.truncated
        return slots, self.tokens + self.read_twice - read - self.not_counted_tokens


_NAMES = tuple(field.name for field in fields(SlotCounts))
_NUMBERS = attrgetter(*_NAMES)

NO_SLOTS = SlotCounts()


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatLedger:
    """Counts of all conversations and tokens in the passes over a split, and of the slots of its samples.

    A conversation is read, dropped for one reason, or not reached, since the samples end before the last pass does.

    Attributes:
        num_epochs: passes over the split that were begun.
        exposed: conversations and tokens of these passes.
        dropped_empty: too short for an input and a label.
        dropped_long: longer than a sample, under `long_conversations="drop"`.
        dropped_untrainable: without a token to train on within a sample.
        not_reached: those of the last pass that no sample reads.
        truncated: those that samples cut, and the tokens cut off.
        num_untrainable_samples: samples without any loss.
        counts: the slots of the samples.
    """

    num_epochs: int
    exposed: Count
    dropped_empty: Count
    dropped_long: Count
    dropped_untrainable: Count
    not_reached: Count
    truncated: Count
    num_untrainable_samples: int
    counts: SlotCounts

    @property
    def read(self) -> Count:
        """Those in the samples, whole or truncated."""
        return Count(conversations=self.counts.first_tokens, tokens=self.counts.tokens)

    @property
    def balance(self) -> tuple[int, int, int, int]:
        """Conversations, tokens, slots, and tokens read unaccounted for: all 0, or a count is wrong."""
        dropped = self.dropped_empty + self.dropped_long + self.dropped_untrainable
        left = self.exposed - dropped - self.not_reached - self.read
        return left.conversations, left.tokens, *self.counts.balance

    @property
    def fill(self) -> float:
        """The share of slots with a token; 1 without slots."""
        return 1 - self.counts.padding / self.counts.slots if self.counts.slots else 1.0

    def lines(self) -> list[tuple[str, str]]:
        """Returns names and numbers for people."""

        def both(count: Count) -> str:
            return f"{count.conversations:,} conversations, {count.tokens:,} tokens"

        counts = self.counts
        return [
            (f"exposed ({self.num_epochs} epochs)", both(self.exposed)),
            ("dropped: empty", both(self.dropped_empty)),
            ("dropped: too long", both(self.dropped_long)),
            ("dropped: nothing to train", both(self.dropped_untrainable)),
            ("not reached", both(self.not_reached)),
            ("read", both(self.read)),
            ("truncated", f"{both(self.truncated)} cut off"),
            ("trained tokens", f"{counts.with_loss:,}"),
            ("masked tokens", f"{counts.prompt + counts.first_tokens:,}"),
            ("samples", f"{counts.samples:,}, {self.num_untrainable_samples:,} without loss"),
            ("slots", f"{counts.slots:,}, {100 * self.fill:.2f} % filled"),
        ]


def count_windows(samples: int, *, sequence_length: int, extra: int) -> SlotCounts:
    """Returns the counts of windows without masks."""
    slots, unlabelled = samples * sequence_length, samples * (1 - extra)
    return SlotCounts(
        samples=samples,
        slots=slots,
        with_loss=slots - unlabelled,
        no_label=unlabelled,
        tokens=slots,
        first_tokens=unlabelled,
    )


class Texts(NamedTuple):
    """The tokens of samples, if loss depends on them.

    Attributes:
        tokens: integers[num_tokens], back to back.
        is_denied: bool[num_tokens].
        bounds: int64[samples + 1], bounds of each sample's tokens.
        loss: integers[samples], slots with loss.
        eod: the end-of-document id if it masks loss; else None.
    """

    tokens: NDArray[Any]
    is_denied: Bools
    bounds: Int64s
    loss: Int64s
    eod: int | None


def count_spans(
    spans: SpanBatch, *, sequence_length: int, extra: int, are_packs: bool, texts: Texts | None = None
) -> SlotCounts:
    """Returns the counts of samples.

    Args:
        spans: their spans; denied documents have numbers below 0.
        sequence_length: slots of a sample.
        extra: tokens that a sample reads beyond that, 0 or 1.
        are_packs: whether samples are packs of documents, or windows, each of which begins with the last token of the
            one before.
        texts: the tokens; None if nothing but denied documents is masked.
    """
    samples, is_denied = len(spans.row_offsets) - 1, None
    bounds = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(spans.lengths)])[spans.row_offsets]
    planned = np.diff(bounds)
    first = int((planned > 0).sum()) if are_packs or not extra else 0
    twice = int((spans.starts > 0).sum()) * extra if are_packs else 0
    if texts is not None:
        bounds, is_denied = texts.bounds, texts.is_denied
    elif (spans.documents < 0).any():
        is_denied = np.repeat(spans.documents < 0, spans.lengths)
    tokens = np.diff(bounds)
    num_labels, filled = int(np.maximum(tokens - 1, 0).sum()), int(np.minimum(tokens, sequence_length).sum())
    denied = ended = 0
    if is_denied is not None:
        has_label = np.ones(len(is_denied), dtype=np.bool_)
        has_label[bounds[1:][tokens > 0] - 1] = False
        beside = has_label & (is_denied | np.append(is_denied[1:], False))
        denied = int(beside.sum())
        if texts is not None and texts.eod is not None:
            ended = int(((texts.tokens == texts.eod) & has_label & ~beside).sum())
    with_loss = num_labels - denied if texts is None else int(texts.loss.sum())
    planned_labels = int(np.maximum(planned - 1, 0).sum())
    return SlotCounts(
        samples=samples,
        slots=samples * sequence_length,
        with_loss=with_loss,
        eod_masked=ended,
        denied_slots=denied,
        pad_id=num_labels - denied - ended - with_loss,
        no_label=filled - num_labels,
        padding=samples * sequence_length - filled,
        tokens=planned_labels + first - twice,
        read_twice=twice,
        denied_tokens=denied,
        first_tokens=first,
        rearranged=planned_labels - num_labels,
    )


def count_conversations(shares: Int64s, denied: Bools, *, samples: int, slots: int) -> SlotCounts:
    """Returns the counts of samples of whole conversations.

    Args:
        shares: int64[count, 5] of each conversation: tokens, inputs, tokens read, slots, labels with loss.
        denied: bool[count].
        samples: the number of samples.
        slots: their slots.
    """
    tokens, inputs, available, _, with_loss = shares[~denied].sum(axis=0).tolist()
    count, blank = int((~denied).sum()), int(shares[denied, 1].sum())
    lost = int(shares[denied, 0].sum())
    return SlotCounts(
        samples=samples,
        slots=slots,
        with_loss=with_loss,
        prompt=available - count - with_loss,
        denied_slots=blank,
        no_label=inputs - (available - count),
        padding=slots - inputs - blank,
        tokens=tokens + lost,
        denied_tokens=lost,
        first_tokens=count,
        truncated=tokens - available,
    )
