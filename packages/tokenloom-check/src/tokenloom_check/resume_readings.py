"""Reads a loader on many ranks: in this process, in processes that are killed, or in a training program.

A rank sends events, see `read_rank`. A process writes them to a file, which survives a kill, as one JSON line each. A
training program writes its events by calling `record_batch` and `record_checkpoint`.
"""

from __future__ import annotations

import base64
import dataclasses
import datetime
import faulthandler
import gc
import hashlib
import importlib
import inspect
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache
from itertools import accumulate, islice
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from numbers import Number
from operator import attrgetter
from pathlib import Path, PurePath
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID

import numpy as np

from tokenloom.errors import ConfigError, ConformanceError, TokenloomError

# Environment variables of a rank
FILE = "TOKENLOOM_RESUME_RECORD"  # path of its record
FOLDER = "TOKENLOOM_RESUME_FOLDER"  # folder of checkpoints shared by all ranks, initially empty
STOP_AFTER = "TOKENLOOM_RESUME_STOP_AFTER"  # number of batches after which it waits to be killed
STOP_SAMPLES = "TOKENLOOM_RESUME_STOP_SAMPLES"  # number of samples after which it waits to be killed

_ARGUMENTS = ("rank", "world_size", "state", "states", "consumed", "num_batches")  # parameters of a factory
_STATES = {"state", "states"}
_COUNTS = {"consumed", "num_batches"}
_END_OF_EPOCH = object()
_PREFETCH_SECONDS = 0.05  # wait before taking a state, to detect states that count prefetched batches
_POLL_SECONDS = 0.005
_END_SECONDS = 10.0
_TRACEBACK_SECONDS = 1.0
_MAX_LOG_LINES = 12
_MAX_FRAMES = 4
_FINGERPRINT_BYTES = 16
_MOST_LETTERS = 64
_MOST_NUMBERS = 6
_KNOWN_BY_REPR = (Number, str, bytes, bytearray, Enum, datetime.date, datetime.time, datetime.timedelta, PurePath, UUID)

CutSamples: TypeAlias = "str | Callable[[Any], Iterable[Any]]"


class Sample(NamedTuple):
    """One sample of a batch, by its content."""

    fingerprint: str  # 32 hexadecimal digits, equal for samples with equal content
    words: str  # the start of the content, in one line of at most 64 characters


class SampleCutter:
    """Splits batches into samples.

    Args:
        how: a function that takes a batch and returns its samples. "auto": sample i is row i of each column, where
            columns are the arrays, tensors and lists in a mapping, or in a list or tuple of columns of equal length, as
            torch collates them. The items of any other list or tuple are its samples; anything else is one sample.

    Attributes:
        left_out: columns without a row per sample, which the fingerprints do not cover.
    """

    def __init__(self, how: CutSamples = "auto") -> None:
        if isinstance(how, str) and how != "auto":
            raise ConfigError(f"`samples` must be 'auto' or a function, got {how!r}")
        self._how = how
        self.left_out: set[str] = set()

    def samples(self, batch: Any) -> list[Sample]:
        """Returns the samples of a batch, in order; raises ConfigError if a value cannot be hashed."""
        if not isinstance(self._how, str):
            return [_sample(each, f"samples[{number}]") for number, each in enumerate(self._how(batch))]
        if isinstance(batch, (list, tuple)):
            counts = {_num_rows(item) for item in batch}
            if not any(map(_is_array, batch)) or len(counts) > 1 or None in counts:
                return [_sample(each, f"batch[{number}]") for number, each in enumerate(batch)]
        count = _num_rows(batch)
        if count is None:
            return [_sample(batch, "batch")]
        return [_sample(self._row(batch, number, count, ""), "batch") for number in range(count)]

    def _row(self, value: Any, number: int, count: int, name: str) -> Any:
        if isinstance(value, Mapping):
            columns = {key: (column, f"{name}[{key!r}]") for key, column in value.items()}
            kept = {key: pair for key, pair in columns.items() if _has_rows(pair[0], count)}
            self.left_out |= {where for key, (_, where) in columns.items() if key not in kept}
            return {key: self._row(column, number, count, where) for key, (column, where) in kept.items()}
        if isinstance(value, (list, tuple)) and _is_transposed(value, count):
            return [self._row(column, number, count, f"{name}[{place}]") for place, column in enumerate(value)]
        return value[number]


