"""Names, finds and checks block files, `START-STOP.hdf5`; the numbers have leading zeros, as in Megatron."""

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
    """A block of items [start, stop), and the path of the block file."""

    start: int
    stop: int
    path: str

    def __len__(self) -> int:
        return self.stop - self.start


def planned_blocks(folder: str, num_items: int, block_size: int) -> list[Block]:
    """Divides `num_items` items into blocks; returns the blocks with the paths of their files, which need not exist.

    Example:
        >>> [os.path.basename(block.path) for block in planned_blocks("query", 250, 100)]
        ['0000-0100.hdf5', '0100-0200.hdf5', '0200-0250.hdf5']
    """
    if num_items <= 0:
        return []
    # Megatron's formula; floating-point errors decide the number of digits at powers of ten.
    width = int(np.ceil(np.log(num_items) / np.log(10)) + 1)
    stops = [(start, min(start + block_size, num_items)) for start in range(0, num_items, block_size)]
    return [
        Block(start, stop, os.path.join(folder, f"{str(start).zfill(width)}-{str(stop).zfill(width)}.hdf5"))
        for start, stop in stops
    ]


class BlockPathMap:
    """A map from items to block files. Blocks have `block_size` items each; only the last block may have fewer items.

    Example:
        >>> blocks = BlockPathMap(["query/000-100.hdf5", "query/100-150.hdf5"], 100)
        >>> blocks[120], blocks.max_idx
        ('query/100-150.hdf5', 150)

    Attributes:
        block_path_map: the path of each block, by the index of its first item.
        block_size: items per block.
        max_idx: end of the last block, exclusive.
        name: path of the folder, for error messages.

    Raises:
        StorageError: a file name is not `START-STOP`.
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
                message = f"`{path}`: the name must be START-STOP"
                raise StorageError(message, hint="move files that are not blocks to another folder")
            start, stop = int(match[1]), int(match[2])
            self.block_path_map[start] = path
            self._stops[start] = stop
            self.max_idx = max(self.max_idx, stop)

    @classmethod
    def from_dir(cls, dir: str, block_size: int, ext: str = "hdf5") -> BlockPathMap:
        """Returns the blocks of a folder: its files with the extension `ext`."""
        recover(os.path.join(dir, MANIFEST))
        with storage_errors("list", dir):
            names = sorted(name for name in os.listdir(dir) if name.endswith(f".{ext}") and not name.startswith("."))
        found = cls([os.path.join(dir, name) for name in names], block_size)
        found.name = dir
        return found

    def __len__(self) -> int:
        return len(self.block_path_map)

    def __str__(self) -> str:
        return f"{len(self)} paths"

    def __repr__(self) -> str:
        return f"BlockPathMap({self.name!r}, blocks={len(self)}, block_size={self.block_size}, max_idx={self.max_idx})"

    def __getitem__(self, idx: int) -> str:
        """Returns the path of the block file that contains an item; raises StorageError if no block has the item."""
        start = idx // self.block_size * self.block_size
        if start not in self.block_path_map:
            message = f"`{self.name}`: no block has item {idx}: no block starts at item {start}"
            raise StorageError(message, hint="finish the build, or use the block size of the build")
        return self.block_path_map[start]

    def blocks(self) -> Iterator[Block]:
        return (Block(start, self._stops[start], path) for start, path in sorted(self.block_path_map.items()))

    def check(self, num_items: int | None = None) -> None:
        """Checks by file names that the blocks cover the items from 0 on, up to `num_items` if given, each item once.

        Raises:
            StorageError: blocks are missing, overlap or have another size.
        """
        stop = 0
        for block in self.blocks():
            if block.start != stop:
                kind = "a block is missing" if block.start > stop else "blocks overlap"
                raise _mismatch(self.name, f"a block that starts at {stop} ({kind})", block.path)
            if len(block) != self.block_size and (block.stop != self.max_idx or len(block) > self.block_size):
                raise _mismatch(self.name, f"blocks of {self.block_size} items", block.path)
            stop = block.stop
        if num_items is not None and stop != num_items:
            message = f"`{self.name}`: expected blocks with {num_items} items in total, found {stop} items"
            raise StorageError(message, hint="finish the build, or check that the data has not changed")


def _mismatch(name: str, expected: str, path: str) -> StorageError:
    message = f"`{name}`: expected {expected}, found `{os.path.basename(path)}`"
    return StorageError(message, hint="the blocks are from different builds; rebuild them")
