"""Orders whose index arrays somebody gave: a subclass, or an assignment from outside."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.blending.array_order import ArrayBlendOrder
from tokenloom.forks import cached_property
from tokenloom.kernels import WindowReader
from tokenloom.order.arrays import ArrayStore, StoredOrder
from tokenloom.order.cache import Arrays, ArraySpec
from tokenloom.order.documents import Documents
from tokenloom.order.policies import WindowOrder

NAMES = ("document_index", "sample_index", "shuffle_index")
"""The arrays of an order of windows."""

_CHECKED_AT_ONCE = 1 << 16


class _GivenArrays(StoredOrder):
    """Arrays that have no place in a cache, and that building gives again."""

    def __init__(self, arrays: Mapping[str, NDArray[Any]], identity: str) -> None:
        self._given = arrays
        StoredOrder.__init__(self, ArrayStore(cache=None, description=identity, name=identity))

    def specs(self) -> dict[str, ArraySpec]:
        return {name: ArraySpec(array.dtype, array.shape) for name, array in self._given.items()}

    def build(self) -> Iterator[tuple[str, NDArray[Any]]]:
        return iter(self._given.items())

    def misfit(self, arrays: Arrays) -> None:
        return None


class GivenBlendOrder(_GivenArrays, ArrayBlendOrder):
    """A `BlendOrder` over arrays that are nobody's but the user's.

    Args:
        dataset_index: integers[size], which dataset gives each sample.
        dataset_sample_index: integers[size], which of its samples that is.
        identity: what tells the order from others.
    """

    def __init__(self, dataset_index: NDArray[Any], dataset_sample_index: NDArray[Any], *, identity: str) -> None:
        arrays = {"dataset_index": dataset_index, "dataset_sample_index": dataset_sample_index}
        self.num_samples = len(dataset_index)
        super().__init__(arrays, identity)


class GivenOrder(_GivenArrays, WindowOrder):
    """A `SpanOrder` over arrays that are nobody's but the user's.

    Args:
        arrays: document, sample and shuffle index.
        documents: the documents that these name.
        sequence_length: tokens from one window to the next.
        extra: tokens that a window reads beyond its length, 0 or 1.
        identity: what tells the order from others.
    """

    def __init__(
        self,
        arrays: Mapping[str, NDArray[Any]],
        documents: Documents,
        *,
        sequence_length: int,
        extra: int,
        identity: str,
    ) -> None:
        self.num_samples = arrays["sample_index"].shape[0] - 1
        super().__init__(arrays, identity)
        self._documents = documents
        self._sequence_length = sequence_length
        self._extra = extra
        self._reader = None

    @cached_property
    def is_regular(self) -> bool:
        """Whether every sample is a window as long as all others, so that kernels can fill them; one pass."""
        if len(self.arrays["shuffle_index"]) != self.num_samples:
            return False
        try:
            for start in range(0, self.num_samples, _CHECKED_AT_ONCE):
                stop = min(start + _CHECKED_AT_ONCE, self.num_samples)
                self.spans(np.arange(start, stop, dtype=np.int64), keep_empty=False)
        except (IndexError, TypeError, ValueError):
            return False
        return True

    def _read(self, arrays: Arrays) -> WindowReader:
        """Returns what turns positions into spans; that raises an IndexError where the samples are not regular."""
        lengths = self._documents.lengths
        documents, rows, shuffle = (np.ascontiguousarray(arrays[name]) for name in NAMES)
        return WindowReader(
            lengths,
            documents,
            rows,
            shuffle,
            window_length=self._sequence_length,
            extra=self._extra,
            num_tokens=int(lengths[documents].sum(dtype=np.int64)),
        )

    def read(self, source: Any, idx: int) -> tuple[list[NDArray[Any]], list[int]]:
        """Returns the tokens of each document of a sample, and their rows, whatever lengths the arrays give.

        Args:
            source: what has `get(idx, offset, length)`.
            idx: number of the sample, as the shuffle index takes it.
        """
        documents, rows, shuffle = (self.arrays[name] for name in NAMES)
        window = shuffle[idx]
        (first, start), (last, stop) = ([int(number) for number in rows[row]] for row in (window, window + 1))
        parts, found = [], []
        for place in range(first, last + 1):
            offset = start if place == first else 0
            length = stop + self._extra - offset if place == last else None
            found.append(int(documents[place]))
            parts.append(np.asarray(source.get(documents[place], offset=offset, length=length)))
        return parts, found
