"""Processes of ranks: started, watched and killed by SIGKILL, with all that they have started."""

from __future__ import annotations

import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import IO, Any, Protocol

from tokenloom.errors import ConfigError, ConformanceError
from tokenloom_check.recording import RecordReader
from tokenloom_check.resume_factory import RankJob

HUNG = "hung"
"""How a rank failed that gave nothing for too long."""

_SECONDS_BETWEEN_LOOKS = 0.005
_SECONDS_TO_END = 10.0
_SECONDS_TO_BEGIN_TO_SAY_WHERE = 5.0
_SECONDS_TO_SAY_WHERE = 0.3
_MOST_LOG_LINES = 12
_MOST_FRAMES = 4


class RankProcess(Protocol):
    """The process of a rank; it leads a group of its own."""

    @property
    def pid(self) -> int:
        """Its number, and that of its group."""
        ...

    def how_it_ended(self) -> str | None:
        """Returns how it ended, in words; None while it runs, and "" if it ended as it should."""
        ...


class Ranks:
    """The processes of one reading, all of which are killed in the end.

    Args:
        folder: for their files.
        world_size: number of ranks.
        timeout: seconds that one may give nothing.
    """

    def __init__(self, folder: str, world_size: int, timeout: float) -> None:
        self._folder = folder
        self.timeout = timeout
        self._processes: list[RankProcess] = []
        self._readers = [RecordReader(f"{self.path(rank)}.events") for rank in range(world_size)]
        self._heard = [time.monotonic()] * world_size

    def __enter__(self) -> Ranks:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._processes:
            _kill(process)
        deadline = time.monotonic() + _SECONDS_TO_END
        for process in self._processes:
            while process.how_it_ended() is None and time.monotonic() < deadline:
                time.sleep(_SECONDS_BETWEEN_LOOKS)

    def add(self, process: RankProcess) -> None:
        """Takes up the process of the next rank."""
        self._processes.append(process)

    def path(self, rank: int) -> str:
        """Returns what the names of a rank's files begin with."""
        return os.path.join(self._folder, f"rank{rank}")

    def events(self, rank: int) -> list[tuple[str, Any]]:
        """Returns what a rank has recorded since the last call."""
        found = self._readers[rank].events()
        if found:
            self._heard[rank] = time.monotonic()
        return found

    def state(self, rank: int) -> bytes:
        """Returns the pickled state that a rank has saved; empty if it has saved none."""
        try:
            with open(f"{self.path(rank)}.state", "rb") as stream:
                return stream.read()
        except FileNotFoundError:
            return b""

    def log(self, rank: int) -> str | None:
        """Returns the last lines that a rank has printed."""
        return last_lines(f"{self.path(rank)}.log")

    def where(self, rank: int) -> str | None:
        """Returns where a rank stands that was asked for it: the innermost calls, the last one first."""
        _, found, calls = read_text(f"{self.path(rank)}.log").rpartition("(most recent call first):\n")
        own = os.path.dirname(__file__)
        shown = [line for line in calls.splitlines() if line.startswith('  File "/') and own not in line]
        return "\n".join(line.strip() for line in shown[:_MOST_FRAMES]) if found else self.log(rank)

    def look(self, waiting: Sequence[int]) -> Iterator[tuple[int, str]]:
        """Yields ranks that give nothing more, of those that are to, and why: "" if they ended as they should.

        Waits a moment if there are none.
        """
        for rank in waiting:
            process = self._processes[rank]
            if (ended := process.how_it_ended()) is not None:
                if self._readers[rank].has_more():
                    continue  # its last words
                yield rank, ended
            elif time.monotonic() - self._heard[rank] > self.timeout:
                self._let_say_where(rank)
                yield rank, HUNG
        time.sleep(_SECONDS_BETWEEN_LOOKS)

    def _let_say_where(self, rank: int) -> None:
        """Lets a rank print where it stands, if it can: on a busy machine it may take a while to begin."""
        process, log = self._processes[rank], f"{self.path(rank)}.log"
        before = size_of(log)
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGUSR1)
        deadline = time.monotonic() + _SECONDS_TO_BEGIN_TO_SAY_WHERE
        while size_of(log) == before and process.how_it_ended() is None and time.monotonic() < deadline:
            time.sleep(_SECONDS_BETWEEN_LOOKS)
        time.sleep(_SECONDS_TO_SAY_WHERE)


