"""Ways to read a loader with many ranks up to a point: in this process, in processes that are killed, as a program."""

from __future__ import annotations

import os
import tempfile
import traceback
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from tokenloom.errors import TokenloomError
from tokenloom_check.fingerprints import Sample
from tokenloom_check.recording import FILE, FOLDER, STOP_AFTER, STOP_SAMPLES
from tokenloom_check.resume_factory import Factory, RankJob, error_words, read_rank
from tokenloom_check.resume_processes import HUNG, FactoryServer, Ranks, free_port, start_program
from tokenloom_check.resume_streams import enough_batches, num_samples_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Where to go on from.

    Attributes:
        states: pickled states of all ranks; none at the start.
        consumed: samples that all ranks had consumed.
        num_batches: batches that each rank had been handed out.
        epochs: how often a loader is iterated from there on.
        folder: the folder of checkpoints of a program.
    """

    states: tuple[bytes, ...] = ()
    consumed: int = 0
    num_batches: int = 0
    epochs: int = 1
    folder: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What the ranks of a loader are to do; see `RankJob`. Without `stop_after`, `num_samples` are those of all."""

    world_size: int
    begin: Point
    stop_after: int | None = None
    num_samples: int | None = None
    take_state: str | None = None
    load_twice: bool = False

    def job(self, rank: int) -> RankJob:
        """Returns the part of one rank."""
        return RankJob(
            rank=rank,
            world_size=self.world_size,
            epochs=self.begin.epochs,
            stop_after=self.stop_after,
            num_samples=self.num_samples,
            states=self.begin.states,
            consumed=self.begin.consumed,
            num_batches=self.begin.num_batches,
            take_state=self.take_state,
            load_twice=self.load_twice,
        )


@dataclass(slots=True, kw_only=True)
class Found:
    """What was read.

    Attributes:
        batches: global batches.
        epoch_ends: the batches before each end of an iteration, in the first rank.
        ended: whether all ranks came to their end.
        point: where a restart goes on, if a state was taken or a checkpoint was made.
        left_out: columns that no fingerprint knows of.
        first_checkpoint: the batches before the first checkpoint of a program; 0 of a factory.
    """

    batches: list[list[list[Sample]]] = field(default_factory=list)
    epoch_ends: list[int] = field(default_factory=list)
    ended: bool = False
    point: Point | None = None
    left_out: set[str] = field(default_factory=set)
    first_checkpoint: int = 0


