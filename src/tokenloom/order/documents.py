"""The documents of a split as rows of an `.idx` file: a range, which needs no memory per row, or an array."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

_INT32_MAX = np.iinfo(np.int32).max
_BLOCK_ROWS = 1 << 20


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Row numbers of an `.idx` file: a consecutive range, or selected rows in any order.

    Attributes:
        chosen: a range if the rows are consecutive, else integers[count].
        dtype: dtype of the rows as an array.
    """

    chosen: range | NDArray[Any]
    dtype: np.dtype[Any]

    @classmethod
    def of(cls, rows: range | NDArray[Any]) -> Self:
        """Returns the rows of a range or array; an array of consecutive rows becomes a range."""
        if isinstance(rows, range):
            narrow = rows.stop - 1 <= _INT32_MAX
            return cls(rows, np.dtype(np.int32 if narrow else np.int64))
        rows = np.asarray(rows)
        if is_range(rows):
            return cls(range(int(rows[0]), int(rows[-1]) + 1), rows.dtype)
        return cls(rows, rows.dtype)

    def __len__(self) -> int:
        return len(self.chosen)

    @property
    def consecutive(self) -> range | None:
        """The rows as a range; None if they are not consecutive."""
        return self.chosen if isinstance(self.chosen, range) else None

    @property
    def largest(self) -> int:
        """The largest row; -1 if there are no rows."""
        if isinstance(self.chosen, range):
            return self.chosen.stop - 1 if len(self.chosen) else -1
        return int(self.chosen.max(initial=-1))

    def array(self) -> NDArray[Any]:
        """Returns the rows as integers[count]; if the rows are stored as a range, creates a new array."""
        if isinstance(self.chosen, range):
            return np.arange(self.chosen.start, self.chosen.stop, dtype=self.dtype)
        return self.chosen

    def blocks_of(self, values: NDArray[Any]) -> Iterator[NDArray[Any]]:
        """Yields `values[rows]` in blocks: one view if the rows are a range, else copies."""
        if isinstance(self.chosen, range):
            yield values[self.chosen.start : self.chosen.stop]
            return
        for begin in range(0, len(self.chosen), _BLOCK_ROWS):
            yield values[self.chosen[begin : begin + _BLOCK_ROWS]]


def is_range(rows: NDArray[Any], *, block: int = _BLOCK_ROWS) -> bool:
    """Returns whether rows are one or more consecutive integers."""
    if not len(rows) or int(rows[-1]) - int(rows[0]) != len(rows) - 1:
        return False
    blocks = (rows[i : i + block + 1] for i in range(0, len(rows), block))
    return all(bool(np.all(np.diff(part) == 1)) for part in blocks)


class TokenSource(Protocol):
    """The part of a dataset that an order reads: lengths, never tokens."""

    @property
    def sequence_lengths(self) -> NDArray[np.int32]:
        """int32[num_sequences], tokens per sequence."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of tokens; only `BlockShuffle` needs it."""

    def block_numbers(self, sequences: NDArray[Any], block_bytes: int) -> NDArray[np.int64]:
        """Returns the index of the data block that contains each sequence; only `BlockShuffle` needs it."""


@dataclass(frozen=True, slots=True, eq=False)
class Documents:
    """The documents of a split, with their lengths. Pickles are small, as unpickling opens the data again.

    Attributes:
        source: the data, such as an `IndexedDataset`.
        rows: the rows of the documents in the `.idx` file.
    """

    source: TokenSource
    rows: Rows

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def lengths(self) -> NDArray[np.int32]:
        """int32[num_sequences], tokens per sequence, for all splits; index this array with rows."""
        return self.source.sequence_lengths

    def length_blocks(self) -> Iterator[NDArray[np.int32]]:
        """Yields the lengths of the documents in blocks, in order."""
        return self.rows.blocks_of(self.lengths)

    def count_tokens(self) -> int:
        """Returns the number of tokens of the documents, without a copy of all lengths."""
        return sum(int(part.sum(dtype=np.int64)) for part in self.length_blocks())
