"""Counts the conversations, tokens and slots of samples, and checks that the counts add up."""

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
    """A number of conversations, and the total number of tokens in them."""

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

    The label of a slot is the next token. `slots` = `with_loss` + `eod_masked` + `prompt` + `denied_slots` +
    `pad_id` + `no_label` + `padding`. A token counts in the sample in which the token is a label, so it counts once
    even if two windows read it: `tokens` + `read_twice` = `with_loss` + `eod_masked` + `prompt` + `denied_tokens` +
    `pad_id` + `first_tokens` + `rearranged` + `truncated`. If the tokens of a sample were not read, its slots and
    tokens count only as `not_counted_slots` and `not_counted_tokens`. Denied documents are those that a run masks.

    Attributes:
        samples: number of samples.
        slots: number of slots of the samples.
        with_loss: slots with loss.
        eod_masked: slots without loss, as the token ends a document and `eod_mask_loss` is set.
        prompt: slots without loss, as the label belongs to a prompt.
        denied_slots: slots without loss, as the token or its label is of a denied document.
        pad_id: slots without loss, as the label equals the tokenizer's pad id.
        no_label: slots without loss, as no token follows.
        padding: slots without a token.
        tokens: tokens of the samples.
        read_twice: tokens that two samples read, where a long document is split between packs.
        denied_tokens: tokens without loss, as the token or its predecessor is of a denied document.
        first_tokens: tokens that are no label: the first of a pack or conversation, or of a window without extra token.
        rearranged: tokens that fill-in-the-middle drops at the ends of samples, minus the tokens that it adds.
        truncated: tokens cut from conversations that are longer than a sample.
        not_counted_slots, not_counted_tokens: slots and tokens of samples whose tokens were not read.
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
        """For each equation in the class docstring, the left side minus the right side: 0 if the counts are correct."""
        masked = self.with_loss + self.eod_masked + self.prompt + self.pad_id
        slots = self.slots - masked - self.denied_slots - self.no_label - self.padding - self.not_counted_slots
        read = masked + self.denied_tokens + self.first_tokens + self.rearranged + self.truncated
        return slots, self.tokens + self.read_twice - read - self.not_counted_tokens


_NAMES = tuple(field.name for field in fields(SlotCounts))
_NUMBERS = attrgetter(*_NAMES)

NO_SLOTS = SlotCounts()


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatLedger:
    """Counts of all conversations and tokens of a split over its epochs, and of the slots of its samples.

    In each epoch, a conversation is read, dropped for one reason, or not reached because the samples end earlier.

    Attributes:
        num_epochs: number of epochs, including an incomplete last one.
        exposed: conversations of the split, times `num_epochs`.
        dropped_empty: conversations too short for an input and a label.
        dropped_long: conversations longer than a sample, with `long_conversations="drop"`.
        dropped_untrainable: conversations without a token to train on within a sample.
        not_reached: conversations of the last epoch that no sample reads.
        truncated: conversations longer than a sample, and the number of tokens that are cut off.
        num_untrainable_samples: samples without any loss.
        counts: slots and tokens of the samples.
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
        """The conversations in samples, and all tokens of them, including those that are cut off."""
        return Count(conversations=self.counts.first_tokens, tokens=self.counts.tokens)

    @property
    def balance(self) -> tuple[int, int, int, int]:
        """Exposed conversations and tokens that no other field counts, then `counts.balance`; all 0 if correct."""
        dropped = self.dropped_empty + self.dropped_long + self.dropped_untrainable
        left = self.exposed - dropped - self.not_reached - self.read
        return left.conversations, left.tokens, *self.counts.balance

    @property
    def fill(self) -> float:
        """The fraction of slots with a token; 1 if there are no slots."""
        return 1 - self.counts.padding / self.counts.slots if self.counts.slots else 1.0

    def lines(self) -> list[tuple[str, str]]:
        """Returns (name, formatted numbers) for each line to display."""

        def shown(count: Count) -> str:
            return f"{count.conversations:,} conversations, {count.tokens:,} tokens"

        counts = self.counts
        return [
            (f"exposed ({self.num_epochs} epochs)", shown(self.exposed)),
            ("dropped: empty", shown(self.dropped_empty)),
            ("dropped: too long", shown(self.dropped_long)),
            ("dropped: nothing to train", shown(self.dropped_untrainable)),
            ("not reached", shown(self.not_reached)),
            ("read", shown(self.read)),
            ("truncated", f"{shown(self.truncated)} cut off"),
            ("trained tokens", f"{counts.with_loss:,}"),
            ("masked tokens", f"{counts.prompt + counts.first_tokens:,}"),
            ("samples", f"{counts.samples:,}, {self.num_untrainable_samples:,} without loss"),
            ("slots", f"{counts.slots:,}, {100 * self.fill:.2f} % filled"),
        ]


def count_windows(samples: int, *, sequence_length: int, extra: int) -> SlotCounts:
    """Counts slots and tokens of full windows, all with loss; if `extra` is 0, a window's last slot has no label."""
    slots, unlabelled = samples * sequence_length, samples * (1 - extra)
    counts = {"tokens": slots, "with_loss": slots - unlabelled, "no_label": unlabelled, "first_tokens": unlabelled}
    return SlotCounts(samples=samples, slots=slots, **counts)


class Texts(NamedTuple):
    """The concatenated tokens of samples whose loss mask depends on token ids.

    Sample i has tokens [bounds[i], bounds[i + 1]) and `loss[i]` slots with loss. `eod` is None without `eod_mask_loss`.
    """

    tokens: NDArray[Any]
    is_denied: Bools
    bounds: Int64s
    loss: Int64s
    eod: int | None


def count_spans(
    spans: SpanBatch, *, sequence_length: int, extra: int, are_packs: bool, texts: Texts | None = None
) -> SlotCounts:
    """Counts the slots and tokens of GPT samples; spans of denied documents have a document index below 0.

    A sample reads `extra` tokens beyond `sequence_length`. Unless `are_packs`, samples are windows, and each begins
    with the last `extra` tokens of the window before. Pass `texts` if the loss also depends on token ids.
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
    """Counts the slots and tokens of samples of whole conversations.

    `shares`, int64[count, 5]: see `SplitConversations.shares`. `samples` and `slots` are the totals.
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
