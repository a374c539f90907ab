"""Reads one rank of a user's loader event by event, in this process or in one that is killed.

`serve` is the main function of a process that imports a factory, and forks a rank for every request of its client.
"""

from __future__ import annotations

import base64
import faulthandler
import gc
import importlib
import inspect
import os
import pickle
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from operator import attrgetter
from pathlib import Path
from typing import Any

from tokenloom.errors import ConfigError, TokenloomError
from tokenloom_check.fingerprints import CutSamples, SampleCutter
from tokenloom_check.recording import RecordWriter, wait_to_be_killed

ARGUMENTS = ("rank", "world_size", "state", "states", "consumed", "num_batches")  # parameters of a factory
_STATES = {"state", "states"}
_COUNTS = {"consumed", "num_batches"}
_PREFETCH_SECONDS = 0.05  # wait before taking a state, to detect states that count prefetched batches
_END_OF_EPOCH = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A point in the data where ranks start or resume."""

    states: tuple[str, ...] = ()  # pickled states of all ranks in base64; empty at the start
    consumed: int = 0  # number of samples returned by all ranks
    num_batches: int = 0  # number of batches returned by each rank
    epochs: int = 1  # maximum number of epochs left
    folder: str | None = None  # folder of the checkpoints of a program


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One reading by all ranks: make loaders and read them up to a limit."""

    world_size: int  # number of ranks
    begin: Point  # where the ranks start
    stop_after: int | None = None  # maximum number of batches per rank; None for no limit
    num_samples: int | None = None  # minimum number of samples to read, all ranks together; None for no limit
    # when to take the state, after `stop_after` batches: "now"; "settled": once the loader had time to prefetch;
    # "kept": now, but pickled after the loader has continued; "after epoch": at the end of the epoch. None: never
    take_state: str | None = None
    load_twice: bool = False  # first resume another loader from the same state and read from it


class Factory:
    """A function that makes the loader of a rank, with the functions for its state and samples; see `check_resume`."""

    def __init__(
        self,
        make: Callable[..., Any],
        *,
        state_of: Callable[[Any, int], Any] | None = None,
        samples: CutSamples = "auto",
    ) -> None:
        self._make = make
        self._state_of = state_of
        self.cutter: SampleCutter = SampleCutter(samples)
        parameters = inspect.signature(make).parameters
        takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
        self._taken = {name for name in ARGUMENTS if takes_all or name in parameters}
        if not self._taken & (_STATES | _COUNTS):
            found = f"{getattr(make, '__name__', type(make).__name__)}{inspect.signature(make)}"
            raise ConfigError(f"the factory must take `state` or `consumed` to resume, got `{found}`")

    def make(self, reading: Reading, rank: int, states: list[Any]) -> Any:
        state, begin = states[rank % len(states)] if states else None, reading.begin
        values = (rank, reading.world_size, state, states, begin.consumed, begin.num_batches)
        given = dict(zip(ARGUMENTS, values, strict=True))
        return self._make(**{name: given[name] for name in self._taken})

    def state(self, loader: Any, num_batches: int) -> Any:
        """Returns the state of a loader; None if the factory takes only counts."""
        if not self._taken & _STATES:
            return None
        if self._state_of is not None:
            return self._state_of(loader, num_batches)
        if hasattr(loader, "state_dict"):
            return loader.state_dict()
        if self._taken & _COUNTS:
            return None
        message = f"the factory takes `state`, but its loader, a {type(loader).__name__}, has no `state_dict`"
        raise ConfigError(message, hint="pass a function `state_of(loader, num_batches)`, or take `consumed` instead")


def is_function_name(text: str) -> bool:
    """Returns whether a text has the form `path/to/file.py:function` or `package.module:function`."""
    source, _, name = text.rpartition(":")
    return bool(source) and all(part.isidentifier() for part in name.split("."))


def load_function(text: Callable[..., Any] | str) -> Callable[..., Any]:
    """Imports a function named as `path/to/file.py:function` or `package.module:function`; returns a callable as is."""
    if not isinstance(text, str):
        return text
    module, _, name = text.rpartition(":")
    folder = ""
    if module.endswith(".py"):
        folder, module = os.path.dirname(os.path.abspath(module)), Path(module).stem
    sys.path.insert(0, folder)  # like `python FILE.py` and `python -m MODULE`
    try:
        function: Callable[..., Any] = attrgetter(name)(importlib.import_module(module))
    except (AttributeError, ModuleNotFoundError, ValueError) as error:
        raise ConfigError(f"cannot import {text!r} as FILE.py:FUNCTION or MODULE:FUNCTION: {error}") from error
    return function


def name_function(function: Callable[..., Any] | str) -> str:
    """Returns the name by which another process can load a module-level function, see `load_function`."""
    if isinstance(function, str):
        return function
    name, path = getattr(function, "__qualname__", "<>"), inspect.getsourcefile(inspect.unwrap(function))
    if path is None or "<" in name:
        message = f"other processes cannot import {function!r}: it is not a module-level function"
        raise ConfigError(message, hint="define the function at module level, or pass `in_process=True`")
    return f"{path}:{name}"


