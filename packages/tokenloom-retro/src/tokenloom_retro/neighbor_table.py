"""The neighbors of all chunks of a split, in block files that are mapped on first use."""

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

NAME = "neighbors"  # name of the array in a file
_CHECKED_FILES = 256


class NeighborTable:
    """The neighbors of each chunk of a split's samples: indices of the nearest database chunks, nearest first.

    Thread-safe, fork-safe and picklable; unpickling maps the files again.

    Args:
        blocks: the block files; Megatron's `BlockPathMap` is accepted too.
        num_neighbors: neighbors per chunk; files may have more.
        num_database_chunks: number of chunks in the database.

    Raises:
        ConfigError: `num_neighbors` is not positive.
        StorageError: blocks are missing, overlap or have another size.
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
        return self._blocks[-1].stop if self._blocks else 0

    def __repr__(self) -> str:
        return f"NeighborTable({self.name!r}, chunks={len(self)}, num_neighbors={self.num_neighbors})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": {}}

    def rows(self, chunk_ids: Sequence[int] | NDArray[np.integer[Any]]) -> NDArray[np.int64]:
        """Returns the neighbors of each chunk, int64[num_chunks, num_neighbors]; -1 after the last neighbor.

        Raises:
            StorageError: a file is unreadable, too short, or has changed.
            DatasetFormatError: a chunk has no neighbors, or a neighbor is outside of the database.
        """
        ids = np.asarray(chunk_ids, dtype=np.int64)
        outside = (ids < 0) | (ids >= len(self))
        if outside.any():
            message = f"`{self.name}`: chunk {ids[np.argmax(outside)]} out of range: {len(self)} chunks have neighbors"
            raise DatasetFormatError(message, hint="build the neighbors of all samples")
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
            where = f"`{self._blocks[numbers[row]].path}`: neighbors {found[row].tolist()} of chunk {ids[row]}"
            message = f"{where} out of range: the database has {self.num_database_chunks} chunks"
            raise DatasetFormatError(message, hint="rebuild the neighbors: they were searched in another database")
        return found

    def check(self) -> None:
        """Checks up to 256 block files, spread evenly, in a millisecond each; other files are checked on first use."""
        for number in spread_evenly(len(self._blocks), _CHECKED_FILES).tolist():
            self._block(number)

    def _block(self, number: int) -> tuple[NDArray[Any], Watch]:
        if (opened := self._opened.get(number)) is None:
            block = self._blocks[number]
            array = open_array(block.path, NAME, shape=(len(block), None))
            if array.shape[1] < self.num_neighbors:
                message = f"`{block.path}`: expected {self.num_neighbors} neighbors per chunk, found {array.shape[1]}"
                raise DatasetFormatError(message, hint="use fewer neighbors, or build more neighbors per chunk")
            opened = self._opened[number] = array, Watch([array])
        return opened
