"""The base class of orders that are stored as arrays: built once, cached, and opened on first use."""

from __future__ import annotations

import logging
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import CacheNotWrittenWarning, ChangedFileError, IndexCacheError, ShortDatasetWarning
from tokenloom.kernels.storage import Watch
from tokenloom.order.cache import Arrays, ArraySpec, Identity, IndexCache, IndexCacheWriter, is_small
from tokenloom.overrides import level_outside
from tokenloom.progress import task

logger: logging.Logger = logging.getLogger(__name__)

_building_is_allowed = ContextVar("_building_is_allowed", default=True)
_collected: ContextVar[list[str] | None] = ContextVar("collected", default=None)
_SHOWN = 4  # maximum number of datasets that one warning names


class NotBuiltError(Exception):
    """An index is missing while `forbid_building` is active."""


@contextmanager
def forbid_building() -> Iterator[None]:
    """A context in which building an array that is missing from the cache raises `NotBuiltError`."""
    token = _building_is_allowed.set(False)
    try:
        yield
    finally:
        _building_is_allowed.reset(token)


def check_may_build(name: str) -> None:
    """Raises `NotBuiltError` if `forbid_building` is active."""
    if not _building_is_allowed.get():
        raise NotBuiltError(name)


def warn_short(text: str) -> None:
    """Warns with `text` that a dataset has no samples: now, or at the end of a `join_short_warnings` context."""
    collected = _collected.get()
    if collected is None:
        warnings.warn(text, ShortDatasetWarning, stacklevel=level_outside())
    else:
        collected.append(text)


@contextmanager
def join_short_warnings(*, unless: type[BaseException]) -> Iterator[None]:
    """A context that warns once, at its end, for all calls of `warn_short`; if `unless` is raised, it does not warn."""
    texts: list[str] = []
    token = _collected.set(texts)
    try:
        yield
    except unless:
        texts.clear()
        raise
    finally:
        _collected.reset(token)
        if texts:
            shown = [*texts[:_SHOWN], *([f"and {len(texts) - _SHOWN:,} more"] if len(texts) > _SHOWN else [])]
            message = f"{len(texts):,} datasets have no samples: {'; '.join(shown)}" if len(texts) > 1 else texts[0]
            warnings.warn(message, ShortDatasetWarning, stacklevel=level_outside())