def fingerprint(value: Any, where: str = "value") -> str:
    """Returns a hash of the content of `value`, 32 hexadecimal digits; errors call the value `where`.

    The hash of an array or tensor covers dtype, shape and values, not the device; that of a mapping ignores the order
    of keys; that of a dataclass covers its fields. A list and a tuple of the same items have the same hash. Sets,
    strings, bytes, numbers, dates and None have one, too. Raises ConfigError for other types.
    """
    content = repr(_content(value, where)).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(content, digest_size=_FINGERPRINT_BYTES).hexdigest()


def _sample(value: Any, where: str) -> Sample:
    words = _words(value)
    return Sample(fingerprint(value, where), words if len(words) <= _MOST_LETTERS else f"{words[: _MOST_LETTERS - 1]}…")


def _words(value: Any) -> str:
    """Returns a value as one line."""
    if _is_array(value):
        array, dtype = _array_of(value)
        first = " ".join(map(str, array.reshape(-1)[:_MOST_NUMBERS].tolist()))
        rest = " …" if array.size > _MOST_NUMBERS else ""
        return f"{dtype}[{', '.join(map(str, array.shape))}] {first}{rest}" if array.shape else first
    if isinstance(value, Mapping):
        items = islice(value.items(), _MOST_NUMBERS)
        return f"{{{', '.join(f'{key!r}: {_words(item)}' for key, item in items)}}}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_words, value[:_MOST_NUMBERS]))}]"
    return repr(value[:_MOST_LETTERS] if isinstance(value, (str, bytes)) else value).replace("\n", " ")


def _num_rows(value: Any) -> int | None:
    """Returns the number of rows of a column, or the most frequent one in a mapping or list of columns, or None."""
    if _is_array(value):
        return int(value.shape[0]) if len(value.shape) else None
    if isinstance(value, Mapping):
        counts = Counter(count for column in value.values() if (count := _num_rows(column)) is not None)
        return counts.most_common(1)[0][0] if counts else None
    if isinstance(value, (list, tuple)):
        inner = {_num_rows(item) for item in value if _is_array(item)}
        is_columns = len(inner) == 1 and None not in inner and all(_num_rows(item) in inner for item in value)
        return inner.pop() if is_columns else len(value)
    return None


def _has_rows(value: Any, count: int) -> bool:
    if isinstance(value, Mapping):
        return any(_has_rows(column, count) for column in value.values())
    if isinstance(value, (list, tuple)):
        return len(value) == count or _is_transposed(value, count)
    return _is_array(value) and len(value.shape) > 0 and value.shape[0] == count


def _is_transposed(value: list[Any] | tuple[Any, ...], count: int) -> bool:
    """Returns whether a list contains a column per item, as torch collates lists, instead of a value per row."""
    arrays = any(_is_array(item) and len(item.shape) > 0 for item in value)
    return arrays and all(_has_rows(item, count) for item in value)


def _content(value: Any, where: str) -> Any:
    """Returns the content of a value in lists, tuples, strings and numbers, so that its `repr` is unambiguous."""
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, _KNOWN_BY_REPR) or value is None:
        return type(value).__name__, repr(value)
    if _is_array(value):
        array, dtype = _array_of(value)
        if array.dtype.hasobject:
            return "objects", array.shape, _content(array.reshape(-1).tolist(), where)
        return "array", dtype, array.shape, hashlib.blake2b(array.tobytes(), digest_size=_FINGERPRINT_BYTES).digest()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        keys = sorted(value, key=lambda key: (type(key).__name__, str(key)))
        return "mapping", [(_content(key, where), _content(value[key], f"{where}[{key!r}]")) for key in keys]
    if isinstance(value, (list, tuple)):
        return [_content(item, f"{where}[{number}]") for number, item in enumerate(value)]
    if isinstance(value, (set, frozenset)):
        return "set", sorted(repr(_content(item, where)) for item in value)
    found = f"{type(value).__module__}.{type(value).__qualname__}"
    message = f"`{where}` must contain tensors, arrays, mappings, lists, strings or numbers, got {found}"
    raise ConfigError(message, hint="pass `samples`, a function that returns what to compare of a batch")