class RankFailedError(Exception):
    """A rank raised, died or gave nothing for too long.

    Attributes:
        message: which, and how.
        detail: further lines, if there are any.
        hung: whether it gave nothing.
    """

    def __init__(self, message: str, detail: str | None = None, *, hung: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.detail = detail
        self.hung = hung


class Runner(Protocol):
    """A way to run ranks."""

    is_program: bool
    """Whether it is a program with checkpoints of its own, of which there is no state to look at."""

    def run(self, reading: Reading) -> Found:
        """Reads, and ends all ranks.

        Raises:
            RankFailedError: a rank failed.
        """
        ...

    def close(self) -> None:
        """Ends what is left of processes and files."""
        ...


class RankEvents:
    """The events of one rank so far."""

    def __init__(self) -> None:
        self.batches: list[list[Sample]] = []
        self.epoch_ends: list[int] = []
        self.left_out: set[str] = set()
        self.checkpoints: list[int] = []
        self.last: str = ""
        self.state: Any = None

    def add(self, kind: str, value: Any) -> None:
        """Takes one up."""
        if kind == "batch":
            self.batches.append([Sample(*each) for each in value])
        elif kind == "epoch":
            self.epoch_ends.append(len(self.batches))
        elif kind == "left out":
            self.left_out |= set(value)
        elif kind == "checkpoint":
            self.checkpoints.append(value)
        else:
            self.last = kind
            self.state = value

    @property
    def is_over(self) -> bool:
        """Whether there will be no more batches."""
        return self.last in ("end", "stopped", "state")


def whole_batches(ranks: Sequence[RankEvents]) -> int:
    """Returns the global batches that nothing can be added to."""
    most = max(len(rank.batches) for rank in ranks)
    return min((len(rank.batches) for rank in ranks if rank.last != "end"), default=most)


def has_enough(ranks: Sequence[RankEvents], reading: Reading) -> bool:
    """Whether the ranks have read what was asked for."""
    if all(rank.is_over for rank in ranks):
        return True
    if reading.num_samples is None:
        return False
    whole = whole_batches(ranks)
    return sum(len(batch) for rank in ranks for batch in rank.batches[:whole]) >= reading.num_samples


def found_of(ranks: Sequence[RankEvents], reading: Reading, states: Iterable[bytes]) -> Found:
    """Returns what ranks have read, as far as global batches are whole."""
    count = max(len(rank.batches) for rank in ranks) if reading.num_samples is None else whole_batches(ranks)
    batches = [[rank.batches[k] if k < len(rank.batches) else [] for rank in ranks] for k in range(count)]
    if reading.num_samples is not None:  # processes have read on meanwhile
        batches = batches[: len(enough_batches(batches, reading.num_samples))]
    found = Found(
        batches=batches,
        epoch_ends=ranks[0].epoch_ends,
        ended=all(rank.last == "end" for rank in ranks),
        left_out=set().union(*(rank.left_out for rank in ranks)),
    )
    if all(rank.last == "state" for rank in ranks):
        begin = reading.begin
        found.point = replace(
            begin,
            states=tuple(states),
            consumed=begin.consumed + num_samples_of(found.batches),
            num_batches=begin.num_batches + count,
            epochs=max(begin.epochs - len(ranks[0].epoch_ends), 1),
        )
    return found


class InProcess:
    """All ranks in this process, batch by batch in turn; killing is dropping, and states are pickled."""

    is_program = False

    def __init__(self, factory: Factory) -> None:
        self._factory = factory

    def run(self, reading: Reading) -> Found:
        """Reads with all ranks."""
        ranks = [RankEvents() for _ in range(reading.world_size)]
        readers = [read_rank(self._factory, reading.job(rank)) for rank in range(reading.world_size)]
        try:
            while not has_enough(ranks, reading):
                for number, (events, reader) in enumerate(zip(ranks, readers, strict=True)):
                    if not events.is_over:
                        _read_batch(number, events, reader)
        finally:
            for reader in readers:
                reader.close()  # type: ignore[attr-defined]
        return found_of(ranks, reading, [events.state for events in ranks])

    def close(self) -> None:
        """There is nothing to end."""


def _read_batch(rank: int, events: RankEvents, reader: Iterator[tuple[str, Any]]) -> None:
    """Takes up events of a rank up to the next batch, or the last."""
    count = len(events.batches)
    try:
        while not events.is_over and len(events.batches) == count:
            events.add(*next(reader))
    except TokenloomError as error:
        message = f"rank {rank} failed: {error.message}"
        raise RankFailedError(message, error.hint) from error
    except Exception as error:
        message = f"rank {rank} raised {error_words(error)}"
        raise RankFailedError(message, traceback.format_exc()) from error


class Processes:
    """A process per rank, which is killed at the end of a reading.

    Args:
        name: name of the factory, as `load_function` takes it.
        state_of: name of the function that takes states.
        samples: a way to cut batches into samples, or the name of a function.
        timeout: seconds that a rank may take for a batch.
        fresh: whether each process imports the factory anew; else they are forks of one that has.

    Raises:
        ConfigError: there is no such function, or it takes other arguments.
    """

    is_program = False

    def __init__(self, name: str, *, state_of: str | None, samples: str, timeout: float, fresh: bool) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="tokenloom-resume-")
        self._settings = (name, state_of, samples)
        self._timeout = timeout
        self._fresh = fresh
        self._servers: list[FactoryServer] = []
        self._num_readings = 0
        try:
            self._server(0)
        except BaseException:
            self.close()
            raise

    def _server(self, rank: int) -> FactoryServer:
        needed = rank + 1 if self._fresh else 1
        while len(self._servers) < needed:
            self._servers.append(FactoryServer(*self._settings, folder=self._folder.name, timeout=self._timeout))
        return self._servers[needed - 1]

    def run(self, reading: Reading) -> Found:
        """Reads with all ranks, and kills them."""
        self._num_readings += 1
        folder = os.path.join(self._folder.name, str(self._num_readings))
        os.mkdir(folder)
        port = free_port()
        ranks = Ranks(folder, reading.world_size, self._timeout)
        with ranks:
            for rank in range(reading.world_size):
                process = self._server(rank).start(reading.job(rank), ranks.path(rank), port)
                ranks.add(process)
            events = watch(ranks, reading)
            states = [ranks.state(rank) for rank in range(reading.world_size)]
        if self._fresh:
            self._close_servers()
        return found_of(events, reading, states)

    def _close_servers(self) -> None:
        for server in self._servers:
            server.close()
        self._servers.clear()

    def close(self) -> None:
        """Ends the servers, and deletes what was written."""
        self._close_servers()
        self._folder.cleanup()


