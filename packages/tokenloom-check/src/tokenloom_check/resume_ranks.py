"""Reads one rank of a user's loader event by event, in this process or in one that is killed.

`python -m tokenloom_check.resume_ranks FACTORY STATE_OF SAMPLES TIMEOUT` imports a factory and forks a rank for every
line on standard input. It answers on standard output with JSON lines: first whether the factory was imported, then the
process id of each rank. Output of the user's code goes to standard error.
"""

from __future__ import annotations

import base64
import faulthandler
import gc
import importlib
import inspect
import json
import os
import pickle
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from tokenloom.errors import ConfigError, ConformanceError, TokenloomError
from tokenloom_check.fingerprints import WAYS, CutSamples, SampleCutter
from tokenloom_check.recording import RecordWriter, wait_to_be_killed

ARGUMENTS = ("rank", "world_size", "state", "states", "consumed", "num_batches")  # parameters of a factory
_STATES = {"state", "states"}
_COUNTS = {"consumed", "num_batches"}
_PREFETCH_SECONDS = 0.05  # wait before taking a state, to detect states that count prefetched batches


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
        self._taken = _arguments_of(make)

    def make(self, reading: Reading, rank: int, states: list[Any]) -> Any:
        state, begin = states[rank % len(states)] if states else None, reading.begin
        values = (rank, reading.world_size, state, states, begin.consumed, begin.num_batches)
        given = dict(zip(ARGUMENTS, values, strict=True))
        return self._make(**{name: value for name, value in given.items() if name in self._taken})

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


def _arguments_of(make: Callable[..., Any]) -> set[str]:
    """Returns the names in `ARGUMENTS` that a factory takes."""
    taken = set()
    for name, parameter in inspect.signature(make).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            taken |= set(ARGUMENTS)
        elif name in ARGUMENTS and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            taken.add(name)
        elif parameter.default is parameter.empty and parameter.kind is not parameter.VAR_POSITIONAL:
            message = f"the factory has an unknown parameter {name!r}; supported: {', '.join(ARGUMENTS)}"
            raise ConfigError(message, hint="give the parameter a default, or wrap the factory in a function")
    if not taken & (_STATES | _COUNTS):
        found = f"{getattr(make, '__name__', type(make).__name__)}{inspect.signature(make)}"
        raise ConfigError(f"the factory must take `state` or `consumed` to resume, got `{found}`")
    return taken


def is_function_name(text: str) -> bool:
    """Returns whether a text has the form `path/to/file.py:function` or `package.module:function`."""
    source, colon, name = text.rpartition(":")
    return bool(colon) and bool(source) and all(part.isidentifier() for part in name.split("."))


def load_function(text: str) -> Callable[..., Any]:
    """Imports a function named as `path/to/file.py:function` or `package.module:function`."""
    if not is_function_name(text):
        raise ConfigError(f"expected a function as FILE.py:FUNCTION or MODULE:FUNCTION, got {text!r}")
    source, _, name = text.rpartition(":")
    found: Any = _module_of_file(source) if source.endswith(".py") or os.sep in source else _module_of_name(source)
    for part in name.split("."):
        if part not in dir(found):
            functions = [word for word, value in vars(found).items() if inspect.isfunction(value)]
            hint = f"it has {', '.join(functions)}" if functions and inspect.ismodule(found) else None
            raise ConfigError(f"no function `{name}` in `{source}`", hint=hint)
        found = getattr(found, part)
    if not callable(found):
        raise ConfigError(f"`{text}` must be a function, got {type(found).__name__}")
    return found  # type: ignore[no-any-return]


def _module_of_file(path: str) -> Any:
    if not os.path.isfile(path):
        raise ConfigError(f"no file `{path}`")
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))  # like `python path`
    module = importlib.import_module(Path(path).stem)
    if not os.path.samefile(str(module.__file__), path):
        message = f"module `{module.__name__}` was imported from `{module.__file__}`, not from `{path}`"
        raise ConfigError(message, hint="rename the file")
    return module


def _module_of_name(name: str) -> Any:
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if not f"{name}.".startswith(f"{error.name}."):
            raise
        raise ConfigError(f"no module `{name}`", hint="run the command in its folder or set PYTHONPATH") from error


def name_function(function: Callable[..., Any]) -> str:
    """Returns the name, as for `load_function`, by which another process can import a module-level function."""
    name, path = getattr(function, "__qualname__", None), inspect.getsourcefile(inspect.unwrap(function))
    if name is None or path is None or "<" in name:
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
        yield _error_of(error)


