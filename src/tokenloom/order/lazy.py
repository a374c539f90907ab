"""Index arrays that are built once and opened with their first use."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from numpy.typing import NDArray

from tokenloom.kernels import Watch
from tokenloom.order.cache import Arrays, IndexCache, differences

_building_is_allowed = ContextVar("_building_is_allowed", default=True)


class NotBuiltError(Exception):
    """An index would have to be built where nothing may be."""


@contextmanager
def nothing_is_built() -> Iterator[None]:
    """Within it, a dataset whose index has a place in a cache and is not there raises `NotBuiltError`."""
    token = _building_is_allowed.set(False)
    try:
        yield
    finally:
        _building_is_allowed.reset(token)


def refuse_to_build_now(name: str) -> None:
    """Raises `NotBuiltError` where nothing may be built."""
    if not _building_is_allowed.get():
        raise NotBuiltError(name)


class LazyIndices(ABC):
    """A dataset over cached index arrays; a subclass calls `_prepare_indices` when it can build them.

    What is in the cache is opened, and checked, with the first sample: a start over thousands of datasets would
    otherwise open thousands of files.
    """

    _cache: IndexCache | None
    _opened: Arrays | None
    _watch: Watch | None = None

    def _prepare_indices(self, cache: IndexCache | None, *, deferred: bool) -> None:
        """Sees to it that the indices exist, unless that is deferred to the first sample as well."""
        self._cache = cache
        self._opened = None
        if deferred or (cache is not None and cache.exists()):
            return
        if cache is not None:
            refuse_to_build_now(self._name())
        self._opened = self._open_indices()

    @abstractmethod
    def _open_indices(self) -> Arrays:
        """Returns the arrays: from the cache where it can be trusted, else built and then cached."""

    @abstractmethod
    def _build_indices(self) -> Iterator[tuple[str, NDArray[Any]]]:
        """Yields the arrays as they are done."""

    @abstractmethod
    def _name(self) -> str:
        """Returns what is indexed, for messages."""

    @property
    def _indices(self) -> Arrays:
        if self._opened is None:
            self._opened = self._open_indices()
        return self._opened

    def _check_indices(self) -> None:
        """Makes sure that what was read of the indices is what their files held when they were opened; costs nothing.

        Raises:
            ChangedFileError: one was truncated or overwritten meanwhile, or cannot be read any more.
        """
        if self._watch is None:
            self._watch = Watch(list(self._indices.values()))
        self._watch.check()

    def verify_indices(self) -> list[str]:
        """Builds the indices again and returns one sentence for each that differs from the one in use.

        Finds what opening does not: a permutation that is none, any flipped bit. As costly as the first build.
        """
        return differences(self._name(), self._indices, self._build_indices())

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        state.pop("_watch", None)
        if self._cache is not None and self._cache.exists():
            state["_opened"] = None  # to be opened again: a mapped array would be copied into the pickle
        return state
