"""Reads a loader on many ranks: in this process, in processes that are killed, or as a training program."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing import Pipe
from pathlib import Path
from typing import Any, TypeAlias

from tokenloom.errors import ConformanceError, TokenloomError
from tokenloom_check.fingerprints import Sample
from tokenloom_check.recording import FILE, FOLDER, STOP_AFTER, STOP_SAMPLES
from tokenloom_check.resume_ranks import Factory, Point, Reading, read_rank

_POLL_SECONDS = 0.005
_END_SECONDS = 10.0
_TRACEBACK_SECONDS = 1.0
_MAX_LOG_LINES = 12
_MAX_FRAMES = 4

GlobalBatch: TypeAlias = Sequence[Sequence[Sample]]
"""The samples of one batch per rank."""


def num_samples_of(batches: Iterable[GlobalBatch]) -> int:
    return sum(len(rank) for batch in batches for rank in batch)


def enough_batches(batches: Sequence[GlobalBatch], num_samples: int) -> Sequence[GlobalBatch]:
    """Returns the shortest prefix of the batches with at least `num_samples` samples, or all batches."""
    total = 0
    for number, batch in enumerate(batches):
        if total >= num_samples:
            return batches[:number]
        total += num_samples_of([batch])
    return batches


class RankFailedError(ConformanceError):
    """A rank raised or died; the hint is a traceback or the end of its log."""


class RankHungError(RankFailedError):
    """A rank sent no event within the timeout."""


class RankEvents:
    """The events received from one rank."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.batches: list[list[Sample]] = []
        self.epoch_ends: list[int] = []
        self.left_out: set[str] = set()
        self.checkpoints: list[int] = []
        self.last = ""  # the final event, once received: "end", "stopped" or "state"
        self.state = ""

    def add(self, kind: str, value: Any) -> None:
        if kind == "error":
            raise RankFailedError(f"rank {self.rank} {value[0]}", hint=value[1])
        if kind == "batch":
            self.batches.append([Sample(*each) for each in value[0]])
            self.left_out |= set(value[1])
        elif kind == "epoch":
            self.epoch_ends.append(len(self.batches))
        elif kind == "checkpoint":
            self.checkpoints.append(value)
        else:
            self.last = kind
            self.state = value


@dataclass(slots=True, kw_only=True)
class ReadingResult:
    """What all ranks read in one reading, and where it can continue."""

    batches: list[GlobalBatch]
    epoch_ends: list[int]  # number of batches before each end of an epoch, in rank 0
    ended: bool  # all ranks reached the end of their data
    left_out: set[str] = field(default_factory=set)
    point: Point | None = None  # where a restart continues; None if no state was taken and no checkpoint was written
    checkpoints: list[int] = field(default_factory=list)  # batches before each checkpoint of a program


def whole_batches(ranks: Sequence[RankEvents], reading: Reading) -> list[GlobalBatch]:
    """Joins ranks' batches into global batches; with `num_samples`, only those that all unfinished ranks have read."""
    count = most = max(len(rank.batches) for rank in ranks)
    if reading.num_samples is not None:
        count = min((len(rank.batches) for rank in ranks if rank.last != "end"), default=most)
    return [[rank.batches[k] if k < len(rank.batches) else [] for rank in ranks] for k in range(count)]


def has_enough(ranks: Sequence[RankEvents], reading: Reading) -> bool:
    if all(rank.last for rank in ranks):
        return True
    return reading.num_samples is not None and num_samples_of(whole_batches(ranks, reading)) >= reading.num_samples


def result_of(ranks: Sequence[RankEvents], reading: Reading) -> ReadingResult:
    batches = whole_batches(ranks, reading)
    if reading.num_samples is not None:  # processes may have read more
        batches = [*enough_batches(batches, reading.num_samples)]
    begin, point = reading.begin, None
    if all(rank.last == "state" for rank in ranks):
        point = replace(
            begin,
            states=tuple(rank.state for rank in ranks),
            consumed=begin.consumed + num_samples_of(batches),
            num_batches=begin.num_batches + len(batches),
            epochs=max(begin.epochs - len(ranks[0].epoch_ends), 1),
        )
    return ReadingResult(
        batches=batches,
        epoch_ends=ranks[0].epoch_ends,
        ended=all(rank.last == "end" for rank in ranks),
        left_out=set().union(*(rank.left_out for rank in ranks)),
        point=point,
        checkpoints=sorted({mark for rank in ranks for mark in rank.checkpoints}),
    )


