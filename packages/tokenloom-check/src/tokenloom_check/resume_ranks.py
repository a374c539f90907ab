"""A rank of a user's loader, read event after event, in this process or in one that is killed.

`python -m tokenloom_check.resume_ranks FACTORY STATE_OF SAMPLES TIMEOUT` imports a factory and forks a rank for every
line of its standard input. It answers on what was its standard output, a line of JSON each: first whether the factory
was found, then the process id of each rank.
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

ARGUMENTS = ("rank", "world_size", "state", "states", "consumed", "num_batches")
"""Arguments that a factory may take, by name."""

_STATES = {"state", "states"}
_COUNTS = {"consumed", "num_batches"}

_SECONDS_TO_READ_AHEAD = 0.05
"""Time to prefetch before the state is taken, to find states that count prefetched batches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Where ranks go on from.

    Attributes:
        states: pickled states of all ranks in base64; none at the start.
        consumed: samples that all ranks had consumed.
        num_batches: batches that each rank had been handed out.
        epochs: how often a loader is iterated from there on, at most.
        folder: the folder of checkpoints of a program.
    """

    states: tuple[str, ...] = ()
    consumed: int = 0
    num_batches: int = 0
    epochs: int = 1
    folder: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A task for all ranks: make loaders, and read them up to a point.

    Attributes:
        world_size: number of ranks.
        begin: where they go on from.
        stop_after: batches to read; None for no such limit.
        num_samples: samples of all ranks to read, which no rank alone exceeds by more than a batch; None for no limit.
        take_state: "now", and the state is taken after `stop_after` batches; "settled", and it is taken when the loader
            has had time to read ahead; "kept", and it is kept while the loader reads on, and pickled then;
            "after epoch", and it is taken once the iteration has ended there. None takes none.
        load_twice: whether another loader is made of the same state before, and read.
    """

    world_size: int
    begin: Point
    stop_after: int | None = None
    num_samples: int | None = None
    take_state: str | None = None
    load_twice: bool = False


class Factory:
    """A function that makes a loader for a rank, and how its state and its batches are to be read; see `check_resume`.

    Raises:
        ConfigError: the factory needs other arguments, or none to go on from.
    """

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
        """Returns the loader of a rank, resumed from unpickled states."""
        given = {
            "rank": rank,
            "world_size": reading.world_size,
            "state": states[rank % len(states)] if states else None,
            "states": states,
            "consumed": reading.begin.consumed,
            "num_batches": reading.begin.num_batches,
        }
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
        found = type(loader).__name__
        message = f"the factory takes `state`, but its loader has no `state_dict`: {found}"
        raise ConfigError(message, hint="give a function `state_of(loader, num_batches)`, or let it take `consumed`")


def _arguments_of(make: Callable[..., Any]) -> set[str]:
    """Returns the arguments that a factory takes, of those that there are."""
    taken = set()
    for name, parameter in inspect.signature(make).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            taken |= set(ARGUMENTS)
        elif name in ARGUMENTS and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            taken.add(name)
        elif parameter.default is parameter.empty and parameter.kind is not parameter.VAR_POSITIONAL:
            message = f"the factory needs {name!r}; it may take {', '.join(ARGUMENTS)}, by name"
            raise ConfigError(message, hint="give it a default, or wrap the factory in a function")
    if not taken & (_STATES | _COUNTS):
        found = f"{getattr(make, '__name__', type(make).__name__)}{inspect.signature(make)}"
        raise ConfigError(f"the factory cannot resume: it takes neither `state` nor `consumed`: `{found}`")
    return taken


# --- names of functions -----------------------------------------------------------------------------------------


def is_function_name(text: str) -> bool:
    """Whether a text names a function: `path/to/file.py:function` or `package.module:function`."""
    source, colon, name = text.rpartition(":")
    return bool(colon) and bool(source) and all(part.isidentifier() for part in name.split("."))


