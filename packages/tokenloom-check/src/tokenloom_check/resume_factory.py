"""A user's factory of loaders, and one rank that reads such a loader: event after event."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import pickle
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from tokenloom.errors import ConfigError, ConformanceError
from tokenloom_check.fingerprints import CutSamples, SampleCutter

ARGUMENTS = ("rank", "world_size", "state", "states", "consumed", "num_batches")
"""What a factory may take, all by name."""

_STATES = {"state", "states"}
_COUNTS = {"consumed", "num_batches"}

_SECONDS_TO_READ_AHEAD = 0.05
"""How long a loader may read ahead before its state is taken: a state that counts what was read ahead is to be seen."""


@runtime_checkable
class HasState(Protocol):
    """A loader that says where it stands, as torchdata's `StatefulDataLoader` does."""

    def state_dict(self) -> Any:
        """Returns the state after the last batch that was handed out."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RankJob:
    """What one rank does: make a loader, and read it up to a point.

    Attributes:
        rank: from 0.
        world_size: number of ranks.
        epochs: how often the loader is iterated at most.
        stop_after: batches to read; None for no such limit.
        num_samples: samples of this rank after which it stops; None for no such limit.
        states: pickled states of all ranks at the point to go on from; none at the start.
        consumed: samples that all ranks had consumed there.
        num_batches: batches that this rank, or one in its place, had been handed out there.
        take_state: "now", and the state is taken after `stop_after` batches; "settled", and it is taken when the loader
            has had time to read ahead; "kept", and it is kept while the loader reads on, and looked at then;
            "after epoch", and it is taken once the iteration has ended there. None takes none.
        load_twice: whether another loader is made of the same state before, and read.
    """

    rank: int
    world_size: int
    epochs: int = 1
    stop_after: int | None = None
    num_samples: int | None = None
    states: tuple[bytes, ...] = ()
    consumed: int = 0
    num_batches: int = 0
    take_state: str | None = None
    load_twice: bool = False


class Factory:
    """A function that makes a loader for a rank, and how its state and its batches are to be read.

    Args:
        make: takes some of `ARGUMENTS` by name, among them one to go on from.
        state_of: the state of a loader from it and the batches that it handed out; by default, its `state_dict`.
        samples: how a batch is cut into samples.

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

    def make(self, job: RankJob, states: list[Any]) -> Any:
        """Returns the loader of a rank."""
        given = {
            "rank": job.rank,
            "world_size": job.world_size,
            "state": states[job.rank % len(states)] if states else None,
            "states": states,
            "consumed": job.consumed,
            "num_batches": job.num_batches,
        }
        return self._make(**{name: value for name, value in given.items() if name in self._taken})

    def state(self, loader: Any, num_batches: int) -> Any:
        """Returns the state of a loader; None if the factory goes on from counts alone.

        Raises:
            ConfigError: the loader has none, and the factory goes on from a state only.
        """
        if not self._taken & _STATES:
            return None
        if self._state_of is not None:
            return self._state_of(loader, num_batches)
        if isinstance(loader, HasState):
            return loader.state_dict()
        if self._taken & _COUNTS:
            return None
        message = f"expected a loader with `state_dict`, as the factory goes on from `state`, found {_name(loader)}"
        raise ConfigError(message, hint="give a function `state_of(loader, num_batches)`, or let it take `consumed`")


def _arguments_of(make: Callable[..., Any]) -> set[str]:
    """Returns the arguments that a factory takes, of those that there are."""
    parameters = inspect.signature(make).parameters.values()
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    taken = {parameter.name for parameter in parameters if parameter.kind in by_name} & set(ARGUMENTS)
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        taken = set(ARGUMENTS)
    more = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    for parameter in parameters:
        is_needed = parameter.default is inspect.Parameter.empty and parameter.kind not in more
        if is_needed and (parameter.name not in ARGUMENTS or parameter.kind not in by_name):
            message = f"expected a factory that needs some of {', '.join(ARGUMENTS)}, by name, found one that needs "
            message += repr(parameter.name)
            raise ConfigError(message, hint="give it a default, or wrap the factory in a function")
    if not taken & (_STATES | _COUNTS):
        message = f"expected a factory that takes `state` or `consumed`, to go on from, found `{_name_of(make)}"
        message += f"{inspect.signature(make)}`"
        raise ConfigError(message)
    return taken


