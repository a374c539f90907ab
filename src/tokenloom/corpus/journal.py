"""What a shard is at, on disk: whoever comes after a process that died finds the record that killed it.

A process can die of a text: native code may overflow its stack, or abort. So `KEY.journal` holds the bundles of records
that threads are at (a write of some 100 bytes for each, of megabytes of text). After a death these are suspects: they
are tokenized one record at a time, with nothing beside them, and the journal names the record. Dying there too, or
taking for ever, condemns it: it is a bad record from then on. Only a process of ours that saw the death can do so, and
only if the cause lies in the process itself: one that was killed from outside says nothing about its records.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from tokenloom.inputs.blocks import Block
from tokenloom.preprocess.refusals import Isolating, Made, singles, sole_record
from tokenloom.storage.locks import write_at

_MOST_BYTES = 1 << 20

Place = tuple[str, int]
"""The path of a file, and the number of a record as its block counts."""


class ShardJournal:
    """The journal of a shard, while one process works on it; safe from several threads.

    Args:
        path: path of the file. What an attempt before has left in it is read.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        found = _read(path)
        self._suspects = {_place(each) for each in [*found.get("suspects", ()), *found.get("running", ())]}
        self.condemned: dict[Place, str] = {(each[0], each[1]): each[2] for each in found.get("condemned", ())}
        self._running: list[Place] = []
        self._alone: Place | None = None
        self._state = threading.Condition()
        self._num_shared = 0
        self._is_taken = False
        self.num_begun: int = 0
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)

    def close(self, *, keeps: bool) -> None:
        """Ends the work; what the journal says goes, unless it is kept for the next attempt."""
        os.close(self._descriptor)
        if not keeps:
            with suppress(FileNotFoundError):
                os.unlink(self._path)

    @contextmanager
    def at(self, bundle: Sequence[Block]) -> Iterator[bool]:
        """Notes that a thread is at a bundle; yields whether it is suspect, and then nobody else is at anything."""
        place = (bundle[0].path, bundle[0].first_record)
        alone = place in self._suspects
        with self._state:
            self._state.wait_for(lambda: not self._is_taken and not (alone and self._num_shared))
            self._is_taken, self._num_shared = alone, self._num_shared + 1
            self._running.append(place)
            self._write()
        try:
            yield alone
            self._suspects.discard(place)
        finally:
            with self._state:
                self._is_taken, self._num_shared = False, self._num_shared - 1
                self._running.remove(place)
                self._write()
                self._state.notify_all()

    def begin_alone(self, place: Place) -> None:
        """Notes that a record is tokenized, and nothing else."""
        with self._state:
            self._alone = place
            self._write()

    def end_alone(self) -> None:
        """Notes that it survived."""
        with self._state:
            self._alone = None

    def _write(self) -> None:
        self.num_begun += 1
        condemned = [[*place, reason] for place, reason in self.condemned.items()]
        state = {
            "running": self._running,
            "suspects": sorted(self._suspects),
            "alone": self._alone,
            "condemned": condemned,
        }
        write_at(self._descriptor, memoryview(json.dumps(state).encode() + b"\n"), 0)


class JournaledWork:
    """Does work on bundles of blocks, and notes in a journal what it is at; see `ShardJournal`.

    Args:
        work: work to be done.
        journal: journal of the shard.
    """

    def __init__(self, work: Isolating[Made], journal: ShardJournal) -> None:
        self._work = work
        self._journal = journal

    def __call__(self, bundle: Sequence[Block]) -> list[Any]:
        """Returns what is made of some blocks."""
        with self._journal.at(bundle) as alone:
            if not alone:
                return self._work(bundle)
            return [made for single in singles(bundle) for made in self._alone(single)]

    def _alone(self, single: Sequence[Block]) -> list[Any]:
        place = (single[0].path, single[0].first_record)
        if (reason := self._journal.condemned.get(place)) is not None:
            return [self._work.rejected(sole_record(single, reason))]
        self._journal.begin_alone(place)
        made = self._work(single)
        self._journal.end_alone()
        return made


def condemn(path: str, reason: str) -> Place | None:
    """Makes the record a bad one that the process at a shard, which has ended of itself, was at alone.

    Args:
        path: path of the journal.
        reason: why it is bad.

    Returns:
        its place; None if the process was at several.
    """
    found = _read(path)
    if found.get("alone") is None:
        return None
    place = _place(found["alone"])
    found["suspects"] = [*found.get("suspects", ()), *found.get("running", ())]
    found |= {"alone": None, "running": [], "condemned": [*found.get("condemned", ()), [*place, reason]]}
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        write_at(descriptor, memoryview(json.dumps(found).encode() + b"\n"), 0)
    finally:
        os.close(descriptor)
    return place


def places_at(path: str) -> list[Place]:
    """Returns where a process was that left a journal: the record, or the beginnings of bundles."""
    found = _read(path)
    alone = found.get("alone")
    return [_place(alone)] if alone is not None else [_place(each) for each in found.get("running", ())]


def _place(value: Any) -> Place:
    path, number = value
    return str(path), int(number)


def _read(path: str) -> dict[str, Any]:
    """Returns what a journal says; nothing if there is none, or it was cut off."""
    try:
        with open(path, "rb") as stream:
            found = json.loads(stream.read(_MOST_BYTES).partition(b"\n")[0])
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