def read_rank(factory: Factory, reading: Reading, rank: int) -> Iterator[tuple[str, Any]]:
    """Yields the events of one rank as they happen.

    Yields:
        ("batch", (samples, columns without rows)); ("epoch", None) at the end of an epoch; and finally one of ("end",
            None), no more data; ("state", pickled state in base64) or ("stopped", None), the limit was reached;
            ("error", (message, further lines)).
    """
    try:
        yield from _read(factory, reading, rank)
    except TokenloomError as error:
        yield "error", (f"failed: {error.message}", error.hint)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - reported as an event
        frame = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{os.path.basename(frame.filename)}:{frame.lineno}"
        yield "error", (f"raised {type(error).__name__}: {error}, in {where}", traceback.format_exc())


def _read(factory: Factory, reading: Reading, rank: int) -> Iterator[tuple[str, Any]]:
    begin, take_state = reading.begin, reading.take_state
    states = [pickle.loads(base64.b64decode(state)) for state in begin.states]
    if reading.load_twice:
        for _ in zip(range(2), factory.make(reading, rank, states), strict=False):
            pass
    loader = factory.make(reading, rank, states)
    batches = _batches(loader, begin)  # kept open until the state is pickled
    num_batches = num_samples = 0

    def state_now() -> Any:
        return None if take_state is None else factory.state(loader, begin.num_batches + num_batches)

    is_stopped = reading.stop_after == 0
    state = state_now() if is_stopped else None
    for batch in () if is_stopped else batches:
        if is_stopped:  # "kept": the loader has continued
            break
        is_end = batch is _END_OF_EPOCH
        if is_end:
            yield "epoch", None
        else:
            samples = factory.cutter.samples(batch)
            num_batches += 1
            num_samples += len(samples)
            yield "batch", (samples, sorted(factory.cutter.left_out))
        is_enough = reading.num_samples is not None and num_samples >= reading.num_samples
        if is_enough or (num_batches == reading.stop_after and (is_end or take_state != "after epoch")):
            if take_state == "settled":
                time.sleep(_PREFETCH_SECONDS)
            is_stopped, state = True, state_now()
            if take_state != "kept":
                break
    if not is_stopped:
        yield "end", None
    elif take_state is None:
        yield "stopped", None
    else:
        yield "state", base64.b64encode(pickle.dumps(state)).decode()


def _batches(loader: Any, begin: Point) -> Iterator[Any]:
    """Yields the batches of at most `begin.epochs` epochs, and `_END_OF_EPOCH` after each; ends after two empty ones.

    An empty epoch right after a resume does not count: the state may be from the end of an epoch.
    """
    num_epochs, has_begun, was_empty = 0, begin.num_batches == 0, False
    while num_epochs < begin.epochs:
        is_empty = True
        for batch in loader:
            is_empty = False
            yield batch
        yield _END_OF_EPOCH
        if is_empty and was_empty:
            return
        has_begun = has_begun or not is_empty
        num_epochs += has_begun
        was_empty = is_empty


def serve(descriptor: str, name: str, state_of: str, samples: str, timeout: str) -> None:
    """Imports a factory, and forks a rank for every request (reading, rank, path, variables) of the client.

    A rank answers with its process id, then writes its events to `path`.events and its output to `path`.log. An error
    of the functions is the answer to the first request.
    """
    client = Connection(int(descriptor))
    try:
        factory = Factory(
            load_function(name),
            state_of=load_function(state_of) if state_of else None,
            samples=samples if samples == "auto" else load_function(samples),
        )
    except TokenloomError as error:
        client.send(error)
        raise
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # ranks are not waited for
    gc.freeze()
    server = os.getpid()
    with suppress(EOFError):  # the client ended
        while True:
            request = client.recv()
            if os.fork() == 0:
                try:
                    _run(factory, client, *request, timeout=float(timeout), server=server)
                finally:
                    os._exit(1)


def _run(
    factory: Factory,
    client: Connection,
    reading: Reading,
    rank: int,
    path: str,
    variables: dict[str, str],
    *,
    timeout: float,
    server: int,
) -> None:
    """Reads one rank, records its events, then waits to be killed."""
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    log = os.open(f"{path}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    client.send(os.getpid())
    client.close()
    faulthandler.enable(file=2)
    os.environ.update(variables)
    writer = RecordWriter(f"{path}.events")
    faulthandler.dump_traceback_later(timeout, file=2)  # prints a traceback if the rank hangs
    for kind, value in read_rank(factory, reading, rank):
        faulthandler.dump_traceback_later(timeout, file=2)
        writer.write(kind, value)
        if kind in ("state", "stopped", "end"):
            wait_to_be_killed(server)
