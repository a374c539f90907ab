"""One bad record is one bad record: whose text it was that a tokenizer cannot take.

Libraries are given many texts at a time, so that a failure names none of them: the records are then tried again in
halves, down to the one that is to blame. Nothing of this costs anything while all goes well.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from tokenloom.errors import RefusedTextError
from tokenloom.indexed.writing.outputs import REJECTED_SUFFIX
from tokenloom.inputs.blocks import Block
from tokenloom.inputs.left_out import left_out_of
from tokenloom.inputs.records import BadLine, bad_line, records_of
from tokenloom.preprocess.blocks import TokenizedBlock
from tokenloom.storage.atomic import PendingFile
from tokenloom.storage.copies import PendingObject
from tokenloom.storage.resolve import open_pending, remove


class Isolating:
    """Works on blocks, and sets apart the records on which the work fails; as safe from several threads as the work.

    Args:
        work: work on some blocks together; what it makes of several is what it makes of each, one after the other.
    """

    def __init__(self, work: Callable[[Sequence[Block]], TokenizedBlock]) -> None:
        self._work = work

    def rejected(self, bad: BadLine) -> TokenizedBlock:
        """Returns what comes out of a block with nothing but a bad record."""
        return replace(self._work([]), bad_lines=[bad], left_out=left_out_of([0]))

    def __call__(self, bundle: Sequence[Block]) -> list[TokenizedBlock]:
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


def rejected_path(prefix: str) -> str:
    """Returns where the bad records of a prefix are."""
    return f"{prefix}{REJECTED_SUFFIX}"


def json_line(record: dict[str, object]) -> bytes:
    """Returns a record as a line of JSON in UTF-8; what of a path is not UTF-8 is escaped."""
    return json.dumps(record, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"


class RejectedLines:
    """The records of a corpus that were set aside in `PREFIX.rejected.jsonl`.

    Args:
        prefix: prefix of the outputs.
        skip: whether bad records are set aside; an error otherwise.
    """

    def __init__(self, prefix: str, *, skip: bool) -> None:
        self._target = rejected_path(prefix)
        self._skip = skip
        self._file: PendingFile | PendingObject | None = None
        self.count: int = 0

    def add(self, bad_line: BadLine) -> None:
        """Sets a record aside.

        Raises:
            InputError: bad records are not to be skipped.
        """
        unit = bad_line.unit
        number = {} if unit == "file" else {unit: bad_line.line}
        if not self._skip:
            message = f"{bad_line.place}: {bad_line.reason}"
            hint = f"correct the {unit}, or let bad {unit}s be skipped: they are then set aside in a file"
            raise bad_line.error(message, hint=hint)
        if self._file is None:
            self._file = open_pending(self._target)
        record: dict[str, object] = {"file": bad_line.path, **number, "reason": bad_line.reason}
        try:
            record["text"] = bad_line.data.decode("utf-8")
        except UnicodeDecodeError:
            record["base64"] = base64.b64encode(bad_line.data).decode("ascii")
        self._file.write(json_line(record))
        self.count += 1

    def publish(self) -> None:
        """Makes the file appear; without bad records, removes that of an earlier run."""
        if self._file is not None:
            self._file.publish()
        else:
            remove(self._target)

    def close(self) -> None:
        """Removes what is not published."""
        if self._file is not None:
            self._file.discard()
