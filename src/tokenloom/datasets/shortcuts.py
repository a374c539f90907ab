"""Samples by many ways, all with the data that `dataset[k]` shows.

`dataset[k]` is what a dataset gives. `sample`, `batch` and filling given arrays give the same faster, unless the class
of the dataset changed what they skip; `tokenloom.overrides` knows. Then each sample is asked for by itself, or where
that cannot be, it is an error that names the class and the method.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

from tokenloom.datasets.protocols import (
    ArraySamples,
    Batches,
    DigestsTokens,
    FillsBatches,
    FillsRows,
    HasItemHook,
    Positions,
    SometimesBatches,
)
from tokenloom.datasets.tensors import Sample
from tokenloom.errors import ConfigError
from tokenloom.overrides import Remembered, Shortcut, Uncalled, overrides, refuse_uncalled


class SampleShortcut(Shortcut):
    """A fast method of datasets, which some settings forbid as well: `item_hook` of a dataset names these.

    Attributes:
        free: whether it is remembered that nothing is skipped; if not, ask `hook_of`.
    """

    def __init__(self, method: str | None, *, skips: tuple[str, ...], asked_by_hooks: bool = False) -> None:
        super().__init__(method, skips=skips, asked_by_hooks=asked_by_hooks)
        self._free = Remembered((*self.names, "item_hook"), self._is_free)
        self.free: Callable[[Any], bool] = self._free.known

    def hook(self, dataset: Any) -> str | None:
        """Returns what is skipped: a method of a user's class, or a function that was configured; or None."""
        if self.free(dataset):
            return None
        if _may_have_a_hook(dataset):
            hook: str | None = dataset.item_hook
            return self.skipped(dataset) if hook is None else hook
        return None if self._free(dataset) else self.skipped(dataset)

    def _is_free(self, dataset: Any) -> bool:
        return not _may_have_a_hook(dataset) and self.skipped(dataset) is None


_HAS_ITEM_HOOK = Remembered(("item_hook",), lambda dataset: isinstance(dataset, HasItemHook))


def _may_have_a_hook(dataset: Any) -> bool:
    """Whether a dataset says what only `dataset[k]` asks; remembered where a class does, as it is asked per batch."""
    return _HAS_ITEM_HOOK.known(dataset) or _HAS_ITEM_HOOK(dataset) or isinstance(dataset, HasItemHook)


SAMPLE = SampleShortcut("sample", skips=("__getitem__",), asked_by_hooks=True)
"""One sample as arrays."""

BATCH = SampleShortcut("batch", skips=("__getitem__", "sample"))
"""Many samples as arrays."""

FILLS = SampleShortcut("fills_batches", skips=("__getitem__", "sample", "batch"), asked_by_hooks=True)
"""Whether `batch` fills given arrays."""

DIGESTS = SampleShortcut("digests_tokens", skips=("__getitem__", "sample", "batch"), asked_by_hooks=True)
"""Digests of tokens, made while they are filled."""

ROWS = SampleShortcut("fill_rows", skips=("__getitem__", "sample", "batch"))
"""Some rows of given arrays."""

ITEMS = SampleShortcut("__getitems__", skips=("__getitem__", "sample", "batch"))
"""Many samples as `dataset[k]` gives them, for torch's DataLoader."""

OUTLINE = SampleShortcut(None, skips=("__getitem__", "sample", "_query_document_sample_shuffle_indices"))
"""What is said of samples from their spans alone."""

_FOR_THE_ITEM = ("__getitem__", "sample")
_UNCALLED = {
    name: Uncalled("override `sample` or `__getitem__`, which say what a sample is", unless=_FOR_THE_ITEM)
    for name in ("spans", "span_batch")
}


class _Offer:
    """Whether datasets offer a protocol; remembered by class, since `isinstance` takes longer than a small sample."""

    def __init__(self, protocol: type, names: tuple[str, ...], *, unless: Callable[[Any], bool] | None = None) -> None:
        self._protocol = protocol
        self._unless = unless
        self._remembered = Remembered(names, self._find)
        self.known = self._remembered.known
        """Whether it is remembered that a dataset offers it; if not, ask the whole."""

    def __call__(self, dataset: Any) -> bool:
        return self.known(dataset) or self._remembered(dataset) or self._find(dataset)

    def _find(self, dataset: Any) -> bool:
        return isinstance(dataset, self._protocol) and not (self._unless is not None and self._unless(dataset))