def _is_array(value: Any) -> bool:
    torch = sys.modules.get("torch")  # tensors exist only if torch is imported
    return isinstance(value, np.ndarray) or (torch is not None and isinstance(value, torch.Tensor))


def _array_of(value: Any) -> tuple[np.ndarray[Any, Any], str]:
    """Returns the values of an array or tensor in native byte order, and the name of its dtype."""
    if isinstance(value, np.ndarray):
        native = value.dtype.newbyteorder("=")
        return value.astype(native, copy=False), str(native)
    torch: Any = sys.modules["torch"]
    tensor = value.detach().to_dense() if value.layout != torch.strided else value.detach()
    if tensor.dtype == torch.bfloat16 or (tensor.dtype.itemsize == 1 and tensor.dtype.is_floating_point):
        tensor = tensor.float()  # exact; NumPy lacks these dtypes
    return tensor.numpy(force=True), str(value.dtype).removeprefix("torch.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A place in the data at which all ranks start or resume."""

    states: tuple[str, ...] = ()  # pickled states of all ranks in base64; empty at the start
    consumed: int = 0  # number of samples returned by all ranks
    num_batches: int = 0  # number of batches returned by each rank
    epochs: int = 1  # maximum number of epochs left
    folder: str | None = None  # folder of the checkpoints of a program


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One reading by all ranks: each makes a loader and reads it up to a limit."""

    world_size: int  # number of ranks
    begin: Point  # where the ranks start
    stop_after: int | None = None  # maximum number of batches per rank; None for no limit
    num_samples: int | None = None  # minimum number of samples to read, all ranks together; None for no limit
    # when to take the state after `stop_after` batches: "now"; "settled": after a wait in which loaders prefetch;
    # "kept": now, but pickle it after the next batch; "after epoch": at the end of the epoch. None: never
    take_state: str | None = None
    load_twice: bool = False  # first resume another loader from the same state and read from it


class Factory:
    """The user's functions: one makes the loader of a rank, others return its state and samples; see `check_resume`."""

    def __init__(
        self, make: Callable[..., Any], *, state_of: Callable[[Any, int], Any] | None, samples: CutSamples
    ) -> None:
        self._make, self._state_of, self.cutter = make, state_of, SampleCutter(samples)
        parameters = inspect.signature(make).parameters
        takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
        self._taken = {name for name in _ARGUMENTS if takes_all or name in parameters}
        if not self._taken & (_STATES | _COUNTS):
            found = f"{getattr(make, '__name__', type(make).__name__)}{inspect.signature(make)}"
            raise ConfigError(f"the factory must take `state` or `consumed` to resume, got `{found}`")

    def make(self, reading: Reading, rank: int, states: list[Any]) -> Any:
        state, begin = states[rank % len(states)] if states else None, reading.begin
        values = (rank, reading.world_size, state, states, begin.consumed, begin.num_batches)
        given = dict(zip(_ARGUMENTS, values, strict=True))
        return self._make(**{name: given[name] for name in self._taken})

    def state(self, loader: Any, num_batches: int) -> Any:
        """Returns the state of a loader; None if the factory takes only counts."""
        if not self._taken & _STATES:
            return None
        if self._state_of is not None:
            return self._state_of(loader, num_batches)
        is_counted = self._taken & _COUNTS and not hasattr(loader, "state_dict")
        return None if is_counted else loader.state_dict()


def is_function_name(text: str) -> bool:
    """Returns whether a text has the form `path/to/file.py:function` or `package.module:function`."""
    source, _, name = text.rpartition(":")
    return bool(source) and all(part.isidentifier() for part in name.split("."))


def load_function(text: Callable[..., Any] | str) -> Callable[..., Any]:
    """Imports a function named as `path/to/file.py:function` or `package.module:function`; returns a callable as is."""
    if not isinstance(text, str):
        return text
    if not is_function_name(text):
        raise ConfigError(f"expected a function as FILE.py:FUNCTION or MODULE:FUNCTION, got {text!r}")
    module, _, name = text.rpartition(":")
    folder = ""
    if module.endswith(".py"):
        folder, module = os.path.dirname(os.path.abspath(module)), Path(module).stem
    sys.path.insert(0, folder)  # like `python FILE.py` and `python -m MODULE`
    try:
        function: Callable[..., Any] = attrgetter(name)(importlib.import_module(module))
    except (AttributeError, ModuleNotFoundError) as error:
        raise ConfigError(f"cannot import {text!r}: {error}") from error
    return function


def name_function(function: Callable[..., Any] | str) -> str:
    """Returns the name of a module-level function with which `load_function` imports it in another process."""
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
        ("batch", (samples, columns without a row per sample)), or ("epoch", None) at the end of an epoch. The last
            event is ("end", None) if no data is left; ("state", pickled state in base64) or ("stopped", None) if the
            limit is reached; ("error", (message, further lines)) if the loader fails.
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
    """Yields the batches of at most `begin.epochs` epochs, and `_END_OF_EPOCH` after each; two empty epochs end it.

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


GlobalBatch: TypeAlias = Sequence[Sequence[Sample]]
"""One batch of each rank: samples by rank."""


def num_samples_of(batches: Iterable[GlobalBatch]) -> int:
    return sum(len(rank) for batch in batches for rank in batch)


def enough_batches(batches: Sequence[GlobalBatch], num_samples: float) -> Sequence[GlobalBatch]:
    """Returns the shortest prefix of the batches with at least `num_samples` samples, or all batches."""
    totals = [*accumulate((num_samples_of([batch]) for batch in batches), initial=0)]
    return batches[: bisect_left(totals, num_samples)]


class RankFailedError(ConformanceError):
    """A rank raised or died; the hint is a traceback or the end of its log."""


class RankHungError(RankFailedError):
    """A rank sent no event within the timeout."""


class RankEvents:
    """The events that one rank has sent so far."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.batches: list[list[Sample]] = []
        self.num_samples = [0]  # number of samples before each batch, and before the next one
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
            self.num_samples.append(self.num_samples[-1] + len(value[0]))
            self.left_out |= set(value[1])
        elif kind == "epoch":
            self.epoch_ends.append(len(self.batches))
        elif kind == "checkpoint":
            self.checkpoints.append(value)
        else:
            self.last = kind
            self.state = value


def has_enough(ranks: Sequence[RankEvents], reading: Reading) -> bool:
    """Returns whether all ranks have ended, or the batches read by all unfinished ranks have `num_samples` samples."""
    if all(rank.last for rank in ranks):
        return True
    count = min(len(rank.batches) for rank in ranks if rank.last != "end")
    read = sum(rank.num_samples[min(count, len(rank.batches))] for rank in ranks)
    return reading.num_samples is not None and read >= reading.num_samples


class ReadingResult:
    """The batches that all ranks have read in one reading, and the point where it can continue.

    With `num_samples`, the first batches with at least that many samples, of those that all unfinished ranks read.
    """

    def __init__(self, ranks: Sequence[RankEvents], reading: Reading) -> None:
        count = most = max(len(rank.batches) for rank in ranks)
        if reading.num_samples is not None:
            count = min((len(rank.batches) for rank in ranks if rank.last != "end"), default=most)
        batches = [[rank.batches[k] if k < len(rank.batches) else [] for rank in ranks] for k in range(count)]
        enough = float("inf") if reading.num_samples is None else reading.num_samples
        self.batches: Sequence[GlobalBatch] = enough_batches(batches, enough)
        self.epoch_ends = ranks[0].epoch_ends  # number of batches before each end of an epoch, in rank 0
        self.ended = all(rank.last == "end" for rank in ranks)  # all ranks reached the end of their data
        self.left_out: set[str] = set().union(*(rank.left_out for rank in ranks))  # columns without a row per sample
        # Number of batches before each checkpoint of a program.
        self.checkpoints = sorted({mark for rank in ranks for mark in rank.checkpoints})
        self.point: Point | None = None  # where a restart continues; None without a state or a checkpoint
        if all(rank.last == "state" for rank in ranks):
            self.point = replace(
                reading.begin,
                states=tuple(rank.state for rank in ranks),
                consumed=reading.begin.consumed + num_samples_of(self.batches),
                num_batches=reading.begin.num_batches + len(self.batches),
                epochs=max(reading.begin.epochs - len(self.epoch_ends), 1),
            )


class InProcess:
    """Reads all ranks in this process, a batch of each in turn. A kill drops the loader; states are still pickled."""

    def __init__(self, factory: Factory) -> None:
        self._factory = factory

    def run(self, reading: Reading) -> ReadingResult:
        ranks = [RankEvents(rank) for rank in range(reading.world_size)]
        readers = [read_rank(self._factory, reading, rank) for rank in range(reading.world_size)]
        while not has_enough(ranks, reading):
            for rank, reader in zip(ranks, readers, strict=True):
                count = len(rank.batches)
                while not rank.last and len(rank.batches) == count:
                    rank.add(*next(reader))
        return ReadingResult(ranks, reading)

    def close(self) -> None:
        """Does nothing."""


class _RankProcess(RankEvents):
    """A rank in its own process group, with its events in `path`.events and its output in `path`.log."""

    def __init__(self, rank: int, path: str, process: subprocess.Popen[bytes] | int) -> None:
        super().__init__(rank)
        self._path = path
        self._process = process  # a child process, or the id of a fork of the server
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
    text = Path(path).read_text(errors="replace") if os.path.exists(path) else ""
    _, is_hanging, calls = text.rpartition("(most recent call first):\n")
    own = os.path.dirname(__file__)
    frames = [line.strip() for line in calls.splitlines() if line.startswith('  File "/') and own not in line]
    return "\n".join(frames[:_MAX_FRAMES] if is_hanging else text.rstrip().splitlines()[-_MAX_LOG_LINES:]) or None


class Processes(ABC):
    """Reads each rank in a process, and kills it at the end; a batch may take at most `timeout` seconds."""

    def __init__(self, timeout: float) -> None:
        self._files = tempfile.TemporaryDirectory(prefix="tokenloom-resume-")
        self._timeout = timeout

    def close(self) -> None:
        self._files.cleanup()

    @abstractmethod
    def _start(self, reading: Reading, rank: int, path: str, variables: dict[str, str]) -> Any:
        """Starts a rank that writes its events to `path`.events and its output to `path`.log."""

    def run(self, reading: Reading) -> ReadingResult:
        """Starts all ranks, waits until they have read, then kills them and their child processes."""
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
        return ReadingResult(ranks, reading)


def _start(
    command: Sequence[str], log: str, *, env: dict[str, str] | None = None, pass_fds: Sequence[int] = ()
) -> subprocess.Popen[bytes]:
    """Starts a process that leads a group of its own and writes its output to the file `log`."""
    with open(log, "wb") as output:
        return subprocess.Popen(
            command, env=env, pass_fds=pass_fds, stdin=subprocess.DEVNULL, stdout=output, stderr=output, process_group=0
        )


class FactoryProcesses(Processes):
    """Reads the loaders of a factory, in ranks forked from a process that imports the factory once; see `serve`."""

    def __init__(self, name: str, *, state_of: str | None, samples: str, timeout: float) -> None:
        super().__init__(timeout)
        self._name = name
        self._log = os.path.join(self._files.name, "server.log")
        self._connection, theirs = Pipe()
        code = "import sys; from tokenloom_check.resume_readings import serve; serve(*sys.argv[1:])"
        arguments = [str(theirs.fileno()), name, state_of or "", samples, str(timeout)]
        with theirs:
            self._server = _start([sys.executable, "-c", code, *arguments], self._log, pass_fds=[theirs.fileno()])

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


def serve(descriptor: str, name: str, state_of: str, samples: str, timeout: str) -> None:
    """Imports a factory, and forks a rank for each request of the client, which has the last four arguments of `_run`.

    The rank answers with its process id. If a function is unusable, the error answers the first request.
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
    with suppress(EOFError):  # the client ended
        while True:
            request = client.recv()
            if os.fork() == 0:
                try:
                    _run(factory, client, float(timeout), *request)
                finally:
                    os._exit(1)


def _run(
    factory: Factory, client: Connection, timeout: float, reading: Reading, rank: int, path: str, env: dict[str, str]
) -> None:
    """Reads one rank, writes its events to `path`.events and its output to `path`.log, then waits to be killed."""
    server = os.getppid()
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    log = os.open(f"{path}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    client.send(os.getpid())
    client.close()
    faulthandler.enable(file=2)
    os.environ.update(env)
    faulthandler.dump_traceback_later(timeout, file=2)  # prints a traceback if the rank hangs
    for kind, value in read_rank(factory, reading, rank):
        faulthandler.dump_traceback_later(timeout, file=2)
        _write_event(f"{path}.events", kind, value)
        if kind in ("state", "stopped", "end"):
            _wait_to_be_killed(server)


class Program(Processes):
    """Reads ranks of a training program that records its batches and writes its own checkpoints."""

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
        return _start(self._command, f"{path}.log", env=os.environ | variables | given)


Runner: TypeAlias = InProcess | FactoryProcesses | Program


def _write_event(path: str, kind: str, value: Any = None) -> None:
    """Appends an event to a file, as one JSON line."""
    with open(path, "ab") as file:
        file.write(json.dumps([kind, value]).encode() + b"\n")


@cache
class _Recording:
    """The recording of the process `pid`; a forked process starts its own."""

    def __init__(self, pid: int) -> None:
        self.parent = os.getppid()
        self.num_batches = 0
        self.num_samples = 0
        self.cutters: dict[Any, SampleCutter] = {}


def record_batch(batch: Any, *, samples: CutSamples = "auto") -> None:
    """Records a batch that a training program is about to use, for `tokenloom verify-resume PROGRAM`.

    Call it in the process of each rank, in the order of use, before a checkpoint can contain the batch. It does nothing
    unless `verify-resume` started the program. If the rank will be killed after this batch, the call waits for that.

    Args:
        batch: tensors, arrays, mappings, sequences, strings or numbers.
        samples: how to split the batch into samples; see `--samples` of `tokenloom verify-resume`.

    Raises:
        ConfigError: a value of the batch cannot be hashed.
    """
    if FILE not in os.environ:
        return
    recording = _Recording(os.getpid())
    cutter = recording.cutters.setdefault(samples, SampleCutter(samples))
    found = cutter.samples(batch)
    recording.num_batches += 1
    recording.num_samples += len(found)
    _write_event(os.environ[FILE], "batch", (found, sorted(cutter.left_out)))
    limits = ((recording.num_batches, STOP_AFTER), (recording.num_samples, STOP_SAMPLES))
    if any(count >= int(os.environ.get(name, count + 1)) for count, name in limits):
        _write_event(os.environ[FILE], "stopped")
        _wait_to_be_killed(recording.parent)


def record_checkpoint() -> None:
    """Records that a checkpoint is complete, so that a restart continues after the batches recorded so far.

    Call it in one rank or in all, once the last file of the checkpoint has its final name. It does nothing unless
    `tokenloom verify-resume` started the program.
    """
    if FILE in os.environ:
        recording = _Recording(os.getpid())
        _write_event(os.environ[FILE], "checkpoint", recording.num_batches)


def _wait_to_be_killed(parent: int) -> None:
    """Sleeps until this process is killed; exits if the process `parent`, which started it, has ended."""
    while os.getppid() == parent:
        time.sleep(_POLL_SECONDS)
    os._exit(1)