class DataOrigin(Protocol):
    """The data from which arrays are built."""

    def check(self) -> None:
        """Raises if the data are damaged; called before arrays are built."""

    @property
    def identity(self) -> Identity | None:
        """A function that returns the identity of the data; or None, if the cache key alone identifies the data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayStore:
    """Where and how the arrays of one order are stored.

    Attributes:
        cache: the cache entry; None keeps arrays in memory only.
        description: text from which the cache key is computed.
        name: name of the dataset, for messages.
        origin: the data from which arrays are built; None if they are not built from data.
        must_exist: whether to raise instead of building arrays that are missing from the cache.
        deferred: whether to build missing arrays on first use instead of at once.
        may_stay_unwritten: if the cache is not writable, whether to warn and keep arrays in memory instead of raising.
    """

    cache: IndexCache | None
    description: str
    name: str
    origin: DataOrigin | None = None
    must_exist: bool = False
    deferred: bool = False
    may_stay_unwritten: bool = False


class StoredOrder(ABC):
    """The base class of an `Order` that is stored as arrays, in a cache or in memory.

    The constructor builds missing arrays if not `store.deferred`. Cached arrays are opened and validated on first use,
    so that a start over thousands of datasets does not open thousands of files. Pickles do not contain cached arrays.

    A subclass must set its own attributes before calling this constructor, which calls methods of the subclass.

    Raises:
        IndexCacheError: the cache cannot be written, or arrays are missing although `store.must_exist` is set.
        NotBuiltError: `forbid_building` is active and an array is missing.
    """

    def __init__(self, store: ArrayStore) -> None:
        self.store = store
        self.opened: Arrays | None = None
        self._watch: Watch | None = None
        if not store.deferred and not self._is_cached:
            if store.cache is not None:
                check_may_build(store.name)
            self.opened = self._open_or_build()

    @abstractmethod
    def specs(self) -> Mapping[str, ArraySpec]:
        """Returns the dtype and shape of each array, without building arrays."""

    @abstractmethod
    def build(self) -> Iterator[tuple[str, NDArray[Any]]]:
        """Yields (name, array) pairs; each array is written to the cache while the next one is built."""

    @abstractmethod
    def mismatch(self, arrays: Arrays) -> str | None:
        """Returns the reason if cached arrays do not match the data, else None; checks only a few elements."""

    @property
    def identity(self) -> str:
        """The text from which the cache key is computed."""
        return self.store.description

    @property
    def _is_cached(self) -> bool:
        return self.store.cache is not None and self.store.cache.exists()

    @property
    def is_built(self) -> bool:
        """Whether samples can be read without first building arrays."""
        return self.opened is not None or self._is_cached

    @property
    def arrays(self) -> Arrays:
        """{name: array}; opens or builds the arrays on first use."""
        if self.opened is None:
            self.opened = self._open_or_build()
        return self.opened

    def check(self) -> None:
        """Raises ChangedFileError if a file was truncated or overwritten since it was opened; cheap."""
        if self._watch is None:
            self._watch = Watch(list(self.arrays.values()))
        self._watch.check()

    def verify(self) -> list[str]:
        """Rebuilds the arrays; returns one sentence for each array in use that differs from its rebuilt copy."""
        return list(_differences(self.store.name, self.arrays, self.build()))

    def __getstate__(self) -> dict[str, Any]:
        state = {**self.__dict__, "_watch": None}
        if self._is_cached:
            state["opened"] = None  # a mapped array would be copied into the pickle
        return state

    def _open_or_build(self) -> Arrays:
        store, cache, origin = self.store, self.store.cache, self.store.origin
        identity = None if origin is None else origin.identity
        if cache is not None and store.must_exist:
            return cache.load(self.specs(), self.mismatch, identity)
        if cache is not None and (found := cache.lookup(self.specs(), self.mismatch, identity)) is not None:
            logger.info("loaded the indices of %s from %s", store.name, cache.folder)
            return found
        if origin is not None:
            origin.check()
        if cache is None:
            in_memory = dict(self._built())
            if identity is not None:
                identity()  # raises if files changed during the build
            return in_memory
        data = None if identity is None else identity()
        built: Arrays = {}
        try:
            self._build_into(built, cache, identity, data)
        except IndexCacheError as error:
            if not store.may_stay_unwritten:
                raise
            message = f"the indices of {store.name} cannot be cached, so every start builds them: {error.message}"
            message += "; set `path_to_cache` to a writable folder"
            warnings.warn(message, CacheNotWrittenWarning, stacklevel=level_outside())
            return built or dict(self.build())
        if all(map(is_small, built.values())):  # `load` would also return copies of small arrays
            for array in built.values():
                array.flags.writeable = False
            return built
        built.clear()  # frees the memory before the files are mapped
        # Map the files, so that all processes of a node share one copy. Check the identity again: another process may
        # have replaced the files with arrays of other data.
        return cache.load(self.specs(), self.mismatch, None if data is None else lambda: data)

    def _build_into(
        self, built: Arrays, cache: IndexCache, identity: Identity | None, data: dict[str, Any] | None
    ) -> None:
        with IndexCacheWriter(cache, self.store.description, data) as writer:
            for name, array in self._built():
                built[name] = array
                writer.add(name, array)
                del array
            if identity is not None and identity() != data:
                message = f"the data of {self.store.name} changed while its indices were built"
                raise ChangedFileError(message, hint="start again when no process is writing the data")

    def _built(self) -> Iterator[tuple[str, NDArray[Any]]]:
        with task(f"indices of {self.store.name}", unit="arrays", total=len(self.specs())) as advance:
            for item in self.build():
                advance()
                yield item
        logger.info("built the indices of %s", self.store.name)


def _differences(name: str, used: Arrays, rebuilt: Iterator[tuple[str, NDArray[Any]]]) -> Iterator[str]:
    for array_name, expected in rebuilt:
        if used[array_name].shape != expected.shape:
            lengths = f"expected {len(expected)} rows, found {len(used[array_name])}"
            yield f"the {array_name} of {name} has another length: {lengths}"
            continue
        if not expected.size:
            continue
        unequal = np.flatnonzero((used[array_name] != expected).reshape(len(expected), -1).any(axis=1))
        if len(unequal):
            row = int(unequal[0])
            yield (
                f"the {array_name} of {name} differs in {len(unequal)} rows: expected {expected[row].tolist()} in row "
                f"{row}, found {used[array_name][row].tolist()}"
            )
