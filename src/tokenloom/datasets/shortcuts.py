"""Samples by many ways, all with the data that `dataset[k]` shows.

`dataset[k]` is what a dataset gives. `sample`, `batch` and filling given arrays give the same faster, unless the class
of the dataset overrides what they skip, which a dataset of ours finds out when it is made or unpickled. Then each
sample is asked for by itself, or where that cannot be, it is an error that names the class and the method.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from tokenloom.datasets.protocols import Positions
from tokenloom.datasets.tensors import Sample
from tokenloom.errors import ConfigError
from tokenloom.forks import cached_property
from tokenloom.overrides import Overrides, Uncalled

QUERY = "_query_document_sample_shuffle_indices"
"""The reference's hook for the text of a sample."""

_ONE = ("__getitem__", "sample")
_MANY = (*_ONE, "batch")
_SKIPPED = {"sample": ("__getitem__",), "batch": _ONE, "outline": (*_ONE, QUERY)}
"""The hooks that a fast way to samples does not ask; `_MANY` where it is not named."""

_UNCALLED = {
    name: Uncalled("override `sample` or `__getitem__`, which say what a sample is", unless=_ONE)
    for name in ("spans", "span_batch")
}
UNCALLED_BY_ITEM = Uncalled("change what `super().__getitem__(idx)` gives, in a `__getitem__`", unless=(*_ONE, QUERY))
"""A hook by which the reference makes a sample, and nothing here."""

_HOOKS = (*_MANY, "fill_rows", "fills_batches", "digests_tokens", "__getitems__", QUERY, *_UNCALLED)


class HasHooks:
    """A dataset of ours, which finds out when it is made or unpickled what its class overrides."""

    uncalled_hooks: ClassVar[Mapping[str, Uncalled]] = {}
    """Methods of the reference that nothing calls here: a class that overrides one is refused."""

    if TYPE_CHECKING:

        @property
        def item_hook(self) -> str | None:
            """What of the settings, or of what was assigned, only `dataset[k]` asks."""

    else:
        item_hook = None  # which is asked for with every batch

    @cached_property
    def _overrides(self) -> Overrides:
        return Overrides.of(self, (*_HOOKS, *self.uncalled_hooks))

    def _check_overrides(self) -> None:
        """Refuses a class that overrides what would have no effect, or none in `dataset[k]`; part of making it."""
        if not self._overrides.found:
            return
        self._overrides.refuse_uncalled({**_UNCALLED, **self.uncalled_hooks})
        for method in ("batch", "fill_rows", "__getitems__"):
            self._overrides.refuse_alone(method, *_SKIPPED.get(method, _MANY))

    def _must_ask(self, method: str) -> bool:
        """Whether a fast method that was called has to ask `dataset[k]` instead.

        Not where the class has a method of its own over it, which called it; nor within its `__getitem__`, which may be
        built on it.
        """
        found = self._overrides.found
        if not found and self.item_hook is None:
            return False
        return hook_of(self, method) is not None and method not in found and not is_within_item(self)

    def _items(self, positions: Positions) -> list[Any]:
        """Returns what `dataset[k]` gives at some positions."""
        dataset: Any = self
        return [dataset[position] for position in positions]

    def __getstate__(self) -> dict[str, Any]:
        """Returns what is pickled: all but what is worked out again, by `cached_property`."""
        cls = type(self)
        return {
            name: value
            for name, value in self.__dict__.items()
            if not isinstance(getattr(cls, name, None), cached_property)
        }


def overrides_of(dataset: Any) -> Overrides:
    """Returns what a dataset found out when it was made, or looks for it in one that is not of ours."""
    held = getattr(dataset, "_overrides", None)
    if type(held) is Overrides and held.cls is type(dataset):  # not that of a dataset within
        return held
    return Overrides.of(dataset, _HOOKS)


def hook_of(dataset: Any, method: str) -> str | None:
    """Returns what a fast way would skip: a method of a user's class, or what `item_hook` names; or None.

    Args:
        dataset: a dataset of any class.
        method: "sample", "batch", "fill_rows", "fills_batches", "digests_tokens" or "__getitems__"; "outline" for what
            is said of samples from their spans alone.
    """
    hook: str | None = getattr(dataset, "item_hook", None)
    own = overrides_of(dataset)
    return own.skipped(method, *_SKIPPED.get(method, _MANY)) if own.found and hook is None else hook


