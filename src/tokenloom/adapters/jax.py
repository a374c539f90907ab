"""JAX: a data source for grain, with samples as NumPy arrays."""

from __future__ import annotations

import operator
from typing import Any, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from tokenloom.adapters.arrow import narrow
from tokenloom.blending.blended import BlendedDataset
from tokenloom.datasets.base import MegatronDataset
from tokenloom.datasets.protocols import order_of
from tokenloom.datasets.shortcuts import sample_of


class SampleSource:
    """A `RandomAccessDataSource` for grain's `DataLoader` and `MapDataset`, over a dataset, blend or run.

    Needs neither grain nor torch. Thread-safe and picklable. Token ids and position ids are int32, because **JAX
    converts int64 arrays unless `jax_enable_x64` is set**, with a copy and a warning per array. The `repr` identifies
    data and order; grain's `DataLoader` rejects a checkpoint that was saved with another `repr`.

    Example:
        >>> source = SampleSource([{"tokens": np.arange(16)}, {"tokens": np.arange(16, 32)}])
        >>> len(source), source[0]["tokens"].dtype, source[0]["tokens"].shape
        (2, dtype('int32'), (16,))
    """

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: SupportsIndex) -> dict[str, NDArray[Any]]:
        """Returns the arrays of a sample by name; raises `IndexError` if `index` is out of range."""
        position, count = operator.index(index), len(self)
        if not -count <= position < count:
            raise IndexError(f"sample index {position} out of range: the source has {count} samples")
        sample = sample_of(self._dataset, position % count)
        return {name: narrow(name, np.asarray(array)) for name, array in sample.items()}

    def __repr__(self) -> str:
        name = type(self._dataset).__name__
        if (order := order_of(self._dataset)) is not None:  # without the length, which an amendment can change
            return f"SampleSource({name}, run={order.order_state(0)['run']!r})"
        known = ""
        if isinstance(self._dataset, (MegatronDataset, BlendedDataset)):
            known = f", identity={self._dataset.unique_description_hash!r}"
        return f"SampleSource({name}, num_samples={len(self)}{known})"