def _makes_none(dataset: Any) -> bool:
    return _cuts_itself(dataset) or (isinstance(dataset, SometimesBatches) and not dataset.makes_batches)


def _cuts_itself(dataset: Any) -> bool:
    """Whether `batch` cuts the whole dataset into batches of a size, as that of `datasets.Dataset` does."""
    try:
        return "batch_size" in inspect.signature(dataset.batch).parameters
    except (TypeError, ValueError):  # of native code
        return False


_OFFERS_SAMPLES = _Offer(ArraySamples, ("sample",))
_OFFERS_A_BATCH = _Offer(Batches, ("batch",), unless=_cuts_itself)
_OFFERS_BATCHES = _Offer(Batches, ("batch", "makes_batches"), unless=_makes_none)
_OFFERS_FILLING = _Offer(FillsBatches, ("fills_batches", "allocate_batch"))
_OFFERS_DIGESTS = _Offer(DigestsTokens, ("digests_tokens", "batch"))
_OFFERS_ROWS = _Offer(FillsRows, ("fills_batches", "allocate_batch", "fill_rows"))

_asked: ContextVar[frozenset[int]] = ContextVar("_asked", default=frozenset())


def check_overrides(dataset: Any, uncalled: Mapping[str, Uncalled] | None = None) -> None:
    """Raises if the class of a dataset overrides what would have no effect, or none in `dataset[k]`.

    Args:
        dataset: a dataset of any class.
        uncalled: further hooks of this kind of dataset that nothing calls.

    Raises:
        ConfigError: it does.
    """
    refused = _UNCALLED if uncalled is None else {**_UNCALLED, **uncalled}
    if tuple(refused) not in _checks:
        names = {*refused, *BATCH.names, *ROWS.names, *ITEMS.names}
        _checks[tuple(refused)] = Remembered(names, lambda checked: _has_effect(checked, refused))
    if not _checks[tuple(refused)](dataset):
        _has_effect(dataset, refused)


_checks: dict[tuple[str, ...], Remembered] = {}
"""The classes that were looked at, by what is refused."""


def _has_effect(dataset: Any, refused: Mapping[str, Uncalled]) -> bool:
    refuse_uncalled(dataset, refused)
    for shortcut in (BATCH, ROWS, ITEMS):
        shortcut.skipped(dataset)
    return True


def hook_of(dataset: Any, shortcut: SampleShortcut) -> str | None:
    """Returns what a shortcut would skip: a method of a user's class, or a function that was configured; or None.

    Raises:
        ConfigError: the class overrides the fast method, but not what `dataset[k]` shows.
    """
    return shortcut.hook(dataset)


def refuse_hook(dataset: Any, shortcut: SampleShortcut, purpose: str, *, hint: str) -> None:
    """Raises if a shortcut would skip something and there is no other way.

    Args:
        dataset: a dataset of any class.
        shortcut: shortcut that is needed.
        purpose: what for, for the message.
        hint: what to do instead.

    Raises:
        ConfigError: it would.
    """
    if (hook := hook_of(dataset, shortcut)) is not None:
        message = (
            f"expected samples as tokenloom makes them, for {purpose}, found {type(dataset).__name__} with `{hook}`"
        )
        raise ConfigError(message, hint=hint)


def makes_batches(dataset: Any) -> bool:
    """Whether `batch` of a dataset gives many samples as `dataset[k]` shows them, as arrays with a batch axis."""
    if _OFFERS_BATCHES.known(dataset) and BATCH.free(dataset):
        return True
    return _OFFERS_BATCHES(dataset) and hook_of(dataset, BATCH) is None


def fills_batches(dataset: Any) -> bool:
    """Whether a dataset fills given arrays, with what `dataset[k]` shows: `allocate_batch`, and `batch` with `out`."""
    return _OFFERS_FILLING(dataset) and dataset.fills_batches and hook_of(dataset, FILLS) is None


def digests_tokens(dataset: Any) -> bool:
    """Whether a dataset gives digests of the tokens that `dataset[k]` shows: `batch` with `digests`."""
    return _OFFERS_DIGESTS(dataset) and dataset.digests_tokens and hook_of(dataset, DIGESTS) is None


