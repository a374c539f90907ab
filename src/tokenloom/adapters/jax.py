"""JAX: samples by position, as NumPy arrays, for grain."""

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
    """A `RandomAccessDataSource` of grain over a dataset, blend or run: for its `DataLoader` and `MapDataset`.

    Needs neither grain nor torch; safe from several threads and picklable. Ids and positions are int32, as **JAX
    converts int64 unless `jax_enable_x64` is set**, with a copy and a warning for each array. The `repr` identifies
    data and order: grain's `DataLoader` refuses a checkpoint with another one.

    Example:
        >>> import tempfile
        >>> from tokenloom import IndexedDatasetBuilder, load
        >>> prefix = f"{tempfile.mkdtemp()}/corpus"
        >>> with IndexedDatasetBuilder(f"{prefix}.bin") as builder:
        ...     builder.add_document(list(range(100)), [100])
        ...     builder.finalize(f"{prefix}.idx")
        >>> source = SampleSource(load(prefix, sequence_length=16, tokenizer="null:1000"))
        >>> len(source), source[0]["tokens"].dtype, source[0]["tokens"].shape
        (6, dtype('int32'), (16,))
    """

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: SupportsIndex) -> dict[str, NDArray[Any]]:
        """Returns a sample, arrays by name; an `IndexError` if it is out of range."""
        position, count = operator.index(index), len(self)
        if not -count <= position < count:
            raise IndexError(f"sample index {position} out of range: the source has {count} samples")
        sample = sample_of(self._dataset, position % count)
        return {name: narrow(name, np.asarray(array)) for name, array in sample.items()}

    def __repr__(self) -> str:
        name = type(self._dataset).__name__
        if (order := order_of(self._dataset)) is not None:  # whose length may change without moving a position
            return f"SampleSource({name}, run={order.order_state(0)['run']!r})"
        known = ""
        if isinstance(self._dataset, (MegatronDataset, BlendedDataset)):
            known = f", identity={self._dataset.unique_description_hash!r}"
        return f"SampleSource({name}, num_samples={len(self)}{known})"