def _error_of(error: BaseException) -> tuple[str, Any]:
    frames = traceback.extract_tb(error.__traceback__)
    where = f", in {os.path.basename(frames[-1].filename)}:{frames[-1].lineno}" if frames else ""
    return "error", (f"raised {type(error).__name__}: {error}{where}", traceback.format_exc())


def _read(factory: Factory, reading: Reading, rank: int) -> Iterator[tuple[str, Any]]:
    begin, take_state = reading.begin, reading.take_state
    states = [pickle.loads(base64.b64decode(state)) for state in begin.states]
    if reading.load_twice:
        for _ in zip(range(2), factory.make(reading, rank, states), strict=False):
            pass
    loader = factory.make(reading, rank, states)
    num_batches = num_samples = num_iterations = 0

    def state() -> tuple[Any, ...]:
        return () if take_state is None else (factory.state(loader, begin.num_batches + num_batches),)

    if reading.stop_after == 0:
        yield _stop(state())
        return
    held: tuple[Any, ...] | None = None
    was_empty = False
    while num_iterations < begin.epochs:
        is_empty = True
        for batch in loader:
            is_empty = False
            if held is None:
                samples = factory.cutter.samples(batch)
                num_batches += 1
                num_samples += len(samples)
                yield "batch", (samples, sorted(factory.cutter.left_out))
                if num_batches == reading.stop_after and take_state != "after epoch":
                    if take_state == "settled":
                        time.sleep(_PREFETCH_SECONDS)
                    held = state()
                    if take_state == "kept":
                        continue
                elif reading.num_samples is not None and num_samples >= reading.num_samples:
                    held = ()
            if held is not None:
                yield _stop(held)
                return
        if held is None:
            yield "epoch", None
            if num_batches == reading.stop_after:
                held = state()
        if held is not None:
            yield _stop(held)
            return
        if is_empty and was_empty:
            break
        if num_batches or not begin.num_batches:  # a state from the end of an epoch may first yield an empty rest
            num_iterations += 1
        was_empty = is_empty
    yield "end", None


def _stop(states: tuple[Any, ...]) -> tuple[str, Any]:
    """Returns the final event of a rank that reached its limit; it has the state if one was taken."""
    if not states:
        return "stopped", None
    try:
        return "state", base64.b64encode(pickle.dumps(states[0])).decode()
    except Exception as error:
        raise ConformanceError(f"the state cannot be pickled: {error}") from error


def main(name: str, state_of: str, samples: str, timeout: str) -> None:
    """Serves requests until standard input ends."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # output of the user's code must not mix with answers
    try:
        factory = Factory(
            load_function(name),
            state_of=load_function(state_of) if state_of else None,
            samples=samples if samples in WAYS else load_function(samples),
        )
    except ConfigError as error:
        _answer(answers, "config", (error.message, error.hint))
        return
    except BaseException as error:  # noqa: BLE001 - reported to the client
        _answer(answers, *_error_of(error))
        return
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # ranks are not waited for
    gc.freeze()
    _answer(answers, "ready", None)
    for line in sys.stdin.buffer:
        server = os.getpid()
        pid = os.fork()
        if pid == 0:
            answers.close()
            try:
                _run(factory, json.loads(line), server, float(timeout))
            finally:
                os._exit(1)
        _answer(answers, "pid", pid)


def _answer(stream: IO[bytes], kind: str, value: Any) -> None:
    stream.write(json.dumps([kind, value]).encode() + b"\n")
    stream.flush()


def _run(factory: Factory, job: dict[str, Any], server: int, timeout: float) -> None:
    """Reads one rank, records its events, then waits to be killed."""
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    log = os.open(f"{job['path']}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    faulthandler.enable(file=2)
    os.environ.update(job["variables"])
    writer = RecordWriter(f"{job['path']}.events")
    reading = Reading(**job["reading"] | {"begin": Point(**job["reading"]["begin"])})
    faulthandler.dump_traceback_later(timeout, file=2)  # prints a traceback if the rank hangs
    for kind, value in read_rank(factory, reading, job["rank"]):
        faulthandler.dump_traceback_later(timeout, file=2)
        writer.write(kind, value)
        if kind in ("state", "stopped", "end"):
            wait_to_be_killed(server)


if __name__ == "__main__":
    main(*sys.argv[1:])
