"""Orders stored as arrays: built once, cached, and opened on first use. Subclasses define the arrays."""

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
_gathered: ContextVar[list[str] | None] = ContextVar("gathered", default=None)
_SHOWN = 4  # datasets that one warning names


class NotBuiltError(Exception):
    """An index is missing where nothing may be built."""


@contextmanager
def nothing_is_built() -> Iterator[None]:
    """Makes arrays that are missing from their cache raise `NotBuiltError`."""
    token = _building_is_allowed.set(False)
    try:
        yield
    finally:
        _building_is_allowed.reset(token)


def refuse_to_build_now(name: str) -> None:
    """Raises `NotBuiltError` within `nothing_is_built`."""
    if not _building_is_allowed.get():
        raise NotBuiltError(name)


def warn_of_short(text: str) -> None:
    """Warns that a dataset has no samples, at the end of the current build if there is one; `text` says why."""
    gathered = _gathered.get()
    if gathered is None:
        warnings.warn(text, ShortDatasetWarning, stacklevel=level_outside())
    else:
        gathered.append(text)


@contextmanager
def short_together(*, unless: type[BaseException]) -> Iterator[None]:
    """Joins the warnings of `warn_of_short` into one, at its end; none after the error `unless`."""
    texts: list[str] = []
    token = _gathered.set(texts)
    try:
        yield
    except unless:
        texts.clear()
        raise
    finally:
        _gathered.reset(token)
        if texts:
            shown = [*texts[:_SHOWN], *([f"and {len(texts) - _SHOWN:,} more"] if len(texts) > _SHOWN else [])]
            message = f"{len(texts):,} datasets have no samples: {'; '.join(shown)}" if len(texts) > 1 else texts[0]
            warnings.warn(message, ShortDatasetWarning, stacklevel=level_outside())


class DataOrigin(Protocol):
    """The data that arrays are built from."""

    def check(self) -> None:
        """Raises if the data are damaged; called before building."""

    @property
    def identity(self) -> Identity | None:
        """Identifies the data beyond the key of the cache; None if nothing does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayStore:
    """Where arrays are stored, and how.

    Attributes:
        cache: their files; None for memory only.
        description: the text behind the key of the cache.
        name: name of the dataset, for messages.
        origin: the data; None for arrays that are not built from data.
        must_exist: never build; an array missing from the cache is an error.
        deferred: open or build on first use only.
        may_stay_unwritten: keep built arrays in memory, with a warning, if the cache cannot be written.
    """

    cache: IndexCache | None
    description: str
    name: str
    origin: DataOrigin | None = None
    must_exist: bool = False
    deferred: bool = False
    may_stay_unwritten: bool = False


class StoredOrder(ABC):
    """An `Order` stored as arrays: from a trusted cache, else built and then cached.

    Missing arrays are built by the constructor, unless deferred. Cached ones are opened and checked on first use, as a
    start over thousands of datasets would otherwise open thousands of files. A pickle has no arrays of a cache.

    A subclass sets the attributes of its methods before it calls this constructor.

    Raises:
        IndexCacheError: the cache cannot be written, or must exist and does not.
        NotBuiltError: see `nothing_is_built`.
    """

    def __init__(self, store: ArrayStore) -> None:
        self.store = store
        self.opened: Arrays | None = None
        self._watch: Watch | None = None
        if not store.deferred and not self._is_cached:
            if store.cache is not None:
                refuse_to_build_now(store.name)
            self.opened = self._open_or_build()

    @abstractmethod
    def specs(self) -> Mapping[str, ArraySpec]:
        """Returns the dtype and shape of each array, without building it."""

    @abstractmethod
    def build(self) -> Iterator[tuple[str, NDArray[Any]]]:
        """Yields the arrays; each is written while the next is built."""

    @abstractmethod
    def misfit(self, arrays: Arrays) -> str | None:
        """Returns why arrays from a cache do not fit, or None, from a few of their numbers."""

    @property
    def identity(self) -> str:
        """The text behind the key of the cache."""
        return self.store.description

    @property
    def _is_cached(self) -> bool:
        return self.store.cache is not None and self.store.cache.exists()

    @property
    def is_built(self) -> bool:
        """Whether reading a sample builds nothing."""
        return self.opened is not None or self._is_cached

    @property
    def arrays(self) -> Arrays:
        """The arrays by name; opens or builds them on first use."""
        if self.opened is None:
            self.opened = self._open_or_build()
        return self.opened

    def check(self) -> None:
        """Checks that files are as they were when opened, at no cost.

        Raises:
            ChangedFileError: one was truncated or overwritten, or cannot be read any more.
        """
        if self._watch is None:
            self._watch = Watch(list(self.arrays.values()))
        self._watch.check()

    def verify(self) -> list[str]:
        """Rebuilds the arrays, and returns a sentence for each that differs from the one in use, by any bit."""
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
            return cache.load(self.specs(), self.misfit, identity)
        if cache is not None and (found := cache.lookup(self.specs(), self.misfit, identity)) is not None:
            logger.info("loaded the indices of %s from %s", store.name, cache.folder)
            return found
        if origin is not None:
            origin.check()
        if cache is None:
            in_memory = dict(self._built())
            if identity is not None:
                identity()  # checks that the files did not change
            return in_memory
        data = None if identity is None else identity()
        built: Arrays = {}
        try:
            self._build_into(built, cache, identity, data)
        except IndexCacheError as error:
            if not store.may_stay_unwritten:
                raise
            message = f"the indices of {store.name} are built but not cached, and will be built again: {error.message}"
            message += "; name a writable folder with `path_to_cache`"
            warnings.warn(message, CacheNotWrittenWarning, stacklevel=level_outside())
            return built or dict(self.build())
        if all(map(is_small, built.values())):  # the cache would give them in memory, too
            for array in built.values():
                array.flags.writeable = False
            return built
        built.clear()  # before they are there twice
        # Mapped: all processes of a node share one copy. Another one may have built it from other data meanwhile.
        return cache.load(self.specs(), self.misfit, None if data is None else lambda: data)

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
                raise ChangedFileError(message, hint="start again when no process writes them")

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