def check_hooks(dataset: Any, method: str, purpose: str = "filling given arrays") -> None:
    """Raises if a fast way would skip a hook, where `dataset[k]` cannot be asked instead."""
    if (hook := hook_of(dataset, method)) is not None:
        found = f"{type(dataset).__name__} with `{hook}`"
        message = f"expected samples as tokenloom makes them, for {purpose}, found {found}"
        hint = "count what `dataset[k]` gives" if method == "outline" else "ask for batches without `out`"
        raise ConfigError(message, hint=hint)


def makes_batches(dataset: Any) -> bool:
    """Whether `batch` of a dataset gives many samples as `dataset[k]` shows them, as arrays with a batch axis."""
    return bool(getattr(dataset, "makes_batches", True)) and not must_be_asked(dataset)


def fills_batches(dataset: Any) -> bool:
    """Whether a dataset fills given arrays, with what `dataset[k]` shows: `allocate_batch`, and `batch` with `out`."""
    fills = hasattr(dataset, "allocate_batch") and bool(getattr(dataset, "fills_batches", False))
    return fills and hook_of(dataset, "fills_batches") is None


def digests_tokens(dataset: Any) -> bool:
    """Whether a dataset gives digests of the tokens that `dataset[k]` shows: `batch` with `digests`."""
    return bool(getattr(dataset, "digests_tokens", False)) and hook_of(dataset, "digests_tokens") is None


def fills_rows(dataset: Any) -> bool:
    """Whether a dataset fills rows of given arrays, with what `dataset[k]` shows: `fill_rows`."""
    fills = hasattr(dataset, "fill_rows") and bool(getattr(dataset, "fills_batches", False))
    return fills and hook_of(dataset, "fill_rows") is None


def must_be_asked(dataset: Any) -> bool:
    """Whether a dataset has no `batch` of samples, or none that gives what `dataset[k]` shows."""
    if getattr(dataset, "item_hook", None) is not None or not hasattr(dataset, "batch"):
        return True
    own = overrides_of(dataset)
    return bool(own.found) and (own.skipped("batch", *_ONE) is not None or _cuts_itself(dataset.batch))


def _cuts_itself(batch: Any) -> bool:
    """Whether `batch` cuts the whole dataset into batches of a size, as that of `datasets.Dataset` does."""
    try:
        return "batch_size" in inspect.signature(batch).parameters
    except (TypeError, ValueError):  # of native code
        return False


def batch_of(dataset: Any, positions: Positions) -> Sample:
    """Returns samples as NumPy arrays with a batch axis, as `dataset.batch` does, but always those of `dataset[k]`."""
    if must_be_asked(dataset):
        return stack([dataset[position] for position in positions], name=type(dataset).__name__)
    batch: Sample = dataset.batch(positions)
    return batch


def sample_of(dataset: Any, position: int) -> Sample:
    """Returns a sample as NumPy arrays, as `dataset.sample` does, but always that of `dataset[k]`."""
    sample: Callable[[int], Sample] | None = getattr(dataset, "sample", None)
    if sample is None or (overrides_of(dataset).found and hook_of(dataset, "sample") is not None):
        return as_arrays(dataset[position])
    return sample(position)  # which asks for the item itself where settings say so


def is_within_item(dataset: Any) -> bool:
    """Whether this is called from `__getitem__` of the dataset, however deep; only classes that override it ask."""
    item = getattr(type(dataset).__getitem__, "__code__", None)
    frame = sys._getframe(1)
    while (caller := frame.f_back) is not None:
        frame = caller
        code = frame.f_code
        is_item = code is item or code.co_name == "__getitem__"
        if is_item and code.co_argcount and frame.f_locals.get(code.co_varnames[0]) is dataset:
            return True
    return False


def as_arrays(sample: Mapping[str, Any]) -> Sample:
    """Returns what `dataset[k]` gives as NumPy arrays, which share the memory of tensors."""
    return {name: value.numpy() if hasattr(value, "numpy") else np.asarray(value) for name, value in sample.items()}


def stack(samples: Sequence[Any], *, name: str) -> Sample:
    """Returns samples as NumPy arrays with a batch axis."""
    if not all(isinstance(sample, Mapping) for sample in samples):
        message = f"expected samples with named arrays of {name}, found {type(samples[0]).__name__}"
        raise ConfigError(message, hint="take them one by one")
    arrays = [as_arrays(sample) for sample in samples]
    for other in arrays[1:]:
        if other.keys() != arrays[0].keys() or any(other[key].shape != arrays[0][key].shape for key in other):
            message = f"samples of {name} differ in names or shapes and make no batch of arrays"
            raise ConfigError(message, hint="take them one by one")
    return {key: np.stack([sample[key] for sample in arrays]) for key in (arrays[0] if arrays else ())}