def _kill(process: RankProcess) -> None:
    """Kills a rank and its group; a fork of a moment ago leads none yet, and has started nothing."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        if process.how_it_ended() is None:
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)


def read_text(path: str) -> str:
    """Returns a text; an empty one if there is no such file."""
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return stream.read()
    except FileNotFoundError:
        return ""


def size_of(path: str) -> int:
    """Returns the bytes of a file; 0 if there is none."""
    try:
        return os.path.getsize(path)
    except FileNotFoundError:
        return 0


def last_lines(path: str) -> str | None:
    """Returns the end of a text; None if there is none."""
    return "\n".join(read_text(path).rstrip().splitlines()[-_MOST_LOG_LINES:]) or None


def free_port() -> int:
    """Returns a port that nothing listens on now: for ranks that talk to each other."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
        return port


def environment_of(rank: int, world_size: int, port: int) -> dict[str, str]:
    """Returns the variables by which programs know their rank."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


# --- programs ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Started:
    """A program that was started."""

    process: subprocess.Popen[bytes]

    @property
    def pid(self) -> int:
        return self.process.pid

    def how_it_ended(self) -> str | None:
        status = self.process.poll()
        if status is None:
            return None
        return "" if status == 0 else f"was killed by signal {-status}" if status < 0 else f"exited with {status}"


def start_program(
    command: Sequence[str], rank: int, world_size: int, port: int, variables: Mapping[str, str], log: str
) -> RankProcess:
    """Starts a rank of a program; what it prints goes to a file."""
    environment = {**os.environ, **environment_of(rank, world_size, port), **variables}
    with open(log, "wb") as output:
        try:
            process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            message = f"cannot start {command[0]}: {error.strerror}"
            raise ConformanceError(message, hint="the program must be executable, or end in .py") from error
    return _Started(process)


# --- ranks of a factory -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Forked:
    """A rank that a server has forked; nobody here can wait for it."""

    pid: int

    def how_it_ended(self) -> str | None:
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return "died without a word"
        return None


class FactoryServer:
    """A process that has imported a factory, and forks a rank whenever it is asked to.

    Args:
        name: name of the factory.
        state_of: name of the function that takes states.
        samples: way to cut batches, or the name of a function.
        folder: for what it prints.
        timeout: seconds that importing may take.

    Raises:
        ConfigError: there is no such function, or it takes other arguments.
        ConformanceError: importing it raised or took too long.
    """

    def __init__(self, name: str, state_of: str | None, samples: str, *, folder: str, timeout: float) -> None:
        self._log = os.path.join(folder, "server.log")
        command = [sys.executable, "-m", "tokenloom_check.resume_worker", name, state_of or "", samples]
        with open(self._log, "wb") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                start_new_session=True,
            )
        try:
            self._require_ready(name, timeout)
        except BaseException:
            self.close()
            raise

    def start(self, job: RankJob, path: str, port: int) -> RankProcess:
        """Starts a rank, whose files begin with a path."""
        with open(f"{path}.job", "wb") as stream:
            pickle.dump((job, path, environment_of(job.rank, job.world_size, port)), stream)
        assert self._process.stdin is not None
        self._process.stdin.write(f"{path}.job\n".encode())
        self._process.stdin.flush()
        _, pid = self._answer(_SECONDS_TO_END, "starting a process")
        return _Forked(pid)

    def close(self) -> None:
        """Ends it."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()

    def _require_ready(self, name: str, timeout: float) -> None:
        kind, value = self._answer(timeout, f"importing `{name}`")
        if kind == "config":
            raise ConfigError(value[0], hint=value[1])
        if kind != "ready":
            message = f"importing `{name}` raised {value[0]}"
            raise ConformanceError(message, hint=value[1])

    def _answer(self, seconds: float, doing: str) -> tuple[str, Any]:
        assert self._process.stdout is not None
        stream: IO[bytes] = self._process.stdout
        if not select.select([stream], [], [], seconds)[0]:
            message = f"{doing} took more than {seconds:g} seconds"
            raise ConformanceError(message, hint=last_lines(self._log))
        try:
            kind, value = pickle.load(stream)
        except EOFError:
            message = f"{doing} ended the process"
            raise ConformanceError(message, hint=last_lines(self._log)) from None
        return kind, value
