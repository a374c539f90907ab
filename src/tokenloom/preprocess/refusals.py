"""One bad record is one bad record: whose text it was that a tokenizer cannot take.

Libraries are given many texts at a time, so that a failure names none of them: the records are then tried again in
halves, down to the one that is to blame. Nothing of this costs anything while all goes well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Generic, TypeVar

from tokenloom.errors import RefusedTextError
from tokenloom.inputs.blocks import Block
from tokenloom.inputs.records import BadLine, bad_line, records_of

Made = TypeVar("Made")


class Isolating(Generic[Made]):
    """Works on blocks, and sets apart the records on which the work fails; as safe from several threads as the work.

    Args:
        work: work on some blocks together; what it makes of several is what it makes of each, one after the other.
        rejected: what it would make of a block that holds nothing but one bad record.
    """

    def __init__(self, work: Callable[[Sequence[Block]], Made], rejected: Callable[[BadLine], Made]) -> None:
        self._work = work
        self.rejected = rejected

    def __call__(self, bundle: Sequence[Block]) -> list[Made]:
        """Returns what is made of some blocks, at least one, in their order; in several pieces if a record is bad."""
        try:
            return [self._work(bundle)]
        except RefusedTextError as error:
            reason = error.message
        halves = halved(bundle)
        if halves is None:
            return [self.rejected(sole_record(bundle, reason))]
        return [made for half in halves for made in self(half)]


def halved(bundle: Sequence[Block]) -> tuple[list[Block], list[Block]] | None:
    """Returns the first and the last records of some blocks; None if there is one record only."""
    if len(bundle) > 1:
        middle = len(bundle) // 2
        return list(bundle[:middle]), list(bundle[middle:])
    [block] = bundle
    halves = block.halves()
    return None if halves is None else ([halves[0]], [halves[1]])


def singles(bundle: Sequence[Block]) -> Iterator[list[Block]]:
    """Yields the records of some blocks, in order, each as a block of its own."""
    halves = halved(bundle)
    if halves is None:
        yield list(bundle)
        return
    for half in halves:
        yield from singles(half)


def sole_record(bundle: Sequence[Block], reason: str) -> BadLine:
    """Returns the only record of some blocks, as one that a tokenizer refuses."""
    [block] = bundle
    record = next(iter(records_of(block)))
    return replace(bad_line(block, record, reason), error=RefusedTextError)
