"""What readers yield and worker threads parse: some consecutive records of a slice, not looked into yet."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

if TYPE_CHECKING:
    from tokenloom.inputs.parsing import ParsedBlock
    from tokenloom.inputs.records import NumberedRecord

MAX_RECORD_BYTES = 256 << 20
"""Longer records are bad ones, unless the caller sets another limit. While it is tokenized, a line costs 5 times its
size with `gigatoken` (48 MB: 362 MB in all), 120 times with `tokenizers`."""

HEAD_BYTES = 1 << 10
"""Kept of a record that is too long."""


class Block(Protocol):
    """Some consecutive records of a file. Immutable; parsed by `parse_block`, looked at one by one by `records_of`.

    Attributes:
        unit: what a record is: `line`, `row` or `file`.
    """

    unit: ClassVar[str]

    @property
    def path(self) -> str:
        """The path of the file."""

    @property
    def first_record(self) -> int:
        """The number of the first record, from 1: see `InputSlice.numbers_records_from_its_start`."""

    @property
    def max_record_bytes(self) -> int:
        """Longer records are bad ones."""

    @property
    def too_long(self) -> bool:
        """Whether the block is the beginning of one of these, the rest of which was dropped."""

    @property
    def num_text_bytes(self) -> int:
        """Size of the text; of a table, of its columns in memory."""

    def beginning(self) -> bytes:
        """Returns the beginning of a record that is too long, `HEAD_BYTES` at most."""

    def texts(self, keys: Sequence[str]) -> ParsedBlock | None:
        """Returns the texts of all records, without looking at each; None if anything is unusual.

        Raises:
            ConfigError: no record of the format can have such keys.
        """

    def records(self, loads: Callable[[bytes], Any] | None) -> Iterator[NumberedRecord]:
        """Yields the records of a block that is not too long; see `records_of`."""

    def halves(self) -> tuple[Block, Block] | None:
        """Returns the first and the last of the records; None if there is one record only."""
