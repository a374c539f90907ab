"""Orders of conversations, packed into samples or one per sample.

Each epoch is shuffled separately: every conversation occurs once per epoch, and a longer run begins with the samples of
a shorter run.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import ConfigError
from tokenloom.kernels.order import LegacyRandom
from tokenloom.kernels.packs import next_fit
from tokenloom.order.array_store import ArrayStore, StoredOrder
from tokenloom.order.cache import Arrays, ArraySpec
from tokenloom.order.documents import Rows
from tokenloom.order.shuffles import document_index_dtype


class ConversationSource(Protocol):
    """The conversations from which an order makes samples."""

    @property
    def rows(self) -> Rows:
        """The conversations of the split, as rows of the `.idx` file."""

    @property
    def num_sequences(self) -> int:
        """The number of conversations in the data."""

    def kept(self) -> tuple[NDArray[Any], NDArray[np.int32]]:
        """Returns the conversations to train on, integers[count], and the number of slots of each, int32[count]."""


class ConversationOrder(StoredOrder):
    """The base class of orders of whole conversations; `num_samples=None` stands for one epoch."""

    def __init__(self, source: ConversationSource, num_samples: int | None, *, seed: int, store: ArrayStore) -> None:
        self._source = source
        self._requested = num_samples
        self._seed = seed
        self._dtype = document_index_dtype(source.rows.largest)
        super().__init__(store)

    @abstractmethod
    def _build(self, sequences: NDArray[Any], slots: NDArray[np.int32]) -> Iterator[tuple[str, NDArray[Any]]]:
        """Yields (name, array) pairs for the conversations to train on."""

    @abstractmethod
    def starts(self) -> NDArray[np.int64]:
        """Returns int64[num_samples + 1]; sample i has `document_index[starts[i]:starts[i + 1]]`."""

    @property
    def num_samples(self) -> int:
        """The number of samples; opens the arrays if no number was requested."""
        return len(self.starts()) - 1 if self._requested is None else self._requested

    def build(self) -> Iterator[tuple[str, NDArray[Any]]]:
        """Yields (name, array); raises ConfigError if samples are requested and no conversation can be trained on."""
        kept = self._source.kept()
        try:
            yield from self._build(*kept)
        except ConfigError as error:
            raise ConfigError(f"{self.store.name}: {error.message}", hint=error.hint) from None

    def mismatch(self, arrays: Arrays) -> str | None:
        """Returns why the arrays do not match the data; None if the first and last conversation match; O(1)."""
        stream, count = arrays["document_index"], self._source.num_sequences
        for sequence in stream[[0, -1]].tolist() if len(stream) else ():
            if not 0 <= sequence < count:
                return f"the index refers to conversation {sequence}, but the data have {count} conversations"
        return None

    def conversations(self, positions: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns the conversations of samples.

        Args:
            positions: int64[count], each in [0, num_samples).

        Returns:
            sequences: int64[num_conversations], rows of the `.idx` file.
            row_offsets: int64[count + 1]; `positions[i]` has `sequences[row_offsets[i]:row_offsets[i + 1]]`.

        Raises:
            IndexError: the arrays are inconsistent.
        """
        all_starts = self.starts()
        starts = all_starts[positions]
        counts = all_starts[positions + 1] - starts
        row_offsets = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(counts)])
        places = np.repeat(starts - row_offsets[:-1], counts) + np.arange(int(row_offsets[-1]))
        return self.arrays["document_index"][places].astype(np.int64), row_offsets


class PackedConversations(ConversationOrder):
    """An order that packs shuffled conversations into samples of `capacity` slots by next fit."""

    def __init__(
        self,
        source: ConversationSource,
        num_samples: int | None,
        *,
        seed: int,
        store: ArrayStore,
        capacity: int,
        most_conversations: int | None = None,
    ) -> None:
        self._capacity, self._most = capacity, most_conversations
        super().__init__(source, num_samples, seed=seed, store=store)

    def specs(self) -> dict[str, ArraySpec]:
        num_starts = None if self._requested is None else self._requested + 1
        return {
            "document_index": ArraySpec(self._dtype, (None,)),
            "sample_index": ArraySpec(np.dtype(np.int64), (num_starts,)),
        }

    def _build(self, sequences: NDArray[Any], slots: NDArray[np.int32]) -> Iterator[tuple[str, NDArray[Any]]]:
        stream, starts = pack_conversations(
            sequences, slots, self._requested, capacity=self._capacity, most_sequences=self._most, seed=self._seed
        )
        yield "document_index", stream.astype(self._dtype)
        yield "sample_index", starts

    def mismatch(self, arrays: Arrays) -> str | None:
        starts, num_read = arrays["sample_index"], len(arrays["document_index"])
        if not len(starts) or (int(starts[0]), int(starts[-1])) != (0, num_read):
            return f"the samples of the index do not cover the {num_read} conversations of the index"
        return super().mismatch(arrays)

    def starts(self) -> NDArray[np.int64]:
        return self.arrays["sample_index"]