class InProcess:
    """Reads all ranks in this process, one batch of each rank in turn. A kill drops the loader; states are still
    pickled.
    """

    is_program = False

    def __init__(self, factory: Factory) -> None:
        self._factory = factory

    def run(self, reading: Reading) -> ReadingResult:
        ranks = [RankEvents(rank) for rank in range(reading.world_size)]
        readers = [read_rank(self._factory, reading, rank) for rank in range(reading.world_size)]
        try:
            while not has_enough(ranks, reading):
                for rank, reader in zip(ranks, readers, strict=True):
                    count = len(rank.batches)
                    while not rank.last and len(rank.batches) == count:
                        rank.add(*next(reader))
        finally:
            for reader in readers:
                reader.close()  # type: ignore[attr-defined]
        return result_of(ranks, reading)

    def close(self) -> None:
        """Does nothing; each reading has closed its loaders."""


Process: TypeAlias = subprocess.Popen[bytes] | int  # a child process, or the id of a fork of the server


class _RankProcess(RankEvents):
    """A rank in its own process group, with its events in `path`.events and its output in `path`.log."""

    def __init__(self, rank: int, path: str, process: Process) -> None:
        super().__init__(rank)
        self._path = path
        self._process = process
        self._offset = 0
        self._last_event_time = time.monotonic()

    def poll(self, timeout: float) -> None:
        """Reads new events; raises if the rank failed or sent none for `timeout` seconds."""
        end = self.end()
        with suppress(FileNotFoundError), open(f"{self._path}.events", "rb") as stream:
            stream.seek(self._offset)
            content = stream.read()
            whole = content[: content.rfind(b"\n") + 1]  # the last line may be incomplete
            if whole:
                self._offset += len(whole)
                self._last_event_time = time.monotonic()
            for line in whole.splitlines():
                self.add(*json.loads(line))
        if self.last:
            return
        if end == "exited with 0":
            self.add("end", None)
        elif end is not None:
            raise RankFailedError(f"rank {self.rank} {end}", hint=_end_of_log(f"{self._path}.log"))
        elif time.monotonic() - self._last_event_time > timeout + _TRACEBACK_SECONDS:
            message = f"rank {self.rank} returned no batch for {timeout:g} seconds"
            raise RankHungError(message, hint=_end_of_log(f"{self._path}.log"))

    def end(self) -> str | None:
        """Returns how the process ended, as text; None while it runs."""
        if isinstance(self._process, int):
            with suppress(ProcessLookupError):
                os.kill(self._process, 0)
                return None
            return "died"
        status = self._process.poll()
        if status is None:
            return None
        return f"exited with {status}" if status >= 0 else f"was killed by signal {-status}"

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process if isinstance(self._process, int) else self._process.pid, signal.SIGKILL)


def _end_of_log(path: str) -> str | None:
    """Returns the last lines of a log; if it ends with the traceback of a hanging rank, its innermost calls."""
    with suppress(FileNotFoundError):
        text = Path(path).read_text(errors="replace").rstrip()
        _, is_hanging, calls = text.rpartition("(most recent call first):\n")
        if is_hanging:
            own = os.path.dirname(__file__)
            frames = [line.strip() for line in calls.splitlines() if line.startswith('  File "/') and own not in line]
            return "\n".join(frames[:_MAX_FRAMES])
        return "\n".join(text.splitlines()[-_MAX_LOG_LINES:]) or None
    return None


