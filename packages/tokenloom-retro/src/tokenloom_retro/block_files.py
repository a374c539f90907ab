"""Files `START-STOP.hdf5` of blocks of chunks or documents: their names, as the reference pads them, and checks."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tokenloom.errors import StorageError
from tokenloom.numbers import checked_integer
from tokenloom.storage.atomic import storage_errors
from tokenloom.storage.publishing import recover
from tokenloom_retro.output import MANIFEST

_NAME = re.compile(r"([0-9]{1,18})-([0-9]{1,18})")


@dataclass(frozen=True, slots=True, order=True)
class Block:
    """Items [start, stop), and the path of their file."""

    start: int
    stop: int
    path: str

    def __len__(self) -> int:
        return self.stop - self.start


def planned_blocks(folder: str, num_items: int, block_size: int) -> list[Block]:
    """Returns the blocks of a range, whether their files exist or not.

    Example:
        >>> [os.path.basename(block.path) for block in planned_blocks("query", 250, 100)]
        ['0000-0100.hdf5', '0100-0200.hdf5', '0200-0250.hdf5']
    """
    if num_items <= 0:
        return []
    # The reference's formula in NumPy's arithmetic: a power of ten may get one digit more or less.
    width = int(np.ceil(np.log(num_items) / np.log(10)) + 1)
    stops = [(start, min(start + block_size, num_items)) for start in range(0, num_items, block_size)]
    return [
        Block(start, stop, os.path.join(folder, f"{str(start).zfill(width)}-{str(stop).zfill(width)}.hdf5"))
        for start, stop in stops
    ]


class BlockPathMap:
    """The file of each item: blocks of one size, the last one may be smaller.

    Example:
        >>> blocks = BlockPathMap(["query/000-100.hdf5", "query/100-150.hdf5"], 100)
        >>> blocks[120], blocks.max_idx
        ('query/100-150.hdf5', 150)

    Attributes:
        block_path_map: the path of each block, by its first item.
        block_size: items of a block.
        max_idx: end of the last block.
        name: the folder, for messages.

    Raises:
        StorageError: a file has another kind of name.
    """

    def __init__(self, block_paths: Sequence[str], block_size: int) -> None:
        self.block_size: int = checked_integer("block_size", block_size, at_least=1)
        self.max_idx: int = 0
        self.block_path_map: dict[int, str] = {}
        self.name: str = os.path.dirname(block_paths[0]) if block_paths else ""
        self._stops: dict[int, int] = {}
        for path in block_paths:
            match = _NAME.fullmatch(os.path.splitext(os.path.basename(path))[0])
            if match is None:
                raise StorageError(f"`{path}`: no block named `START-STOP`", hint="move other files elsewhere")
            start, stop = int(match[1]), int(match[2])
            self.block_path_map[start] = path
            self._stops[start] = stop
            self.max_idx = max(self.max_idx, stop)

    @classmethod
    def from_dir(cls, dir: str, block_size: int, ext: str = "hdf5") -> BlockPathMap:
        """Returns the blocks of a folder, of files with an extension."""
        recover(os.path.join(dir, MANIFEST))
        with storage_errors("list", dir):
            names = sorted(name for name in os.listdir(dir) if name.endswith(f".{ext}") and not name.startswith("."))
        found = cls([os.path.join(dir, name) for name in names], block_size)
        found.name = dir
        return found

    def __len__(self) -> int:
        """The number of blocks."""
        return len(self.block_path_map)

    def __str__(self) -> str:
        return f"{len(self)} paths"

    def __repr__(self) -> str:
        return f"BlockPathMap({self.name!r}, blocks={len(self)}, block_size={self.block_size}, max_idx={self.max_idx})"

    def __getitem__(self, idx: int) -> str:
        """Returns the path of the file of an item; a `StorageError` without one."""
        start = idx // self.block_size * self.block_size
        if start not in self.block_path_map:
            message = f"`{self.name}`: no block from {start} on, for item {idx}"
            raise StorageError(message, hint="not all blocks were made, or they are of another size")
        return self.block_path_map[start]

    def blocks(self) -> Iterator[Block]:
        """Yields the blocks by their first item."""
        return (Block(start, self._stops[start], path) for start, path in sorted(self.block_path_map.items()))

    def check(self, num_items: int | None = None) -> None:
        """Checks by names that the blocks have all items from 0 on once, `num_items` in all if that is given.

        Raises:
            StorageError: blocks are missing, overlap, or are of another size.
        """
        stop = 0
        for block in self.blocks():
            if block.start != stop:
                kind = "a block is missing" if block.start > stop else "blocks overlap"
                raise _unlike(self.name, f"a block from {stop} on ({kind})", block.path)
            if len(block) != self.block_size and (block.stop != self.max_idx or len(block) > self.block_size):
                raise _unlike(self.name, f"blocks of {self.block_size} items", block.path)
            stop = block.stop
        if num_items is not None and stop != num_items:
            message = f"`{self.name}`: expected blocks of {num_items} items, found {stop}"
            raise StorageError(message, hint="not all blocks were made, or they are of other data")


def _unlike(name: str, expected: str, path: str) -> StorageError:
    message = f"`{name}`: expected {expected}, found `{os.path.basename(path)}`"
    return StorageError(message, hint="the blocks are not all of one range and one size; make them again")