class SingleConversations(ConversationOrder):
    """An order of shuffled conversations, one per sample."""

    def specs(self) -> dict[str, ArraySpec]:
        return {"document_index": ArraySpec(self._dtype, (self._requested,))}

    def _build(self, sequences: NDArray[Any], slots: NDArray[np.int32]) -> Iterator[tuple[str, NDArray[Any]]]:
        yield "document_index", shuffle_conversations(sequences, self._requested, seed=self._seed).astype(self._dtype)

    def starts(self) -> NDArray[np.int64]:
        return np.arange(len(self.arrays["document_index"]) + 1, dtype=np.int64)

    def conversations(self, positions: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        return self.arrays["document_index"][positions].astype(np.int64), np.arange(len(positions) + 1, dtype=np.int64)


def shuffle_conversations(sequences: NDArray[Any], count: int | None, *, seed: int) -> NDArray[Any]:
    """Returns the first `count` sequences of shuffled, concatenated epochs, or one shuffled epoch if `count` is None.

    `sequences` are integers[num_sequences]. Raises ConfigError if `sequences` is empty and `count` is above 0.
    """
    parts, missing = [_empty_stream(sequences, count)], len(sequences) if count is None else count
    epochs = _shuffled_epochs(len(sequences), seed)
    while missing > 0:
        epoch = sequences[next(epochs)[:missing]].astype(parts[0].dtype)
        parts.append(epoch)
        missing -= len(epoch)
    return np.concatenate(parts)


def pack_conversations(
    sequences: NDArray[Any],
    slots: NDArray[np.int32],
    count: int | None,
    *,
    capacity: int,
    most_sequences: int | None = None,
    seed: int,
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Returns the shuffled sequences of the first `count` packs, and the starts of the packs.

    Packs by next fit: a sequence joins the current pack if it fits, else it begins the next pack. A pack may
    contain sequences of several epochs. O(sequences).

    Args:
        sequences: integers[num_sequences], the sequences of one epoch.
        slots: int32[num_sequences], slots per sequence, in [1, capacity].
        count: number of packs; None for one epoch.
        capacity: slots per pack.
        most_sequences: maximum number of sequences in a pack; None for no limit.
        seed: seed of the shuffles.

    Returns:
        stream: integers[num_used], the shuffled sequences in the packs.
        starts: int64[num_packs + 1]; pack i has `stream[starts[i]:starts[i + 1]]`.

    Raises:
        ConfigError: `sequences` is empty and `count` is above 0.
    """
    stream = [_empty_stream(sequences, count)]
    starts: list[NDArray[np.int64]] = [np.empty(0, dtype=np.int64)]
    position, num_starts, row = 0, 0, (-1, 0)
    epochs = _shuffled_epochs(len(sequences), seed)
    while count is None or num_starts <= count:  # a pack is complete when the next one begins
        order = next(epochs)
        begins, row = next_fit(slots[order], capacity=capacity, most_items=most_sequences, row=row)
        stream.append(sequences[order].astype(stream[0].dtype))
        starts.append(begins + position)
        position += len(order)
        num_starts += len(begins)
        if count is None or count == 0:
            break
    joined, ends = np.concatenate(stream), np.concatenate(starts)
    if count is None:
        return joined, np.append(ends, position)
    ends = ends[: count + 1] if len(ends) else np.zeros(1, dtype=np.int64)
    return joined[: int(ends[-1])], ends


def _shuffled_epochs(count: int, seed: int) -> Iterator[NDArray[Any]]:
    """Yields a permutation of [0, count) for each epoch, forever."""
    random = LegacyRandom(seed)
    while True:
        epoch = np.arange(count, dtype=document_index_dtype(count))
        random.shuffle(epoch)
        yield epoch


def _empty_stream(sequences: NDArray[Any], count: int | None) -> NDArray[Any]:
    if count and not len(sequences):
        message = f"{count} samples are requested, but there is no conversation to train on"
        raise ConfigError(message, hint="raise the weight of this split, or request 0 samples from it")
    return np.empty(0, dtype=document_index_dtype(int(sequences.max(initial=-1))))
