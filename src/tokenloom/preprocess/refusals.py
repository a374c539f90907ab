"""One bad record is one bad record: what code of others makes of a text that it cannot take, and whose text that was.

Libraries fail in many ways: with exceptions of any class, and with panics of Rust, which are no `Exception`. They are
given many texts at a time, so that a failure names none of them: the records are then tried again in halves, down to
the one that is to blame. Nothing of this costs anything while all goes well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Generic, TypeVar

import numpy as np

from tokenloom.errors import RefusedTextError, StuckRecordError, TokenizerError, TokenloomError
from tokenloom.preprocess.inputs.blocks import Block, FileBlock, LineBlock
from tokenloom.preprocess.records import BadLine, bad_line, records_of
from tokenloom.preprocess.text_tokenizer import Encoded

Made = TypeVar("Made")

_MOST_REASON_CHARACTERS = 500


def is_failure(error: BaseException) -> bool:
    """Whether code failed, and was not interrupted: exceptions, and panics of Rust, which `pyo3` derives from none."""
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


def in_words(error: BaseException) -> str:
    """Returns what an exception says, on one line of bounded length."""
    said = " ".join(str(error).split()) if not isinstance(error, MemoryError) else ""
    return shortened(f"{type(error).__name__}: {said}" if said else type(error).__name__)


def shortened(reason: str) -> str:
    """Returns a reason of bounded length."""
    return reason if len(reason) <= _MOST_REASON_CHARACTERS else f"{reason[: _MOST_REASON_CHARACTERS - 3]}..."


@contextmanager
def refusals(doer: str) -> Iterator[None]:
    """Turns whatever fails inside into errors of ours.

    Args:
        doer: what fails, for the message.

    Raises:
        RefusedTextError: it fails on a text.
        TokenizerError: it fails for want of a file or module, which is no text's fault.
    """
    try:
        yield
    except TokenloomError:
        raise
    except BaseException as error:
        if not is_failure(error):
            raise
        message = f"{doer} fails: {in_words(error)}"
        if isinstance(error, (OSError, ImportError)):
            raise TokenizerError(message) from error
        raise RefusedTextError(message) from error


def require_sound(encoded: Encoded, *, num_texts: int, vocab_size: int, hint: str | None = None) -> None:
    """Checks what an engine gave for some texts, in one pass over it.

    Raises:
        RefusedTextError: it is not of as many texts, or holds ids that are not in the vocabulary.
    """
    lengths, tokens = encoded.lengths, encoded.tokens
    if len(lengths) != num_texts or int(lengths.sum()) != len(tokens) or (num_texts and int(lengths.min()) < 0):
        message = f"the engine gave {len(tokens)} ids for {len(lengths)} texts, expected those of {num_texts}"
        raise RefusedTextError(message, hint=hint)
    for extreme in (int(np.max(tokens)), int(np.min(tokens))) if len(tokens) else ():
        if not 0 <= extreme < vocab_size:
            message = f"the engine gave token id {extreme}, but the vocabulary has {vocab_size}"
            raise RefusedTextError(message, hint=hint)


class Isolating(Generic[Made]):
    """Works on blocks, and sets apart the records on which the work fails; as safe from several threads as the work.

    Args:
        work: on some blocks together; what it makes of several is what it makes of each, one after the other.
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
    if isinstance(block, FileBlock):
        return None
    if isinstance(block, LineBlock):
        return None if block.too_long else _halved_lines(block)
    num_rows = sum(map(len, block.batches))
    if num_rows < 2:
        return None
    middle = num_rows // 2
    first, last = [], []
    for batch in block.batches:
        first.append(batch.slice(0, max(0, middle)))
        last.append(batch.slice(min(len(batch), max(0, middle))))
        middle -= len(batch)
    kept = replace(block, batches=tuple(batch for batch in first if len(batch)))
    rest = tuple(batch for batch in last if len(batch))
    return [kept], [replace(block, batches=rest, first_record=block.first_record + num_rows // 2)]


def _halved_lines(block: LineBlock) -> tuple[list[Block], list[Block]] | None:
    data = block.data
    middle = data.find(b"\n", len(data) // 2) + 1
    if not 0 < middle < len(data):
        middle = data.rfind(b"\n", 0, len(data) // 2) + 1
    if not 0 < middle < len(data):
        return None
    first = replace(block, data=data[:middle])
    rest = replace(block, data=data[middle:], first_record=block.first_record + data.count(b"\n", 0, middle))
    return [first], [rest]


def stuck_error(bundle: Sequence[Block], seconds: float, *, hint: str) -> StuckRecordError:
    """Returns the error for blocks with which a thread does not come to an end in some seconds."""
    first = bundle[0]
    place = f"`{first.path}`" if first.unit == "file" else f"`{first.path}` from {first.unit} {first.first_record} on"
    return StuckRecordError(f"tokenising {place} takes longer than {seconds:g} seconds", hint=hint)


def sole_record(bundle: Sequence[Block], reason: str) -> BadLine:
    """Returns the only record of some blocks, as one that a tokenizer refuses."""
    [block] = bundle
    record = next(iter(records_of(block)))
    return replace(bad_line(block, record, reason), error=RefusedTextError)