def _name_of(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__name__", type(function).__name__))


def _name(value: Any) -> str:
    return type(value).__name__


def error_words(error: BaseException) -> str:
    """Returns an error in one line, with where it came from."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f", in {os.path.basename(frames[-1].filename)}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}: {error}{where}"


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
        message = f"expected a function such as loaders.py:make_loader or package.module:make_loader, found {text!r}"
        raise ConfigError(message)
    source, _, name = text.rpartition(":")
    found: Any = _module_of_file(source) if source.endswith(".py") or os.sep in source else _module_of_name(source)
    for part in name.split("."):
        if part not in dir(found):
            functions = [word for word, value in vars(found).items() if inspect.isfunction(value)]
            hint = f"it has {', '.join(functions)}" if functions and inspect.ismodule(found) else None
            message = f"expected a function `{name}` in `{source}`, found none"
            raise ConfigError(message, hint=hint)
        found = getattr(found, part)
    if not callable(found):
        message = f"expected a function as `{text}`, found {_name(found)}"
        raise ConfigError(message)
    return found  # type: ignore[no-any-return]


def _module_of_file(path: str) -> Any:
    if not os.path.isfile(path):
        message = f"no file `{path}`"
        raise ConfigError(message)
    name = Path(path).stem
    loaded = sys.modules.get(name)
    if loaded is not None and _is_file(getattr(loaded, "__file__", None), path):
        return loaded
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))  # as for a program that is started
    if loaded is None:
        return importlib.import_module(name)
    spec = importlib.util.spec_from_file_location(f"factory_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _is_file(found: str | None, path: str) -> bool:
    return found is not None and os.path.exists(found) and os.path.samefile(found, path)


def _module_of_name(name: str) -> Any:
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        message = f"no module `{name}`"
        raise ConfigError(message, hint="run the command in its folder, or set PYTHONPATH") from error


def name_function(function: Callable[..., Any]) -> str:
    """Returns a name by which another process finds a function.

    Raises:
        ConfigError: it is not at the top of a file.
    """
    name, path = getattr(function, "__qualname__", None), inspect.getsourcefile(inspect.unwrap(function))
    if name is None or path is None or "<" in name:
        message = f"expected a function at the top of a file, which other processes find, found {function!r}"
        raise ConfigError(message, hint="move it to the top, or check it in this process (`in_process=True`)")
    return f"{path}:{name}"


# --- one rank ---------------------------------------------------------------------------------------------------


def read_rank(factory: Factory, job: RankJob) -> Iterator[tuple[str, Any]]:
    """Yields what happens in one rank, as it happens.

    Yields:
        ("left out", names) where columns without rows were found, ("batch", samples), ("epoch", None) where an
        iteration has ended, and last one of ("end", None): there are no more, ("state", pickled state) and
        ("stopped", None): the limit was reached, and the loader is still in the middle of its work.
    """
    states = [pickle.loads(state) for state in job.states]
    if job.load_twice:
        for _ in zip(range(2), factory.make(job, states), strict=False):
            pass
    loader = factory.make(job, states)
    num_batches = num_samples = num_iterations = 0
    held: Any = None
    if job.stop_after == 0:
        yield _stop(factory.state(loader, job.num_batches) if job.take_state else None, job)
        return
    known: set[str] = set()
    is_held = was_empty = False
    while num_iterations < job.epochs:
        is_empty = True
        for batch in loader:
            is_empty = False
            if is_held:
                yield _stop(held, job)
                return
            samples = factory.cutter.samples(batch)
            num_batches += 1
            num_samples += len(samples)
            if factory.cutter.left_out > known:
                known = set(factory.cutter.left_out)
                yield "left out", sorted(known)
            yield "batch", samples
            if num_batches == job.stop_after and job.take_state != "after epoch":
                if job.take_state == "settled":
                    time.sleep(_SECONDS_TO_READ_AHEAD)
                if job.take_state is not None:
                    held = factory.state(loader, job.num_batches + num_batches)
                if job.take_state != "kept":
                    yield _stop(held, job)
                    return
                is_held = True
            if job.num_samples is not None and num_samples >= job.num_samples:
                yield "stopped", None
                return
        if is_held:
            yield _stop(held, job)
            return
        yield "epoch", None
        if num_batches == job.stop_after:
            yield _stop(factory.state(loader, job.num_batches + num_batches), job)
            return
        if is_empty and was_empty:
            break
        if num_batches or not job.num_batches:  # a state of the end of an epoch may give the rest of it: nothing
            num_iterations += 1
        was_empty = is_empty
    yield "end", None


def _stop(state: Any, job: RankJob) -> tuple[str, Any]:
    if job.take_state is None:
        return "stopped", None
    try:
        return "state", pickle.dumps(state)
    except Exception as error:
        message = f"expected a state that can be saved, found one that cannot be pickled: {error}"
        raise ConformanceError(message) from error