class Program:
    """A training program, a process per rank, that records what it reads and keeps checkpoints of its own.

    Args:
        command: how it is started.
        timeout: seconds that a rank may take for a batch.
    """

    is_program = True

    def __init__(self, command: Sequence[str], *, timeout: float) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="tokenloom-resume-")
        self._command = command
        self._timeout = timeout
        self._num_readings = 0

    def run(self, reading: Reading) -> Found:
        """Starts the program, and kills it."""
        self._num_readings += 1
        folder = os.path.join(self._folder.name, str(self._num_readings))
        os.mkdir(folder)
        begin = reading.begin
        if begin.folder is None:
            begin = replace(begin, folder=os.path.join(folder, "checkpoints"))
            os.mkdir(str(begin.folder))
        limits = {STOP_AFTER: reading.stop_after, STOP_SAMPLES: reading.num_samples}
        given = {name: str(value) for name, value in limits.items() if value is not None}
        port = free_port()
        with Ranks(folder, reading.world_size, self._timeout) as ranks:
            for rank in range(reading.world_size):
                path = ranks.path(rank)
                own = given | {FILE: f"{path}.events", FOLDER: str(begin.folder)}
                ranks.add(start_program(self._command, rank, reading.world_size, port, own, f"{path}.log"))
            events = watch(ranks, reading)
        found = found_of(events, reading, [])
        if marks := sorted({mark for rank in events for mark in rank.checkpoints}):
            kept = marks[-1]
            found.first_checkpoint = marks[0]
            found.point = replace(
                begin,
                consumed=begin.consumed + num_samples_of(found.batches[:kept]),
                num_batches=begin.num_batches + kept,
            )
        elif begin.num_batches or reading.stop_after is not None:
            found.point = begin  # no checkpoint since: a restart goes on from the one before
        return found

    def close(self) -> None:
        """Deletes what was written."""
        self._folder.cleanup()


def watch(ranks: Ranks, reading: Reading) -> list[RankEvents]:
    """Returns the events of ranks, once they have read what was asked for.

    Raises:
        RankFailedError: one failed.
    """
    events = [RankEvents() for _ in range(reading.world_size)]
    while not has_enough(events, reading):
        for rank, one in enumerate(events):
            for kind, value in ranks.events(rank):
                if kind == "error":
                    message = f"rank {rank} {value[0]}"
                    raise RankFailedError(message, value[1])
                one.add(kind, value)
        waiting = [rank for rank, one in enumerate(events) if not one.is_over]
        for rank, ending in ranks.look(waiting):
            if ending == HUNG:
                message = f"rank {rank} gave nothing for {ranks.timeout:g} seconds"
                raise RankFailedError(message, ranks.where(rank), hung=True)
            if ending:
                message = f"rank {rank} {ending}"
                raise RankFailedError(message, ranks.log(rank))
            events[rank].add("end", None)
    return events
