"""The orders of conversations, kept as arrays: packed into samples of one length, or one in each sample."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import ConfigError
from tokenloom.order.arrays import ArrayStore, OrderOfArrays
from tokenloom.order.cache import Arrays
from tokenloom.order.conversations import pack_conversations, shuffle_conversations
from tokenloom.order.documents import Rows
from tokenloom.order.npy_files import ArraySpec
from tokenloom.order.shuffles import document_index_dtype


class ConversationSource(Protocol):
    """The conversations that samples are made of."""

    @property
    def rows(self) -> Rows:
        """The conversations that are exposed."""
        ...

    @property
    def num_sequences(self) -> int:
        """The number of conversations in the data."""
        ...

    def kept(self) -> tuple[NDArray[Any], NDArray[np.int32]]:
        """Returns those that samples are made of, and the positions that each takes: integers[count], int32[count]."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ConversationSamples(ABC):
    """The arrays of one order, for `CachedArrays`.

    Attributes:
        source: the conversations.
        num_samples: samples wanted; None for one epoch.
        seed: seed of the run.
        name: name of the dataset, for messages.
    """

    source: ConversationSource
    num_samples: int | None
    seed: int
    name: str

    @property
    def index_dtype(self) -> np.dtype[Any]:
        """The dtype of numbers of conversations."""
        return document_index_dtype(self.source.rows.largest)

    @abstractmethod
    def specs(self) -> dict[str, ArraySpec]:
        """Returns what the arrays must be."""

    @abstractmethod
    def _arrays(self, sequences: NDArray[Any], slots: NDArray[np.int32]) -> Iterator[tuple[str, NDArray[Any]]]:
        """Yields the arrays over the conversations that samples are made of."""

    def build(self) -> Iterator[tuple[str, NDArray[Any]]]:
        """Yields the arrays.

        Raises:
            ConfigError: samples are wanted, and no conversation is left to make them of.
        """
        sequences, slots = self.source.kept()
        try:
            yield from self._arrays(sequences, slots)
        except ConfigError as error:
            message = f"{self.name}: {error.message}"
            raise ConfigError(message, hint=error.hint) from None

    def misfit(self, arrays: Arrays) -> str | None:
        """Returns why arrays cannot be those of this data, or None: O(1), the ends only."""
        stream, count = arrays["document_index"], self.source.num_sequences
        for sequence in stream[[0, -1]].tolist() if len(stream) else ():
            if not 0 <= sequence < count:
                return f"it names conversation {sequence} of {count}"
        return None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PackedSamples(ConversationSamples):
    """Conversations in a shuffled stream, which fill samples from first to last.

    Attributes:
        capacity: positions of a sample.
    """

    capacity: int

    def specs(self) -> dict[str, ArraySpec]:
        """Returns what the arrays must be; how many conversations are read only building tells."""
        num_starts = None if self.num_samples is None else self.num_samples + 1
        return {
            "document_index": ArraySpec(self.index_dtype, (None,)),
            "sample_index": ArraySpec(np.dtype(np.int64), (num_starts,)),
        }

    def _arrays(self, sequences: NDArray[Any], slots: NDArray[np.int32]) -> Iterator[tuple[str, NDArray[Any]]]:
        stream, starts = pack_conversations(sequences, slots, self.num_samples, capacity=self.capacity, seed=self.seed)
        yield "document_index", stream.astype(self.index_dtype)
        yield "sample_index", starts

    def misfit(self, arrays: Arrays) -> str | None:
        """Returns why arrays cannot be those of this data, or None: O(1), the ends only."""
        starts, num_read = arrays["sample_index"], len(arrays["document_index"])
        if not len(starts) or (int(starts[0]), int(starts[-1])) != (0, num_read):
            return f"its samples do not cover the {num_read} conversations read"
        return ConversationSamples.misfit(self, arrays)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SingleSamples(ConversationSamples):
    """Conversations in a shuffled stream, each a sample of its own."""

    def specs(self) -> dict[str, ArraySpec]:
        """Returns what the array must be."""
        return {"document_index": ArraySpec(self.index_dtype, (self.num_samples,))}

    def _arrays(self, sequences: NDArray[Any], slots: NDArray[np.int32]) -> Iterator[tuple[str, NDArray[Any]]]:
        stream = shuffle_conversations(sequences, self.num_samples, seed=self.seed)
        yield "document_index", stream.astype(self.index_dtype)


class ConversationOrder(OrderOfArrays):
    """An `Order` whose samples are whole conversations.

    Args:
        samples: what the arrays are.
        store: where they are kept.

    Attributes:
        arrays: the arrays, by name.
    """

    def __init__(self, samples: PackedSamples | SingleSamples, store: ArrayStore) -> None:
        super().__init__(samples, store)
        self._wanted = samples.num_samples
        self._are_packed = isinstance(samples, PackedSamples)

    @property
    def num_samples(self) -> int:
        """How many samples there are; opens the arrays where no number was asked for."""
        if self._wanted is not None:
            return self._wanted
        return len(self.arrays["sample_index"]) - 1 if self._are_packed else len(self.arrays["document_index"])

    def starts(self) -> NDArray[np.int64]:
        """Returns the place in `document_index` at which each sample begins, and the end: int64[num_samples + 1]."""
        return self.arrays["sample_index"] if self._are_packed else np.arange(self.num_samples + 1, dtype=np.int64)

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
        stream = self.arrays["document_index"]
        if not self._are_packed:
            return stream[positions].astype(np.int64), np.arange(len(positions) + 1, dtype=np.int64)
        all_starts = self.arrays["sample_index"]
        starts = all_starts[positions]
        counts = all_starts[positions + 1] - starts
        row_offsets = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(counts)])
        places = np.repeat(starts - row_offsets[:-1], counts) + np.arange(int(row_offsets[-1]))
        return stream[places].astype(np.int64), row_offsets