def load_function(text: str) -> Callable[..., Any]:
    """Returns the function of a name such as `path/to/file.py:function` or `package.module:function`.

    Raises:
        ConfigError: there is no such file, module or function. What the module itself raises comes through.
    """
    if not is_function_name(text):
        raise ConfigError(f"no function name such as loaders.py:make_loader or package.module:make_loader: {text!r}")
    source, _, name = text.rpartition(":")
    found: Any = _module_of_file(source) if source.endswith(".py") or os.sep in source else _module_of_name(source)
    for part in name.split("."):
        if part not in dir(found):
            functions = [word for word, value in vars(found).items() if inspect.isfunction(value)]
            hint = f"it has {', '.join(functions)}" if functions and inspect.ismodule(found) else None
            raise ConfigError(f"no function `{name}` in `{source}`", hint=hint)
        found = getattr(found, part)
    if not callable(found):
        raise ConfigError(f"`{text}` is no function: {type(found).__name__}")
    return found  # type: ignore[no-any-return]


def _module_of_file(path: str) -> Any:
    if not os.path.isfile(path):
        raise ConfigError(f"no file `{path}`")
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))  # as for a program that is started
    module = importlib.import_module(Path(path).stem)
    if not os.path.samefile(str(module.__file__), path):
        message = f"module `{module.__name__}` is `{module.__file__}`, not `{path}`"
        raise ConfigError(message, hint="give the file another name")
    return module


def _module_of_name(name: str) -> Any:
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if not f"{name}.".startswith(f"{error.name}."):
            raise
        raise ConfigError(f"no module `{name}`", hint="run the command in its folder, or set PYTHONPATH") from error


def name_function(function: Callable[..., Any]) -> str:
    """Returns a name by which another process finds a function.

    Raises:
        ConfigError: it is not at the top of a file.
    """
    name, path = getattr(function, "__qualname__", None), inspect.getsourcefile(inspect.unwrap(function))
    if name is None or path is None or "<" in name:
        message = f"other processes cannot import {function!r}: it is not at the top of a file"
        raise ConfigError(message, hint="move it to the top, or check it in this process (`in_process=True`)")
    return f"{path}:{name}"


# --- one rank ---------------------------------------------------------------------------------------------------


def read_rank(factory: Factory, reading: Reading, rank: int) -> Iterator[tuple[str, Any]]:
    """Yields the events of one rank as they happen.

    Yields:
        ("batch", samples and columns without rows), ("epoch", None) where an iteration has ended, and last one of
        ("end", None): there are no more, ("state", pickled state in base64) and ("stopped", None): the limit was
        reached, and the loader is still in the middle of its work, ("error", words and further lines).
    """
    try:
        yield from _read(factory, reading, rank)
    except TokenloomError as error:
        yield "error", (f"failed: {error.message}", error.hint)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the one that reads words it
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

    def taken() -> tuple[Any, ...]:
        return () if take_state is None else (factory.state(loader, begin.num_batches + num_batches),)

    if reading.stop_after == 0:
        yield _stop(taken())
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
                        time.sleep(_SECONDS_TO_READ_AHEAD)
                    held = taken()
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
                held = taken()
        if held is not None:
            yield _stop(held)
            return
        if is_empty and was_empty:
            break
        if num_batches or not begin.num_batches:  # a state of the end of an epoch may give the rest of it: nothing
            num_iterations += 1
        was_empty = is_empty
    yield "end", None


def _stop(states: tuple[Any, ...]) -> tuple[str, Any]:
    """Returns the last event, with the state if one was taken."""
    if not states:
        return "stopped", None
    try:
        return "state", base64.b64encode(pickle.dumps(states[0])).decode()
    except Exception as error:
        raise ConformanceError(f"the state cannot be pickled: {error}") from error


# --- the process that forks ranks -------------------------------------------------------------------------------


def main(name: str, state_of: str, samples: str, timeout: str) -> None:
    """Serves requests until standard input ends."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what the user's code prints is no answer
    try:
        factory = Factory(
            load_function(name),
            state_of=load_function(state_of) if state_of else None,
            samples=samples if samples in WAYS else load_function(samples),
        )
    except ConfigError as error:
        _answer(answers, "config", (error.message, error.hint))
        return
    except BaseException as error:  # noqa: BLE001 - the one that asked words it
        _answer(answers, *_error_of(error))
        return
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for a rank
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
    """Reads as a rank, records the events, then waits to be killed."""
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
    faulthandler.dump_traceback_later(timeout, file=2)  # where it stands, if it gives nothing for so long
    for kind, value in read_rank(factory, reading, job["rank"]):
        faulthandler.dump_traceback_later(timeout, file=2)
        writer.write(kind, value)
        if kind in ("state", "stopped", "end"):
            wait_to_be_killed(server)


if __name__ == "__main__":
    main(*sys.argv[1:])
