"""Keeps `sample`, `batch` and `fill_rows` equal to `dataset[k]` when a user's class overrides methods.

The fast methods do not call `__getitem__`. A dataset finds the overrides of its class when it is created or unpickled.
If the class overrides a method that a fast method skips, the fast method calls `dataset[k]` for each sample, or raises
an error that names the class and the method.
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

QUERY = "_query_document_sample_shuffle_indices"  # the reference's method that returns the text of a sample

_ONE = ("__getitem__", "sample")
_MANY = (*_ONE, "batch")
_SKIPPED = {"sample": ("__getitem__",), "batch": _ONE, "outline": (*_ONE, QUERY)}
"""{fast method: methods that define samples and that the fast method skips}; `_MANY` for other fast methods."""

_BY_SAMPLE = Uncalled("override `sample` or `__getitem__`, which define a sample", unless=_ONE)
_UNCALLED = {"spans": _BY_SAMPLE, "span_batch": _BY_SAMPLE}
UNCALLED_BY_ITEM = Uncalled("override `__getitem__` and change the result of `super()`", unless=(*_ONE, QUERY))
"""Describes a method that the reference calls to make a sample, but that tokenloom does not call."""

_HOOKS = (*_MANY, "fill_rows", "fills_batches", "digests_tokens", "__getitems__", QUERY, *_UNCALLED)


class HasHooks:
    """A mix-in for datasets that finds overridden methods when a dataset is created or unpickled."""

    uncalled_hooks: ClassVar[Mapping[str, Uncalled]] = {}
    """Methods that only the reference calls; creating a dataset of a class that overrides one of them raises."""

    if TYPE_CHECKING:

        @property
        def item_hook(self) -> str | None:
            """Name of a function that changes samples and that only `dataset[k]` calls; None if there is none."""

    else:
        item_hook = None  # a class attribute is faster, and every batch reads it

    @cached_property
    def _overrides(self) -> Overrides:
        return Overrides.of(self, (*_HOOKS, *self.uncalled_hooks))

    def _check_overrides(self) -> None:
        """Raises if the class overrides a method that is never called, or only a fast method such as `batch`."""
        if not self._overrides.found:
            return
        self._overrides.refuse_uncalled({**_UNCALLED, **self.uncalled_hooks})
        for method in ("batch", "fill_rows", "__getitems__"):
            self._overrides.refuse_alone(method, *_SKIPPED.get(method, _MANY))

    def _needs_items(self, method: str) -> bool:
        """Returns whether the fast method `method` must call `dataset[k]` for each sample, to respect an override."""
        found = self._overrides.found
        if not found and self.item_hook is None:
            return False
        return hook_of(self, method) is not None and method not in found and not called_from_item(self)

    def _items(self, positions: Positions) -> list[Any]:
        dataset: Any = self
        return [dataset[position] for position in positions]

    def __getstate__(self) -> dict[str, Any]:
        """Returns the attributes to pickle, without cached values of `cached_property`."""
        cls = type(self)
        return {
            name: value
            for name, value in self.__dict__.items()
            if not isinstance(getattr(cls, name, None), cached_property)
        }


def overrides_of(dataset: Any) -> Overrides:
    """Returns the overrides of a dataset, from the cache of a tokenloom dataset, or else by a search."""
    known = getattr(dataset, "_overrides", None)
    if type(known) is Overrides and known.cls is type(dataset):  # not the overrides of a wrapped dataset
        return known
    return Overrides.of(dataset, _HOOKS)


def hook_of(dataset: Any, method: str) -> str | None:
    """Returns the name of an override or `item_hook` that `method` skips, else None; "outline" stands for counting."""
    hook: str | None = getattr(dataset, "item_hook", None)
    own = overrides_of(dataset)
    return own.skipped(method, *_SKIPPED.get(method, _MANY)) if own.found and hook is None else hook


def check_hooks(dataset: Any, method: str, purpose: str = "filling given arrays") -> None:
    """Raises if a fast method would skip an override and cannot call `dataset[k]` instead; `purpose` is for errors."""
    if (hook := hook_of(dataset, method)) is not None:
        hint = "count the samples that `dataset[k]` returns" if method == "outline" else "call `batch` without `out`"
        raise ConfigError(f"{type(dataset).__name__} overrides `{hook}`, so it does not support {purpose}", hint=hint)


def makes_batches(dataset: Any) -> bool:
    """Returns whether `dataset.batch` returns the samples of `dataset[k]` as arrays with a batch axis."""
    return bool(getattr(dataset, "makes_batches", True)) and not needs_items(dataset)


def fills_batches(dataset: Any) -> bool:
    """Returns whether `batch(positions, out=…)` fills given arrays with the samples of `dataset[k]`."""
    return hasattr(dataset, "allocate_batch") and _supports(dataset, "fills_batches", "fills_batches")


def digests_tokens(dataset: Any) -> bool:
    """Returns whether `batch(positions, digests=…)` fills `digests` for the tokens of `dataset[k]`."""
    return _supports(dataset, "digests_tokens", "digests_tokens")


def fills_rows(dataset: Any) -> bool:
    """Returns whether `fill_rows` fills rows of given arrays with the samples of `dataset[k]`."""
    return hasattr(dataset, "fill_rows") and _supports(dataset, "fills_batches", "fill_rows")


def _supports(dataset: Any, flag: str, method: str) -> bool:
    return bool(getattr(dataset, flag, False)) and hook_of(dataset, method) is None


def needs_items(dataset: Any) -> bool:
    """Returns whether samples must be read by `dataset[k]`, because `batch` is missing or would skip an override."""
    if getattr(dataset, "item_hook", None) is not None or not hasattr(dataset, "batch"):
        return True
    own = overrides_of(dataset)
    return bool(own.found) and (own.skipped("batch", *_ONE) is not None or _takes_batch_size(dataset.batch))


def _takes_batch_size(batch: Any) -> bool:
    """Returns whether `batch` divides the whole dataset into batches, like `batch` of Hugging Face's `Dataset`."""
    try:
        return "batch_size" in inspect.signature(batch).parameters
    except (TypeError, ValueError):  # raised for native code
        return False


