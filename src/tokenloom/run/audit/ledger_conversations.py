"""Whole walks through the conversations of a source: what they leave out, and what is in their samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tokenloom.datasets.exposure import Exposure
from tokenloom.datasets.joined_conversations import TakenOfPairs
from tokenloom.datasets.ledger import NOTHING, Count
from tokenloom.datasets.slot_counts import SlotCounts, count_conversations
from tokenloom.order.computed_keys import source_key
from tokenloom.run.dataset import RunDataset
from tokenloom.run.held_out import held_numbers
from tokenloom.run.lock import BLOCK_DOCUMENTS, LockedPair
from tokenloom.run.members import SourceData, run_config
from tokenloom.run.packs import CONVERSATION_CLASSES
from tokenloom.run.plan import PlannedWalks

Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped:
    """Conversations that no sample holds, and their tokens.

    Attributes:
        empty: too short to hold an input and a label.
        long: longer than a sample, and not to be truncated.
        untrainable: those without a token to train on.
    """

    empty: Count = NOTHING
    long: Count = NOTHING
    untrainable: Count = NOTHING

    def __add__(self, other: Dropped) -> Dropped:
        if other is NONE_DROPPED:
            return self
        return Dropped(
            empty=self.empty + other.empty,
            long=self.long + other.long,
            untrainable=self.untrainable + other.untrainable,
        )

    def __mul__(self, times: int) -> Dropped:
        return Dropped(empty=self.empty * times, long=self.long * times, untrainable=self.untrainable * times)

    def as_json(self) -> dict[str, dict[str, int]]:
        """Returns conversations and tokens by reason, as `json` writes them."""
        by_reason = {"empty": self.empty, "long": self.long, "untrainable": self.untrainable}
        return {
            reason: {"conversations": count.conversations, "tokens": count.tokens}
            for reason, count in by_reason.items()
        }

    @property
    def tokens(self) -> int:
        """The tokens of all."""
        return self.empty.tokens + self.long.tokens + self.untrainable.tokens


NONE_DROPPED = Dropped()
"""No conversation."""


class WalksOfConversations:
    """What becomes of the conversations of whole walks: one pass over lengths and roles of each pair.

    Args:
        dataset: the run.
    """

    def __init__(self, dataset: RunDataset) -> None:
        self._dataset = dataset
        self._lock = dataset.lock
        self._kind = CONVERSATION_CLASSES[dataset.lock.dataset]
        self._taken: dict[tuple[int, int], tuple[SourceData, TakenOfPairs]] = {}
        self._exposures: dict[tuple[int, int, int], tuple[Exposure, Bools]] = {}

    def dropped(self, source: int, walks: PlannedWalks, sequence_length: int) -> Dropped:
        """Returns the conversations that walks leave out."""
        found = Dropped()
        for number in range(walks.first_pair, walks.last_pair):
            exposure, is_read = self._exposure(source, number, sequence_length)
            found += Dropped(
                empty=exposure.count(exposure.empty & is_read),
                long=exposure.count(exposure.too_long & is_read),
                untrainable=exposure.count(exposure.untrainable & is_read),
            )
        return found * walks.count

    def counts(self, source: int, walks: PlannedWalks, sequence_length: int, *, denied: Sequence[int]) -> SlotCounts:
        """Returns what is in the slots of walks of which every sample is read."""
        data, _ = self._opened(source, sequence_length)
        found, slots = SlotCounts(), 0
        for number in range(walks.first_pair, walks.last_pair):
            exposure, is_read = self._exposure(source, number, sequence_length)
            chosen = np.flatnonzero(exposure.kept & is_read)
            shares = np.empty((len(chosen), 5), dtype=np.int64)
            shares[:, 0], shares[:, 2] = exposure.lengths[chosen], exposure.available[chosen]
            shares[:, 1] = shares[:, 2] - self._kind.reads_ahead
            shares[:, 3], shares[:, 4] = exposure.slots[chosen], exposure.trained[chosen]
            slots += int(shares[:, 3].sum())
            is_denied = np.isin(chosen + data.pairs.first_of(number), np.array(denied, dtype=np.int64))
            found += count_conversations(shares, is_denied, samples=0, slots=0)
        whole = walks.num_windows * sequence_length if self._kind.shares_samples else slots
        found += SlotCounts(samples=walks.num_windows, slots=whole, padding=whole)  # less what conversations take
        return found * walks.count

    def _opened(self, source: int, sequence_length: int) -> tuple[SourceData, TakenOfPairs]:
        if (found := self._taken.get((source, sequence_length))) is None:
            reading = self._dataset.reading
            config = run_config(self._lock, sequence_length, self._dataset.tokenizer, reading)
            data = SourceData(self._lock, source, reading, config)
            taken = self._kind.taken_of(data.pairs, config, name=data.source.name)
            found = self._taken[source, sequence_length] = data, taken
        return found

    def _exposure(self, source: int, number: int, sequence_length: int) -> tuple[Exposure, Bools]:
        """Returns what samples take of the conversations of a pair, and which of them are not held out."""
        key = source, number, sequence_length
        if (found := self._exposures.get(key)) is None:
            _, taken = self._opened(source, sequence_length)
            exposure = taken.exposure_of(number)
            is_read = ~self._held(source, number, self._lock.sources[source].pairs[number])
            found = self._exposures[key] = exposure, is_read
        return found

    def _held(self, source: int, number: int, pair: LockedPair) -> Bools:
        held = np.zeros(pair.num_documents, dtype=np.bool_)
        if pair.held_blocks or pair.held_documents:
            key = source_key(self._lock.seed, self._lock.sources[source].name)
            numbers = held_numbers(pair, key=key, number=number)
            if pair.held_blocks:
                for block in numbers.tolist():
                    held[block * BLOCK_DOCUMENTS : (block + 1) * BLOCK_DOCUMENTS] = True
            else:
                held[numbers] = True
        return held
