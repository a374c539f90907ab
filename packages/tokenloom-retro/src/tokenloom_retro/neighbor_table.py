"""The neighbors of all chunks of a split, from the files of its blocks, which are mapped when they are first asked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import DatasetFormatError
from tokenloom.kernels.storage import Watch
from tokenloom.numbers import checked_integer
from tokenloom.storage.local import spread_evenly
from tokenloom_retro.block_files import Block, BlockPathMap
from tokenloom_retro.chunk_database import MISSING
from tokenloom_retro.hdf5 import open_array

NAME = "neighbors"
"""The array of each file."""

_CHECKED_FILES = 256


class NeighborTable:
    """The chunks of a database that are nearest to each chunk of the samples of a split, the nearest first.

    Safe from several threads, after a fork, and picklable (files are mapped again).

    Args:
        blocks: the files, or what the reference calls by the same name.
        num_neighbors: neighbors wanted of each chunk; files may have more.
        num_database_chunks: chunks of the database that they are of.

    Raises:
        ConfigError: no neighbors are wanted.
        StorageError: blocks are missing, overlap, or are of another size than `blocks` says.
    """

    def __init__(self, blocks: BlockPathMap, *, num_neighbors: int, num_database_chunks: int) -> None:
        if not isinstance(blocks, BlockPathMap):
            blocks = BlockPathMap(sorted(blocks.block_path_map.values()), blocks.block_size)
        blocks.check()
        self.name: str = blocks.name
        self.num_neighbors: int = checked_integer("num_neighbors", num_neighbors, at_least=1)
        self.num_database_chunks = num_database_chunks
        self._block_size = blocks.block_size
        self._blocks: list[Block] = list(blocks.blocks())
        self._opened: dict[int, tuple[NDArray[Any], Watch]] = {}

    def __len__(self) -> int:
        """The number of chunks that have neighbors."""
        return self._blocks[-1].stop if self._blocks else 0

    def __repr__(self) -> str:
        return f"NeighborTable({self.name!r}, chunks={len(self)}, num_neighbors={self.num_neighbors})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": {}}

    def rows(self, chunk_ids: Sequence[int] | NDArray[np.integer[Any]]) -> NDArray[np.int64]:
        """Returns the neighbors of chunks, int64[num_chunks, num_neighbors]; -1 where there are not so many.

        Args:
            chunk_ids: integers[num_chunks], numbers of chunks of the samples, in any order.

        Raises:
            StorageError: a file cannot be read, has fewer rows or neighbors than it should, or was changed.
            DatasetFormatError: a chunk has no neighbors here, or one that is none of the database.
        """
        ids = np.asarray(chunk_ids, dtype=np.int64)
        outside = (ids < 0) | (ids >= len(self))
        if outside.any():
            message = (
                f"`{self.name}`: expected neighbors of chunk {ids[np.argmax(outside)]}, found those of {len(self)}"
            )
            raise DatasetFormatError(message, hint="not all chunks of the samples were queried; query the rest")
        found = np.empty((len(ids), self.num_neighbors), dtype=np.int64)
        numbers = ids // self._block_size
        for number in np.unique(numbers).tolist():
            own = numbers == number
            array, watch = self._block(number)
            found[own] = array[ids[own] - self._blocks[number].start, : self.num_neighbors]
            watch.check()
        beyond = (found < MISSING) | (found >= self.num_database_chunks)
        if beyond.any():
            row = int(np.argmax(beyond.any(axis=1)))
            message = (
                f"`{self._blocks[numbers[row]].path}`: expected neighbors below {self.num_database_chunks}, the chunks "
                f"of the database, found {found[row].tolist()} of chunk {ids[row]}"
            )
            raise DatasetFormatError(message, hint="the neighbors were queried in another database; query them again")
        return found

    def check(self) -> None:
        """Opens some files, spread over the blocks, and compares them with their names; a millisecond each.

        Any other is compared when it is first asked.

        Raises:
            StorageError: a file cannot be read, or has fewer rows than it should.
            DatasetFormatError: it has fewer neighbors.
        """
        for number in spread_evenly(len(self._blocks), _CHECKED_FILES).tolist():
            self._block(number)

    def _block(self, number: int) -> tuple[NDArray[Any], Watch]:
        if (opened := self._opened.get(number)) is None:
            block = self._blocks[number]
            array = open_array(block.path, NAME, shape=(len(block), None))
            if array.shape[1] < self.num_neighbors:
                message = (
                    f"`{block.path}`: expected {self.num_neighbors} neighbors of each chunk, found {array.shape[1]}"
                )
                raise DatasetFormatError(message, hint="ask for fewer neighbors, or query more")
            opened = self._opened[number] = array, Watch([array])
        return opened
