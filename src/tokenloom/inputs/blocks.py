"""What readers yield and worker threads parse: some consecutive records of a slice, not looked into yet."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

if TYPE_CHECKING:
    from tokenloom.inputs.parsing import ParsedBlock
    from tokenloom.inputs.records import NumberedRecord

MAX_RECORD_BYTES = 256 << 20
"""Longer records are bad ones, unless the caller sets another limit. While it is tokenized, a line costs 5 times its
size with `gigatoken` (48 MB: 362 MB in all), 120 times with `tokenizers`."""

HEAD_BYTES = 1 << 10
"""Kept of a record that is too long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block(ABC):
    """Some consecutive records of a file. Parsed by `parse_block`, looked at one by one by `records_of`.

    Attributes:
        unit: what a record is: `line`, `row` or `file`.
        path: path of the file.
        first_record: number of the first record, from 1: see `InputSlice.numbers_records_from_its_start`.
        max_record_bytes: longer records are bad ones.
        too_long: whether the block is the beginning of one of these, the rest of which was dropped.
    """

    unit: ClassVar[str]

    path: str
    first_record: int = 1
    max_record_bytes: int = MAX_RECORD_BYTES
    too_long: bool = False

    @property
    @abstractmethod
    def num_text_bytes(self) -> int:
        """Size of the text; of a table, of its columns in memory."""

    @abstractmethod
    def beginning(self) -> bytes:
        """Returns the beginning of a record that is too long, `HEAD_BYTES` at most."""

    def texts(self, keys: Sequence[str]) -> ParsedBlock | None:
        """Returns the texts of all records, without looking at each; None if anything is unusual.

        Raises:
            ConfigError: no record of the format can have such keys.
        """
        return None

    @abstractmethod
    def records(self, loads: Callable[[bytes], Any] | None) -> Iterator[NumberedRecord]:
        """Yields the records of a block that is not too long; see `records_of`."""

    def halves(self) -> tuple[Self, Self] | None:
        """Returns the first and the last of the records; None if there is one record only."""
        return None
