"""A reader whose beginning was looked at, and comes again: what can be read once only leaves no other way."""

from __future__ import annotations

from collections.abc import Iterator

from tokenloom.inputs.blocks import Block
from tokenloom.inputs.record_format import ReaderOver, SliceReader

_MOST_HEAD_BLOCKS = 100


class BegunReader(ReaderOver):
    """A reader that has read its first blocks; see `SliceReader`.

    Args:
        reader: reader of a slice, from its beginning.

    Attributes:
        first: block with a whole record in it; None if there is none, or not among the first hundred.
    """

    def __init__(self, reader: SliceReader) -> None:
        super().__init__(reader)
        self._rest = reader.blocks()
        self._head: list[Block] = []
        for block in self._rest:
            self._head.append(block)
            if not block.too_long or len(self._head) == _MOST_HEAD_BLOCKS:
                break
        self.first: Block | None = self._head[-1] if self._head else None

    def blocks(self) -> Iterator[Block]:
        """Yields all blocks, those that were looked at first."""
        yield from self._head
        self._head = []
        yield from self._rest

    def close(self) -> None:
        """Closes the file."""
        self._reader.close()
