"""Roles: the column that records which tokens of a pair are prompts and which are answers, one byte per token.

The byte is a `PartKind`, plus 128 at the first token of each part, so that adjacent parts of one kind stay apart.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom._native import RoleParts
from tokenloom.errors import DatasetNotFoundError
from tokenloom.indexed.columns import Column, ColumnFacts, ColumnWriter, open_column
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.layout import column_path

NAME = "roles"
"""Name of the column."""

_PART_START = 128


class PartKind(IntEnum):
    """The kind of a part of a sequence."""

    prompt = 0
    """System and user turns, tool results, and the tokens that the chat template puts around all turns."""
    answer = 1
    """A turn of the assistant, including the tokens that end it."""
    text = 2
    """Text outside of conversations."""


class SequenceRoles:
    """The prompts, answers and texts in each sequence. Kernels read `parts`. Thread-safe and picklable."""

    def __init__(self, pair: IndexedDataset | None = None, column: Column | None = None) -> None:
        self._pair = pair
        self._column = column
        if pair is None or column is None:
            none = np.empty(0, dtype=np.uint8), np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int32)
            self.parts: RoleParts = RoleParts(*none, 0)
        else:
            bits = pair.dtype.itemsize.bit_length() - 1
            self.parts = RoleParts(column.data, pair.held_pointers(), pair.sequence_lengths, bits)

    def of(self, sequence: int) -> list[tuple[int, int, PartKind]]:
        """Returns (start, stop, kind) of each part of a sequence, in tokens from its start; [] without a column."""
        if self._pair is None or self._column is None:
            return []
        first = int(self._pair.first_tokens(np.array([sequence]))[0])
        length = int(self._pair.sequence_lengths[sequence])
        values = np.array(self._column.data[first : first + length])
        self._column.check()
        starts = np.flatnonzero(values & _PART_START)
        stops = [*starts[1:].tolist(), length]
        kinds = (values[starts] & ~np.uint8(_PART_START)).tolist()
        return [(start, stop, PartKind(kind)) for start, stop, kind in zip(starts.tolist(), stops, kinds, strict=False)]

    def __reduce__(self) -> tuple[Any, ...]:
        return (SequenceRoles, ()) if self._pair is None else (read_roles, (self._pair,))

    def identity(self) -> str:
        """Returns a string that identifies the roles: size and CRC-32 of the column, or "text" without a column."""
        return "text" if self._column is None else f"{self._column.facts.num_bytes} {self._column.facts.crc32:08x}"


def read_roles(pair: IndexedDataset) -> SequenceRoles:
    """Maps the roles of a pair, and checks in O(1) that they belong to the pair."""
    column = open_column(pair, NAME)
    if column is None:
        path = column_path(pair.path_prefix, NAME)
        message = f"no file `{path}` with the roles of the tokens of `{pair.path_prefix}`"
        raise DatasetNotFoundError(message, hint="tokenize conversations with `tokenloom preprocess-chat`")
    if (column.facts.kind, column.facts.dtype, len(column.facts.shape)) != ("token", "uint8", 1):
        found = f"{column.facts.dtype}{[*column.facts.shape]} per {column.facts.kind}"
        raise column.damaged(expected="one byte per token", found=found)
    return SequenceRoles(pair, column)


def roles_writer(prefix: str, *, tokenizer_sha256: str | None = None, durable: bool = True) -> ColumnWriter:
    """Returns a writer of the roles of a pair; its `append` takes the results of `role_bytes`."""
    facts = ColumnFacts(kind="token", dtype="uint8", made_by="tokenloom", about={"tokenizer": tokenizer_sha256})
    return ColumnWriter(prefix, NAME, facts, durable=durable)


def role_bytes(
    counts: NDArray[np.int64], stops: NDArray[np.int32], kinds: NDArray[np.uint8], *, num_tokens: int
) -> NDArray[np.uint8]:
    """Returns the role, uint8[num_tokens], of each token of some sequences.

    `counts` is the number of parts per sequence; `stops` is the end of each part, in tokens from the start of its
    sequence; `kinds` is the `PartKind` of each part. Parts must cover their sequences, and must not be empty.
    """
    starts = np.concatenate([np.zeros(1, dtype=np.int64), stops])[: len(stops)]
    starts[(np.cumsum(counts) - counts)[counts > 0]] = 0
    sizes = stops - starts
    values = np.repeat(kinds, sizes)
    assert len(values) == num_tokens, "the parts do not cover their sequences"
    assert sizes.all(), "a part is empty"
    values[np.cumsum(sizes) - sizes] |= _PART_START
    return values