class Processes(ABC):
    """Reads each rank in a process that is killed at the end; `timeout` limits the seconds per batch."""

    is_program = False

    def __init__(self, timeout: float) -> None:
        self._files = tempfile.TemporaryDirectory(prefix="tokenloom-resume-")
        self._timeout = timeout

    def close(self) -> None:
        self._files.cleanup()

    @abstractmethod
    def _start(self, reading: Reading, rank: int, path: str, variables: dict[str, str]) -> Process:
        """Starts a rank that writes its events to `path`.events and its output to `path`.log."""

    def run(self, reading: Reading) -> ReadingResult:
        """Reads all ranks, then kills them and their child processes."""
        folder = tempfile.mkdtemp(dir=self._files.name)
        with socket.socket() as listening:
            listening.bind(("127.0.0.1", 0))
            common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(listening.getsockname()[1])}
        common |= dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(reading.world_size))
        ranks: list[_RankProcess] = []
        try:
            for rank in range(reading.world_size):
                path = os.path.join(folder, f"rank{rank}")
                variables = dict.fromkeys(("RANK", "LOCAL_RANK"), str(rank)) | common
                ranks.append(_RankProcess(rank, path, self._start(reading, rank, path, variables)))
            while not has_enough(ranks, reading):
                for each in ranks:
                    each.poll(self._timeout)
                time.sleep(_POLL_SECONDS)
        finally:
            for each in ranks:
                each.kill()
            deadline = time.monotonic() + _END_SECONDS
            while any(each.end() is None for each in ranks) and time.monotonic() < deadline:
                time.sleep(_POLL_SECONDS)
        return result_of(ranks, reading)


class FactoryProcesses(Processes):
    """Reads ranks of a factory, forked from a process that imports it once; see `resume_ranks.serve`."""

    def __init__(self, name: str, *, state_of: str | None, samples: str, timeout: float) -> None:
        super().__init__(timeout)
        self._name = name
        self._log = os.path.join(self._files.name, "server.log")
        self._connection, theirs = Pipe()
        code = "import sys; from tokenloom_check.resume_ranks import serve; serve(*sys.argv[1:])"
        arguments = [str(theirs.fileno()), name, state_of or "", samples, str(timeout)]
        with theirs, open(self._log, "wb") as log:
            self._server = subprocess.Popen(
                [sys.executable, "-c", code, *arguments],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def close(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._server.pid, signal.SIGKILL)
        self._server.wait()
        self._connection.close()
        super().close()

    def _start(self, reading: Reading, rank: int, path: str, variables: dict[str, str]) -> int:
        answer: Any = ConformanceError(f"importing `{self._name}` took more than {self._timeout:g} seconds")
        with suppress(BrokenPipeError):  # the server ended; its answer may be there
            self._connection.send((reading, rank, path, variables))
        try:
            if self._connection.poll(self._timeout):
                answer = self._connection.recv()
        except (EOFError, ConnectionResetError):
            answer = ConformanceError(f"importing `{self._name}` failed", hint=_end_of_log(self._log))
        if isinstance(answer, TokenloomError):
            raise answer
        return int(answer)


class Program(Processes):
    """Reads ranks of a training program that records its batches and writes its own checkpoints."""

    is_program = True

    def __init__(self, command: Sequence[str], *, timeout: float) -> None:
        super().__init__(timeout)
        self._command = command

    def run(self, reading: Reading) -> ReadingResult:
        begin = reading.begin
        if begin.folder is None:
            begin = replace(begin, folder=tempfile.mkdtemp(dir=self._files.name))
            reading = replace(reading, begin=begin)
        found = super().run(reading)
        if found.checkpoints:
            kept = found.checkpoints[-1]
            consumed = begin.consumed + num_samples_of(found.batches[:kept])
            found.point = replace(begin, consumed=consumed, num_batches=begin.num_batches + kept)
        elif begin.num_batches or reading.stop_after is not None:
            found.point = begin  # no new checkpoint: a restart continues from the previous one
        return found

    def _start(self, reading: Reading, rank: int, path: str, variables: dict[str, str]) -> subprocess.Popen[bytes]:
        limits = {STOP_AFTER: reading.stop_after, STOP_SAMPLES: reading.num_samples}
        given = {name: str(value) for name, value in limits.items() if value is not None}
        given |= {FILE: f"{path}.events", FOLDER: str(reading.begin.folder)}
        with open(f"{path}.log", "wb") as log:
            return subprocess.Popen(
                self._command,
                env=os.environ | variables | given,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )


Runner: TypeAlias = InProcess | FactoryProcesses | Program
