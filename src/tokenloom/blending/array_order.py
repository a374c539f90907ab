"""The reference's order of a blend, as arrays: each position takes a sample of the dataset furthest behind its weight.

This order is nearly periodic. `mixing_block` shuffles samples within blocks of positions; no sample leaves its block.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Sized
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.blending.quota import remedy_for
from tokenloom.errors import OversampledError
from tokenloom.kernels.order import build_blending_indices
from tokenloom.order.array_store import ArrayStore, StoredOrder
from tokenloom.order.cache import Arrays, ArraySpec
from tokenloom.order.sample_random import Purpose

_MOST_NARROW = np.iinfo(np.int16).max


def number_type(num_datasets: int) -> type[np.integer[Any]]:
    """Returns the NumPy type of the dataset index in a blend of `num_datasets` datasets."""
    return np.int32 if num_datasets > _MOST_NARROW else np.int16


class ArrayBlendOrder(StoredOrder):
    """A `BlendOrder` that is stored as arrays; of the datasets, only the lengths are needed to build the arrays.

    `weights` are shares with a sum of 1, or, if `size` is None, the number of samples to take from each dataset.
    `seed` shuffles each block of `mixing_block` consecutive positions; a `mixing_block` of 1 keeps the reference's
    order. `names` are the paths of the datasets, for messages.
    """

    def __init__(
        self,
        datasets: Sequence[Sized],
        names: Sequence[str],
        weights: Sequence[float],
        size: int | None,
        *,
        split: str,
        store: ArrayStore,
        mixing_block: int = 1,
        seed: int = 0,
    ) -> None:
        self.num_samples: int = int(sum(weights)) if size is None else size
        self._datasets = datasets
        self._names = names
        self._weights = weights
        self._size = size
        self._split = split
        self._mixing_block = mixing_block
        self._seed = seed
        super().__init__(store)

    def specs(self) -> dict[str, ArraySpec]:
        length = self.num_samples
        return {
            "dataset_index": ArraySpec(np.dtype(number_type(len(self._datasets))), (length,)),
            "dataset_sample_index": ArraySpec(np.dtype(np.int64), (length,)),
        }

    def build(self) -> Iterator[tuple[str, NDArray[Any]]]:
        """Yields (name, array) pairs; raises OversampledError if a dataset has fewer samples than the blend takes."""
        if self._size is None:
            sizes = np.array(self._weights, dtype=np.int64)
            shares = sizes / float(self.num_samples)
            chosen, samples = build_blending_indices(shares, size=self.num_samples, sizes=sizes)
        else:
            shares = np.array(self._weights, dtype=np.float64)
            chosen, samples = build_blending_indices(shares, size=self._size)
        self._check_sizes(np.bincount(chosen, minlength=len(self._datasets)).tolist())
        if self._mixing_block > 1:
            _mix(chosen, samples, self._mixing_block, self._seed)
        yield "dataset_index", chosen
        yield "dataset_sample_index", samples

    def _check_sizes(self, owed: Sequence[int]) -> None:
        short = [
            f"{count} samples from `{name}`, which has {len(dataset)}"
            for name, dataset, count in zip(self._names, self._datasets, owed, strict=True)
            if count > len(dataset)
        ]
        if short:
            more = f"; {len(short) - 1} more datasets have too few samples" if len(short) > 1 else ""
            raise OversampledError(f"the blend ({self._split}) takes {short[0]}{more}", hint=remedy_for(None))

    def mismatch(self, arrays: Arrays) -> str | None:
        """Returns why the first or last row of the arrays does not match the datasets; None if both match; O(1)."""
        for row in (0, -1) if self.num_samples else ():
            number, sample = int(arrays["dataset_index"][row]), int(arrays["dataset_sample_index"][row])
            if not 0 <= number < len(self._datasets):
                return f"row {row} has dataset index {number}, but the blend has {len(self._datasets)} datasets"
            if not 0 <= sample < len(self._datasets[number]):
                return f"row {row} has sample {sample}, but only {len(self._datasets[number])} are in dataset {number}"
        return None

    def locate(self, positions: NDArray[np.int64]) -> tuple[NDArray[Any], NDArray[np.int64]]:
        arrays = self.opened or self.arrays
        return arrays["dataset_index"][positions], arrays["dataset_sample_index"][positions]

    def locate_one(self, position: int) -> tuple[int, int]:
        arrays = self.opened or self.arrays
        return int(arrays["dataset_index"][position]), int(arrays["dataset_sample_index"][position])


def _mix(chosen: NDArray[Any], samples: NDArray[np.int64], block: int, seed: int) -> None:
    """Shuffles both arrays within each block, in place; the order depends only on the block's number and `seed`."""
    for number, start in enumerate(range(0, len(chosen), block)):
        part = slice(start, start + block)
        words = np.random.Philox(
            key=np.array([seed, Purpose.MIXING], dtype=np.uint64), counter=np.array([0, 0, 0, number], dtype=np.uint64)
        ).random_raw(len(chosen[part]))
        order = np.argsort(words, kind="stable")
        chosen[part], samples[part] = chosen[part][order], samples[part][order]
