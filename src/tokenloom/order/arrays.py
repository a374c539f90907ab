"""Orders that are kept as arrays: built once, kept in a cache, and opened with their first use.

The one place that opens, builds, checks and caches. A subclass says what its arrays are, and what they mean.
"""

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
_SHOWN = 4
"""Datasets that one warning names."""


class NotBuiltError(Exception):
    """An index would have to be built where nothing may be."""


@contextmanager
def nothing_is_built() -> Iterator[None]:
    """Within it, arrays that have a place in a cache and are not there raise `NotBuiltError`."""
    token = _building_is_allowed.set(False)
    try:
        yield
    finally:
        _building_is_allowed.reset(token)


def refuse_to_build_now(name: str) -> None:
    """Raises `NotBuiltError` where nothing may be built."""
    if not _building_is_allowed.get():
        raise NotBuiltError(name)


def warn_of_short(text: str) -> None:
    """Warns that a dataset has no samples, or lets the build that is under way say so at its end.

    Args:
        text: names the dataset, and says why.
    """
    gathered = _gathered.get()
    if gathered is None:
        warnings.warn(text, ShortDatasetWarning, stacklevel=level_outside())
    else:
        gathered.append(text)


@contextmanager
def short_together(*, unless: type[BaseException]) -> Iterator[None]:
    """Within it, all datasets that have no samples are one warning, at its end.

    Args:
        unless: the error after which nothing is said, because all is done again.
    """
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
        """Raises where the data are damaged; asked before building, so that an entry of ours says that it was asked."""

    @property
    def identity(self) -> Identity | None:
        """Returns what tells the data from others, beyond what the key of the cache says; None if nothing does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayStore:
    """Where arrays are kept, and under which rules.

    Attributes:
        cache: their files; None to build them in memory only.
        description: the text behind the key of the cache.
        name: name of what is indexed, for messages.
        origin: the data; None for what is not built from any.
        must_exist: never build; what is not in the cache is an error.
        deferred: look for them with the first use only.
        may_stay_unwritten: keep built arrays in memory, with a warning, where the cache cannot be written.
    """

    cache: IndexCache | None
    description: str
    name: str
    origin: DataOrigin | None = None
    must_exist: bool = False
    deferred: bool = False
    may_stay_unwritten: bool = False


class StoredOrder(ABC):
    """An `Order` that is kept as arrays: from a cache where that can be trusted, else built and then cached.

    They are built when this is made, unless that is deferred. What is in the cache is opened, and checked, with the
    first use: a start over thousands of datasets would otherwise open thousands of files. A pickle holds none of what a
    cache has.

    A subclass sets what its methods need before it calls this constructor.

    Args:
        store: where the arrays are kept.

    Raises:
        IndexCacheError: the cache cannot be written, or must exist and does not.
        NotBuiltError: see `nothing_is_built`.
    """

    def __init__(self, store: ArrayStore) -> None:
        self.store = store
        self.opened: Arrays | None = None
        """The arrays, once they were used."""
        self._watch: Watch | None = None
        if not store.deferred and not self._is_cached:
            if store.cache is not None:
                refuse_to_build_now(store.name)
            self.opened = self._open_or_build()

    @abstractmethod
    def specs(self) -> Mapping[str, ArraySpec]:
        """Returns what each array must be, known without building it."""

    @abstractmethod
    def build(self) -> Iterator[tuple[str, NDArray[Any]]]:
        """Yields the arrays as they are done; each is written while the next is built."""

    @abstractmethod
    def misfit(self, arrays: Arrays) -> str | None:
        """Returns why arrays from a cache cannot be these, or None; looks at few of their numbers."""

    @property
    def identity(self) -> str:
        """The text behind the key of the cache."""
        return self.store.description

    @property
    def _is_cached(self) -> bool:
        """Whether the cache has an entry, going by its description; one stat."""
        return self.store.cache is not None and self.store.cache.exists()

    @property
    def is_built(self) -> bool:
        """Whether asking for a sample builds nothing."""
        return self.opened is not None or self._is_cached

    @property
    def arrays(self) -> Arrays:
        """The arrays by name; opens them, or builds them where that was deferred."""
        if self.opened is None:
            self.opened = self._open_or_build()
        return self.opened

    def check(self) -> None:
        """Makes sure that what was read of the arrays is what their files held when they were opened; costs nothing.

        Raises:
            ChangedFileError: one was truncated or overwritten meanwhile, or cannot be read any more.
        """
        if self._watch is None:
            self._watch = Watch(list(self.arrays.values()))
        self._watch.check()

    def verify(self) -> list[str]:
        """Builds the arrays again and returns one sentence for each that differs from the one in use.

        Finds what opening does not: a permutation that is none, any flipped bit. As costly as the first build.
        """
        return list(_differences(self.store.name, self.arrays, self.build()))

    def __getstate__(self) -> dict[str, Any]:
        state = {**self.__dict__, "_watch": None}
        if self._is_cached:
            state["opened"] = None  # to be opened again: a mapped array would be copied into the pickle
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
                identity()  # which makes sure that what was read is what the files hold
            return in_memory
        data = None if identity is None else identity()
        built: Arrays = {}
        try:
            self._build_into(built, cache, identity, data)
        except IndexCacheError as error:
            if not store.may_stay_unwritten:
                raise
            warnings.warn(
                f"the indices of {store.name} are built but not cached, and will be built again: {error.message}; "
                "name a writable folder with `path_to_cache`",
                CacheNotWrittenWarning,
                stacklevel=level_outside(),
            )
            return built or dict(self.build())
        if all(map(is_small, built.values())):  # in memory they would be from the cache, too
            for array in built.values():
                array.flags.writeable = False
            return built
        built.clear()  # before they are there twice
        # Mapped: all processes of a node share one copy. Another one may have built it of other data meanwhile.
        return cache.load(self.specs(), self.misfit, None if data is None else lambda: data)

    def _build_into(
        self, built: Arrays, cache: IndexCache, identity: Identity | None, data: dict[str, Any] | None
    ) -> None:
        """Builds the arrays, and writes the entry of the cache."""
        with IndexCacheWriter(cache, self.store.description, data) as writer:
            for name, array in self._built():
                built[name] = array
                writer.add(name, array)
                del array
            if identity is not None and identity() != data:
                message = f"the data of {self.store.name} changed while its indices were built"
                raise ChangedFileError(message, hint="start again when nobody writes them any more")

    def _built(self) -> Iterator[tuple[str, NDArray[Any]]]:
        """Yields the arrays, as a task."""
        with task(f"indices of {self.store.name}", unit="arrays", total=len(self.specs())) as advance:
            for item in self.build():
                advance()
                yield item
        logger.info("built the indices of %s", self.store.name)


def _differences(name: str, used: Arrays, rebuilt: Iterator[tuple[str, NDArray[Any]]]) -> Iterator[str]:
    """Yields one sentence for each array in use that is not what building it again gives."""
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
