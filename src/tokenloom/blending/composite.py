"""The base class of blends and runs: one dataset whose samples come from several datasets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from tokenloom.datasets.sample_arrays import TOKEN_DIGESTS, BatchLayout, MakeArray, Output, integers_of
from tokenloom.datasets.shortcuts import HasHooks
from tokenloom.errors import ConfigError
from tokenloom.rendering.card import HasFacts

Result = TypeVar("Result")

_NUMBER = "dataset_id"


@dataclass(frozen=True, slots=True)
class Share:
    """The samples that one dataset contributes to a batch.

    `number`: the `dataset_id` of the samples. `samples`: their positions in the dataset; None gives a sample without
    loss. `rows`: their rows in the batch; None for all rows. `call(function)` returns `function(dataset)`.
    """

    number: int
    samples: Any
    rows: NDArray[np.int64] | None
    call: Callable[[Callable[[Any], Any]], Any]

    def ask(self, function: Callable[[Any, Any], Result]) -> Result:
        """Returns `function(dataset, samples)`."""
        found: Result = self.call(lambda dataset: function(dataset, self.samples))
        return found

    @property
    def places(self) -> NDArray[np.int64] | slice:
        """The rows as an index into the arrays of the batch."""
        return slice(None) if self.rows is None else self.rows


class Composite(HasFacts, HasHooks):
    """The base class of datasets that take samples from other datasets and add a `dataset_id` to each sample."""

    _number_type: Any
    """The dtype of `dataset_id`."""

    @property
    def layout(self) -> BatchLayout:
        """The names, shapes and dtypes of the arrays of a sample."""
        raise NotImplementedError

    def _with_number(self, outputs: Iterable[Output]) -> BatchLayout:
        return BatchLayout((Output(name=_NUMBER, shape=(), dtype=np.dtype(self._number_type)), *outputs))

    def allocate_batch(
        self, count: int, *, integer_dtype: DTypeLike = np.int64, empty: MakeArray = np.empty
    ) -> dict[str, Any]:
        """Returns uninitialised arrays for `batch(positions, out=…)`, like `GPTDataset.allocate_batch`."""
        return self.layout.allocate((count,), integers=integers_of(integer_dtype), empty=empty)

    def _fill(self, shares: Iterable[Share], out: dict[str, Any], digests: NDArray[np.uint64] | None) -> dict[str, Any]:
        """Fills the arrays `out` of a batch and returns `out`; each dataset fills the rows of its samples."""
        filled = out if digests is None else {**out, TOKEN_DIGESTS: digests}
        for share in shares:
            out[_NUMBER][share.places] = share.number
            rows = share.rows
            share.ask(lambda dataset, samples, rows=rows: dataset.fill_rows(samples, filled, rows))  # type: ignore[misc]
        return out

    def _join(self, shares: Iterable[Share], count: int) -> dict[str, Any]:
        joined: dict[str, Any] = {_NUMBER: np.empty(count, dtype=self._number_type)}
        for share in shares:
            joined[_NUMBER][share.places] = share.number
            for name, array in share.ask(lambda dataset, samples: dataset.batch(samples)).items():
                if name not in joined:
                    joined[name] = np.empty((count, *array.shape[1:]), dtype=array.dtype)
                joined[name][share.places] = array
        return joined


def with_dataset_id(number: Any, sample: Any) -> Any:
    """Returns `sample` with the index of its dataset, `number`, as first entry.

    Example:
        >>> with_dataset_id(3, {"text": "a"}), with_dataset_id(3, ("a", "b"))
        ({'dataset_id': 3, 'text': 'a'}, (3, 'a', 'b'))

    Args:
        number: index of the dataset in the blend.
        sample: a dict, tuple or list; a named tuple becomes a dict.
    """
    if isinstance(sample, Mapping):
        return {_NUMBER: number, **sample}
    if isinstance(sample, tuple) and hasattr(sample, "_asdict"):
        return {_NUMBER: number, **sample._asdict()}
    if isinstance(sample, (tuple, list)):
        return type(sample)((number, *sample)) if type(sample) in (tuple, list) else (number, *sample)
    message = f"samples of a blend must be dicts, tuples or lists, got {type(sample).__name__}"
    raise ConfigError(message, hint="return a dict such as `{'image': …}` from `__getitem__`")
