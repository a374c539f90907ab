"""All ways to a sample return that of `dataset[k]`.

`sample`, `batch` and filling given arrays are faster ways, unless the class overrides a hook that they skip; a dataset
finds that out when it is made or unpickled. Then `dataset[k]` is called for each sample, or if that is impossible, an
error names the class and the method.
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
"""The hooks that a fast way skips; `_MANY` by default."""

_UNCALLED = {
    name: Uncalled("override `sample` or `__getitem__`, which define a sample", unless=_ONE)
    for name in ("spans", "span_batch")
}
UNCALLED_BY_ITEM = Uncalled("change what `super().__getitem__(idx)` gives, in a `__getitem__`", unless=(*_ONE, QUERY))
"""A hook that only the reference calls to make a sample."""

_HOOKS = (*_MANY, "fill_rows", "fills_batches", "digests_tokens", "__getitems__", QUERY, *_UNCALLED)


class HasHooks:
    """A dataset of ours, which finds out what its class overrides when it is made or unpickled."""

    uncalled_hooks: ClassVar[Mapping[str, Uncalled]] = {}
    """Methods of the reference that are not called here: a class that overrides one is refused."""

    if TYPE_CHECKING:

        @property
        def item_hook(self) -> str | None:
            """A function in the settings that only `dataset[k]` calls."""

    else:
        item_hook = None  # faster, as every batch reads it

    @cached_property
    def _overrides(self) -> Overrides:
        return Overrides.of(self, (*_HOOKS, *self.uncalled_hooks))

    def _check_overrides(self) -> None:
        """Refuses a class that overrides methods without effect, or without one in `dataset[k]`; part of making it."""
        if not self._overrides.found:
            return
        self._overrides.refuse_uncalled({**_UNCALLED, **self.uncalled_hooks})
        for method in ("batch", "fill_rows", "__getitems__"):
            self._overrides.refuse_alone(method, *_SKIPPED.get(method, _MANY))

    def _must_ask(self, method: str) -> bool:
        """Whether a fast method has to call `dataset[k]` instead.

        Not if the class overrides the method itself and calls it as `super`, nor within its `__getitem__`.
        """
        found = self._overrides.found
        if not found and self.item_hook is None:
            return False
        return hook_of(self, method) is not None and method not in found and not is_within_item(self)

    def _items(self, positions: Positions) -> list[Any]:
        dataset: Any = self
        return [dataset[position] for position in positions]

    def __getstate__(self) -> dict[str, Any]:
        """Returns the attributes without those of `cached_property`."""
        cls = type(self)
        return {
            name: value
            for name, value in self.__dict__.items()
            if not isinstance(getattr(cls, name, None), cached_property)
        }


def overrides_of(dataset: Any) -> Overrides:
    """Returns the overrides that a dataset of ours holds, or those of any other dataset."""
    held = getattr(dataset, "_overrides", None)
    if type(held) is Overrides and held.cls is type(dataset):  # not that of a dataset within
        return held
    return Overrides.of(dataset, _HOOKS)


def hook_of(dataset: Any, method: str) -> str | None:
    """Returns what a fast way would skip: a method of a user's class, or what `item_hook` names; or None.

    Args:
        dataset: a dataset of any class.
        method: "sample", "batch", "fill_rows", "fills_batches", "digests_tokens" or "__getitems__"; "outline" for
            counts from spans alone.
    """
    hook: str | None = getattr(dataset, "item_hook", None)
    own = overrides_of(dataset)
    return own.skipped(method, *_SKIPPED.get(method, _MANY)) if own.found and hook is None else hook


def check_hooks(dataset: Any, method: str, purpose: str = "filling given arrays") -> None:
    """Raises if a fast way would skip a hook, where `dataset[k]` cannot be asked instead."""
    if (hook := hook_of(dataset, method)) is not None:
        hint = "count what `dataset[k]` gives" if method == "outline" else "ask for batches without `out`"
        raise ConfigError(f"no {purpose} of {type(dataset).__name__}, which overrides `{hook}`", hint=hint)


def makes_batches(dataset: Any) -> bool:
    """Whether `batch` of a dataset returns the samples of `dataset[k]` as arrays with a batch axis."""
    return bool(getattr(dataset, "makes_batches", True)) and not must_be_asked(dataset)


def fills_batches(dataset: Any) -> bool:
    """Whether a dataset fills given arrays with samples of `dataset[k]`: `allocate_batch`, and `batch` with `out`."""
    return hasattr(dataset, "allocate_batch") and _offers(dataset, "fills_batches", "fills_batches")


def digests_tokens(dataset: Any) -> bool:
    """Whether a dataset returns digests of the tokens of `dataset[k]`: `batch` with `digests`."""
    return _offers(dataset, "digests_tokens", "digests_tokens")


def fills_rows(dataset: Any) -> bool:
    """Whether a dataset fills rows of given arrays with the samples of `dataset[k]`: `fill_rows`."""
    return hasattr(dataset, "fill_rows") and _offers(dataset, "fills_batches", "fill_rows")


def _offers(dataset: Any, flag: str, method: str) -> bool:
    return bool(getattr(dataset, flag, False)) and hook_of(dataset, method) is None


def must_be_asked(dataset: Any) -> bool:
    """Whether a dataset has no `batch`, or one that skips `dataset[k]`."""
    if getattr(dataset, "item_hook", None) is not None or not hasattr(dataset, "batch"):
        return True
    own = overrides_of(dataset)
    return bool(own.found) and (own.skipped("batch", *_ONE) is not None or _takes_batch_size(dataset.batch))


def _takes_batch_size(batch: Any) -> bool:
    """Whether `batch` cuts the whole dataset into batches, as that of `datasets.Dataset` does."""
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
    return sample(position)  # calls `dataset[k]` itself for an `item_hook`


def is_within_item(dataset: Any) -> bool:
    """Whether the call stack contains `__getitem__` of the dataset; only classes that override it ask."""
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
    """Returns a sample as NumPy arrays, which share the memory of tensors."""
    return {name: value.numpy() if hasattr(value, "numpy") else np.asarray(value) for name, value in sample.items()}


def stack(samples: Sequence[Any], *, name: str) -> Sample:
    """Returns samples as NumPy arrays with a batch axis."""
    if not all(isinstance(sample, Mapping) for sample in samples):
        message = f"samples of {name} have no named arrays: {type(samples[0]).__name__}"
        raise ConfigError(message, hint="take them one by one")
    arrays = [as_arrays(sample) for sample in samples]
    if len({tuple((key, each[key].shape) for key in sorted(each)) for each in arrays}) > 1:
        message = f"samples of {name} differ in names or shapes and make no batch of arrays"
        raise ConfigError(message, hint="take them one by one")
    return {key: np.stack([sample[key] for sample in arrays]) for key in (arrays[0] if arrays else ())}