def batch_of(dataset: Any, positions: Positions) -> Sample:
    """Returns samples as NumPy arrays with a batch axis; calls `batch` or, if `needs_items`, `dataset[k]`."""
    if needs_items(dataset):
        return stack([dataset[position] for position in positions], name=type(dataset).__name__)
    batch: Sample = dataset.batch(positions)
    return batch


def sample_of(dataset: Any, position: int) -> Sample:
    """Returns a sample as NumPy arrays, read by `sample`, or by `dataset[k]` if `sample` would skip an override."""
    sample: Callable[[int], Sample] | None = getattr(dataset, "sample", None)
    if sample is None or (overrides_of(dataset).found and hook_of(dataset, "sample") is not None):
        return as_arrays(dataset[position])
    return sample(position)  # `sample` calls `dataset[k]` if there is an `item_hook`


def called_from_item(dataset: Any) -> bool:
    """Returns whether `__getitem__` of the dataset is on the call stack; slow, so only for classes with overrides."""
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
    """Converts the tensors or values of a sample to NumPy arrays; an array and its tensor share memory."""
    return {name: value.numpy() if hasattr(value, "numpy") else np.asarray(value) for name, value in sample.items()}


def stack(samples: Sequence[Any], *, name: str) -> Sample:
    """Stacks samples into NumPy arrays with a batch axis; `name` is the class of the dataset, for errors."""
    hint = "read samples one at a time (`dataset[i]`)"
    if not all(isinstance(sample, Mapping) for sample in samples):
        raise ConfigError(f"{name}: cannot batch samples other than dicts, got {type(samples[0]).__name__}", hint=hint)
    arrays = [as_arrays(sample) for sample in samples]
    if len({tuple((key, each[key].shape) for key in sorted(each)) for each in arrays}) > 1:
        raise ConfigError(f"{name}: cannot batch samples that differ in names or shapes", hint=hint)
    return {key: np.stack([sample[key] for sample in arrays]) for key in (arrays[0] if arrays else ())}
