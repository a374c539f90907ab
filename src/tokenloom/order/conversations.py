"""Orders of conversations, packed into samples of one length, or one per sample.

Each epoch is a permutation of its own: every conversation comes once before any comes again, and a longer run begins
like a shorter one.
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
from tokenloom.order.arrays import ArrayStore, StoredOrder
from tokenloom.order.cache import Arrays, ArraySpec
from tokenloom.order.documents import Rows
from tokenloom.order.shuffles import document_index_dtype


class ConversationSource(Protocol):
    """The conversations that samples are made of."""

    @property
    def rows(self) -> Rows:
        """The exposed conversations."""
        ...

    @property
    def num_sequences(self) -> int:
        """The number of conversations in the data."""
        ...

    def kept(self) -> tuple[NDArray[Any], NDArray[np.int32]]:
        """Returns the conversations to train on, integers[count], and the positions of each, int32[count]."""
        ...


class ConversationOrder(StoredOrder):
    """An `Order` whose samples are whole conversations; `num_samples` of None is one epoch."""

    def __init__(self, source: ConversationSource, num_samples: int | None, *, seed: int, store: ArrayStore) -> None:
        self._source = source
        self._wanted = num_samples
        self._seed = seed
        self._dtype = document_index_dtype(source.rows.largest)
        super().__init__(store)

    @abstractmethod
    def _build(self, sequences: NDArray[Any], slots: NDArray[np.int32]) -> Iterator[tuple[str, NDArray[Any]]]:
        """Yields the arrays over the kept conversations."""

    @abstractmethod
    def starts(self) -> NDArray[np.int64]:
        """Returns the place in `document_index` at which each sample begins, and the end: int64[num_samples + 1]."""

    @property
    def num_samples(self) -> int:
        """The number of samples; counted from the arrays if no number was given."""
        return len(self.starts()) - 1 if self._wanted is None else self._wanted

    def build(self) -> Iterator[tuple[str, NDArray[Any]]]:
        """Yields the arrays; raises ConfigError if samples are wanted and no conversation is kept."""
        try:
            yield from self._build(*self._source.kept())
        except ConfigError as error:
            raise ConfigError(f"{self.store.name}: {error.message}", hint=error.hint) from None

    def misfit(self, arrays: Arrays) -> str | None:
        """Returns why arrays do not fit this data, or None: O(1), the ends only."""
        stream, count = arrays["document_index"], self._source.num_sequences
        for sequence in stream[[0, -1]].tolist() if len(stream) else ():
            if not 0 <= sequence < count:
                return f"it names conversation {sequence} of {count}"
        return None

    def conversations(self, positions: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns the conversations of samples.

        Args:
            positions: int64[count], each in [0, num_samples).

        Returns:
            sequences: int64[num_conversations].
            row_offsets: int64[count + 1]; sample i owns conversations [row_offsets[i], row_offsets[i + 1]).

        Raises:
            IndexError: the arrays do not fit each other.
        """
        all_starts = self.starts()
        starts = all_starts[positions]
        counts = all_starts[positions + 1] - starts
        row_offsets = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(counts)])
        places = np.repeat(starts - row_offsets[:-1], counts) + np.arange(int(row_offsets[-1]))
        return self.arrays["document_index"][places].astype(np.int64), row_offsets


class PackedConversations(ConversationOrder):
    """Conversations in a shuffled stream, which fill samples of `capacity` positions from first to last."""

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
        num_starts = None if self._wanted is None else self._wanted + 1
        return {
            "document_index": ArraySpec(self._dtype, (None,)),
            "sample_index": ArraySpec(np.dtype(np.int64), (num_starts,)),
        }

    def _build(self, sequences: NDArray[Any], slots: NDArray[np.int32]) -> Iterator[tuple[str, NDArray[Any]]]:
        stream, starts = pack_conversations(
            sequences, slots, self._wanted, capacity=self._capacity, most_sequences=self._most, seed=self._seed
        )
        yield "document_index", stream.astype(self._dtype)
        yield "sample_index", starts

    def misfit(self, arrays: Arrays) -> str | None:
        starts, num_read = arrays["sample_index"], len(arrays["document_index"])
        if not len(starts) or (int(starts[0]), int(starts[-1])) != (0, num_read):
            return f"its samples do not cover the {num_read} conversations read"
        return super().misfit(arrays)

    def starts(self) -> NDArray[np.int64]:
        return self.arrays["sample_index"]


class SingleConversations(ConversationOrder):
    """Conversations in a shuffled stream, each a sample of its own."""

    def specs(self) -> dict[str, ArraySpec]:
        return {"document_index": ArraySpec(self._dtype, (self._wanted,))}

    def _build(self, sequences: NDArray[Any], slots: NDArray[np.int32]) -> Iterator[tuple[str, NDArray[Any]]]:
        yield "document_index", shuffle_conversations(sequences, self._wanted, seed=self._seed).astype(self._dtype)

    def starts(self) -> NDArray[np.int64]:
        return np.arange(len(self.arrays["document_index"]) + 1, dtype=np.int64)

    def conversations(self, positions: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        return self.arrays["document_index"][positions].astype(np.int64), np.arange(len(positions) + 1, dtype=np.int64)


def shuffle_conversations(sequences: NDArray[Any], count: int | None, *, seed: int) -> NDArray[Any]:
    """Returns the first `count` sequences of the shuffled epochs, or one epoch if that is None.

    `sequences` are integers[num_sequences]. Raises ConfigError if some are wanted and there are none.
    """
    parts, missing = [_no_sequences(sequences, count)], len(sequences) if count is None else count
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
    """Returns the shuffled sequences of the first `count` packs, and where in these each pack begins.

    Next fit: a sequence joins the last pack if it fits, else begins a new one; the next epoch continues where the last
    one ended. O(sequences). A `count` of None is one epoch.

    Args:
        sequences: integers[num_sequences], those of one epoch.
        slots: int32[num_sequences], positions of each, in [1, capacity].
        count: number of packs.
        capacity: positions of a pack.
        most_sequences: most sequences of a pack; None for any number.
        seed: seed of the shuffles.

    Returns:
        stream: [num_used], the sequences.
        starts: int64[num_packs + 1], the position in the stream at which each pack begins, and the end.

    Raises:
        ConfigError: packs are wanted, and there are no sequences.
    """
    stream = [_no_sequences(sequences, count)]
    starts: list[NDArray[np.int64]] = [np.empty(0, dtype=np.int64)]
    position, num_starts, row = 0, 0, (-1, 0)
    epochs = _shuffled_epochs(len(sequences), seed)
    while count is None or num_starts <= count:  # a pack is complete once the next one begins
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
    """Yields a permutation of [0, count) per epoch, without end."""
    random = LegacyRandom(seed)
    while True:
        epoch = np.arange(count, dtype=document_index_dtype(count))
        random.shuffle(epoch)
        yield epoch


def _no_sequences(sequences: NDArray[Any], count: int | None) -> NDArray[Any]:
    """Returns an empty stream, of the dtype that all sequences need."""
    if count and not len(sequences):
        message = f"{count} samples were asked for, but there is no conversation to train on"
        raise ConfigError(message, hint="give this split more of them, or ask for no samples from it")
    return np.empty(0, dtype=document_index_dtype(int(sequences.max(initial=-1))))
