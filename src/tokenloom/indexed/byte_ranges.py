"""Where spans of tokens lie in bytes, and telling storage of those that will be read."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.indexed.layout import IndexArrays
from tokenloom.storage.extents import ExtentSource, extents_of
from tokenloom.storage.local import ByteSource
from tokenloom.storage.objects import RemoteFile

_MOST_BLOCKS = 4
"""A block that a long sequence makes larger than so many is not fetched as a whole."""


class ByteRanges:
    """The bytes of spans, and of the blocks around them. Safe from several threads; not picklable.

    Args:
        arrays: arrays of the index.
        source: the tokens.
        itemsize: bytes per token.
    """

    def __init__(self, arrays: IndexArrays, source: ByteSource, *, itemsize: int) -> None:
        self._arrays = arrays
        self._source = source
        self._itemsize = itemsize
        self._block_starts: dict[int, NDArray[np.int64]] = {}

    def of_spans(
        self, sequences: NDArray[np.int64], starts: NDArray[np.int64], lengths: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns where spans lie: offsets and lengths, int64[num_spans] each."""
        return self._arrays.pointers[sequences] + starts * self._itemsize, lengths * self._itemsize

    def token_offsets(self, sequences: NDArray[Any]) -> NDArray[np.int64]:
        """Returns how many tokens lie in the file before each sequence: int64[count]."""
        offsets: NDArray[np.int64] = self._arrays.pointers[sequences] // self._itemsize
        return offsets

    def block_starts(self, block_bytes: int) -> NDArray[np.int64]:
        """Returns where the blocks of whole sequences begin: int64[num_blocks]; one pass, remembered.

        A sequence belongs to the block of `block_bytes` in which its first byte lies, so that none is in two. No block
        holds sequences of two pairs.
        """
        if block_bytes not in self._block_starts:
            pointers = np.array(self._arrays.pointers)  # aligned
            is_first = np.diff(pointers // block_bytes, prepend=-1) != 0
            if len((extents := extents_of(self._source)).starts) > 1:
                is_first |= np.diff(extents.parts_at(pointers), prepend=-1) != 0
            self._block_starts[block_bytes] = pointers[np.flatnonzero(is_first)]
        return self._block_starts[block_bytes]

    def block_numbers(self, sequences: NDArray[Any], block_bytes: int) -> NDArray[np.int64]:
        """Returns the numbers of the blocks of sequences, see `block_starts`: int64[count]."""
        starts = self._arrays.pointers[sequences]
        numbers: NDArray[np.int64] = np.searchsorted(self.block_starts(block_bytes), starts, side="right") - 1
        return numbers

    def announce(
        self,
        sequences: NDArray[np.int64],
        starts: NDArray[np.int64],
        lengths: NDArray[np.int64],
        *,
        block_bytes: int | None,
    ) -> None:
        """Announces spans that will be read, in this order; see `IndexedDataset.will_need`."""
        source = self._source
        if not isinstance(source, (RemoteFile, ExtentSource)):
            return
        offsets, num_bytes = self.of_spans(sequences, starts, lengths)
        if block_bytes is None:
            source.will_need(offsets, num_bytes)
            return
        extents = extents_of(self._source)
        numbers = self.block_numbers(sequences, block_bytes)
        bounds = np.append(self.block_starts(block_bytes), extents.num_bytes)
        begins = bounds[numbers]
        parts = extents.parts_at(begins)
        stops = np.minimum(bounds[numbers + 1], extents.starts[parts] + extents.sizes[parts])
        vast = stops - begins > _MOST_BLOCKS * block_bytes  # the block of a very long sequence
        source.will_need(offsets[~vast], num_bytes[~vast], blocks=(begins[~vast], stops[~vast]))
        source.will_need(offsets[vast], num_bytes[vast])