def batch_of(dataset: Any, positions: Positions) -> Sample:
    """Returns samples as NumPy arrays with a batch axis, as `dataset.batch` does, but always those of `dataset[k]`.

    Raises:
        ConfigError: the samples have no batch axis: they differ in names or shapes.
    """
    if must_be_asked(dataset):
        return stack(ask_each(dataset, positions), name=type(dataset).__name__)
    batch: Sample = dataset.batch(positions)
    return batch


def must_be_asked(dataset: Any) -> bool:
    """Whether a dataset has no `batch`, or none that gives what `dataset[k]` shows."""
    if _OFFERS_A_BATCH.known(dataset) and BATCH.free(dataset):
        return False
    return not _OFFERS_A_BATCH(dataset) or hook_of(dataset, BATCH) is not None


def fills_rows(dataset: Any) -> bool:
    """Whether a dataset fills rows of given arrays, with what `dataset[k]` shows: `fill_rows`."""
    if _OFFERS_ROWS.known(dataset) and ROWS.free(dataset):
        return bool(dataset.fills_batches)
    return _OFFERS_ROWS(dataset) and dataset.fills_batches and hook_of(dataset, ROWS) is None


def sample_of(dataset: Any, position: int) -> Sample:
    """Returns a sample as NumPy arrays, as `dataset.sample` does, but always that of `dataset[k]`."""
    if not _OFFERS_SAMPLES(dataset) or hook_of(dataset, SAMPLE) is not None:
        return as_arrays(ask_each(dataset, (position,))[0])
    sample: Sample = dataset.sample(position)
    return sample


def must_ask(dataset: Any, shortcut: SampleShortcut) -> bool:
    """Whether a fast method that was called has to ask `dataset[k]` instead.

    Not where the class has a method of its own over it, which called it; nor within its `__getitem__`, which may be
    built on it.
    """
    return (
        hook_of(dataset, shortcut) is not None
        and not overrides(dataset, str(shortcut.method))
        and not _is_within_item(dataset)
    )


def ask_each(dataset: Any, positions: Positions) -> list[Any]:
    """Returns what `dataset[k]` gives at some positions.

    Raises:
        ConfigError: it is asked for by itself, without end.
    """
    with _asking(dataset):
        return [dataset[position] for position in positions]


@contextmanager
def _asking(dataset: Any) -> Iterator[None]:
    before = _asked.get()
    if id(dataset) in before:
        message = f"`{type(dataset).__name__}.__getitem__` asks for samples in a way that asks it again"
        raise ConfigError(message, hint="build it on `super().__getitem__(idx)`")
    token = _asked.set(before | {id(dataset)})
    try:
        yield
    finally:
        _asked.reset(token)


def _is_within_item(dataset: Any) -> bool:
    """Whether this is called from a `__getitem__` of the dataset, however deep; only classes that override it ask."""
    frame = sys._getframe(1)
    while (caller := frame.f_back) is not None:
        frame = caller
        code = frame.f_code
        if code.co_name == "__getitem__" and code.co_argcount and frame.f_locals.get(code.co_varnames[0]) is dataset:
            return True
    return False


def as_arrays(sample: Mapping[str, Any]) -> Sample:
    """Returns what `dataset[k]` gives as NumPy arrays, which share the memory of tensors."""
    return {name: value.numpy() if hasattr(value, "numpy") else np.asarray(value) for name, value in sample.items()}


def stack(samples: Sequence[Any], *, name: str) -> Sample:
    """Returns samples as NumPy arrays with a batch axis.

    Args:
        samples: samples as `dataset[k]` gives them.
        name: name of the class, for messages.

    Raises:
        ConfigError: they are no dicts, or differ in names or shapes.
    """
    if not all(isinstance(sample, Mapping) for sample in samples):
        message = f"expected samples with named arrays of {name}, found {type(samples[0]).__name__}"
        raise ConfigError(message, hint="take them one by one")
    arrays = [as_arrays(sample) for sample in samples]
    for other in arrays[1:]:
        if other.keys() != arrays[0].keys() or any(other[key].shape != arrays[0][key].shape for key in other):
            message = f"samples of {name} differ in names or shapes and make no batch of arrays"
            raise ConfigError(message, hint="take them one by one")
    return {key: np.stack([sample[key] for sample in arrays]) for key in (arrays[0] if arrays else ())}
