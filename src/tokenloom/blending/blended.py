"""The dataset class of blends, which mixes the samples of several datasets."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.blending.array_order import ArrayBlendOrder, number_type
from tokenloom.blending.composite import Composite, Share, with_dataset_id
from tokenloom.blending.quota import check_weights, normalize
from tokenloom.datasets.config import BlendedMegatronDatasetConfig
from tokenloom.datasets.protocols import Announces, KnowsOrder, is_remote_dataset
from tokenloom.datasets.sample_arrays import INTEGERS, BatchLayout, Output, recycled_empty
from tokenloom.datasets.shortcuts import (
    as_arrays,
    called_from_item,
    check_hooks,
    fills_rows,
    hook_of,
    makes_batches,
    needs_items,
    sample_of,
    stack,
)
from tokenloom.datasets.tensors import sample_batch
from tokenloom.errors import ConfigError, IndexCacheError
from tokenloom.order.array_store import ArrayStore
from tokenloom.order.cache import index_cache
from tokenloom.order.keys import describe
from tokenloom.order.protocols import BlendOrder


class BlendedDataset(Composite):
    """A dataset that mixes the samples of several datasets by weight, in a fixed order.

    Sample k is sample `dataset_sample_index[k]` of dataset `dataset_index[k]`; `dataset_id` is added as first entry.
    Thread-safe, fork-safe and picklable.

    Args:
        datasets: datasets of the same class and split.
        weights: weight of each dataset, with any sum; if `size` is None, number of samples to take from each dataset.
        size: total number of samples; if None, the blend takes `weights[i]` samples from dataset i.
        config: the settings.
        order: order that maps positions to samples of datasets; None for the reference's order by weights and size.

    Raises:
        ConfigError: the numbers of datasets and weights differ, the datasets differ in class or split, or a weight is
            invalid.
        OversampledError: a dataset has fewer samples than the blend takes from it.
    """

    run_order: KnowsOrder | None = None
    """Identity and order of a run, if the blend is the dataset of a run with `order = "megatron"`; otherwise None."""

    def __init__(
        self,
        datasets: Sequence[Any],
        weights: Sequence[float],
        size: int | None,
        config: BlendedMegatronDatasetConfig,
        *,
        order: BlendOrder | None = None,
    ) -> None:
        check_weights(datasets, weights, size)
        self._check_overrides()
        self._overrides.refuse_alone("sample", "__getitem__")
        self.datasets: list[Any] = list(datasets)
        self.split: Any = self.datasets[0].index_split
        self.weights: list[float] = normalize(weights) if size is not None else list(weights)
        self.size = size
        self.config = config
        identifiers: OrderedDict[str, Any] = OrderedDict()
        identifiers["class"] = type(self).__name__
        identifiers["datasets"] = [dataset.unique_identifiers for dataset in self.datasets]
        identifiers["split"] = self.split.name
        identifiers["weights"] = self.weights
        identifiers["size"] = size
        if config.mixing_block > 1:
            identifiers.update(mixing_block=config.mixing_block, random_seed=config.random_seed)
        self.unique_identifiers = identifiers
        self.unique_description: str
        self.unique_description_hash: str
        self.unique_description, self.unique_description_hash = describe(identifiers)
        self._number_type = number_type(len(self.datasets))
        self._layout: tuple[tuple[Output, ...], BatchLayout] | None = None
        self.order: BlendOrder = self._array_order() if order is None else order

    def _array_order(self) -> BlendOrder:
        config, folder = self.config, self.config.path_to_cache
        base = f"{self.unique_description_hash}-{type(self).__name__}-{self.split.name}"
        cache = None
        if folder is not None:
            cache = index_cache(folder, base, config.storage_settings, compares_all=config.verify == "full")
        store = ArrayStore(
            cache=cache,
            description=self.unique_description,
            name=self._name(),
            must_exist=config.fast_cache_load or config.defer_npy_index_mmap,
            deferred=config.defer_npy_index_mmap,
        )
        return ArrayBlendOrder(
            self.datasets,
            [str(dataset.dataset_path) for dataset in self.datasets],
            self.weights,
            self.size,
            split=self.split.name,
            store=store,
            mixing_block=config.mixing_block,
            seed=config.random_seed,
        )

    def verify_indices(self) -> list[str]:
        """Rebuilds the indices of blend and datasets; returns one sentence per difference from the used indices."""
        members = [dataset for dataset in self.datasets if hasattr(dataset, "verify_indices")]
        return [*self.order.verify(), *(problem for dataset in members for problem in dataset.verify_indices())]

    def _name(self) -> str:
        return f"the blend of {len(self.datasets)} datasets ({self.split.name})"

    @property
    def dataset_index(self) -> NDArray[Any]:
        """int16[size] (int32 for 32,768 datasets or more), the dataset index at each position."""
        return self._all_located()[0]

    @property
    def dataset_sample_index(self) -> NDArray[np.int64]:
        """int64[size], the sample number within the dataset at each position."""
        return self._all_located()[1]

    def _all_located(self) -> tuple[NDArray[Any], NDArray[np.int64]]:
        if isinstance(self.order, ArrayBlendOrder):
            arrays = self.order.arrays
            return arrays["dataset_index"], arrays["dataset_sample_index"]
        return self.order.locate(np.arange(len(self), dtype=np.int64))

    def __len__(self) -> int:
        """Returns the number of samples, without opening the indices."""
        return self.order.num_samples

    def locate(self, idx: int) -> tuple[int, int]:
        """Returns (dataset index, sample number in that dataset) for a position; negative positions count from the end.

        Raises:
            IndexError: the position is out of range.
        """
        if not -(num_samples := len(self)) <= idx < num_samples:
            raise IndexError(f"sample {idx} out of range: the blend has {num_samples} samples")
        number, sample = self.order.locate_one(idx if idx >= 0 else idx + num_samples)
        if not (0 <= number < len(self.datasets) and 0 <= sample < len(self.datasets[number])):
            self.order.check()
            # Not an `IndexError`, which would end a loop over the dataset silently.
            message = f"the indices of {self._name()} are damaged: row {idx} has sample {sample} of dataset {number}"
            raise IndexCacheError(message, hint="delete the indices from the cache; the next start builds them again")
        return number, sample

    def __getitem__(self, idx: int | None) -> Any:
        """Returns the sample at a position, with its `dataset_id`; for None, returns a sample without loss."""
        if idx is None:
            return with_dataset_id(self._number_type(0), self.datasets[0][None])
        number, sample = self.locate(idx)
        self.order.check()
        return with_dataset_id(self._number_type(number), self.datasets[number][sample])

    def sample(self, idx: int) -> dict[str, Any]:
        """Returns the sample at a position as NumPy arrays."""
        if self._overrides.found and self._needs_items("sample"):  # `sample_of` checks overrides of the dataset
            return as_arrays(self[idx])
        number, sample = self.locate(idx)
        self.order.check()
        arrays = sample_of(self.datasets[number], sample)
        return {"dataset_id": np.array(number, dtype=self._number_type), **arrays}

    def spans(self, idx: int) -> Any:
        """Returns the spans of the sample at a position; document numbers count within the dataset of the sample."""
        number, sample = self.locate(idx)
        return self.datasets[number].spans(sample)

    def lengths(self, positions: NDArray[np.integer[Any]] | None = None) -> NDArray[np.int64]:
        """Returns `original_seq_len` of the samples at `positions`, or of all; for datasets such as `VarlenDataset`."""
        return self._numbers_at(positions, lambda dataset, samples: dataset.lengths(samples))

    def padded_lengths(self, positions: NDArray[np.integer[Any]] | None = None) -> NDArray[np.int64]:
        """Returns `padded_seq_len` of the samples at `positions`, or of all; for datasets such as `VarlenDataset`."""
        return self._numbers_at(positions, lambda dataset, samples: dataset.padded_lengths(samples))

    def _numbers_at(
        self, positions: NDArray[np.integer[Any]] | None, call: Callable[[Any, Any], NDArray[np.int64]]
    ) -> NDArray[np.int64]:
        numbers, samples = self._all_located() if positions is None else self.order.locate(np.asarray(positions))
        self.order.check()
        found = np.empty(len(numbers), dtype=np.int64)
        for number in np.unique(numbers).tolist():
            chosen = numbers == number
            found[chosen] = call(self.datasets[number], samples[chosen])
        return found

    def _share(self, number: int, samples: Any, rows: NDArray[np.int64]) -> Share:
        dataset = self.datasets[number]
        return Share(number, samples, rows, lambda function: function(dataset))

    def __getitems__(self, positions: Sequence[int | None]) -> Sequence[dict[str, Any]]:
        """Returns many samples as torch tensors; torch's DataLoader calls this for a batch."""
        if not needs_items(self) or called_from_item(self):
            if "batch" in self._overrides.found:
                return sample_batch(self.batch(positions), len(positions))
            shares = self._by_dataset(positions)
            if all(makes_batches(self.datasets[share.number]) for share in shares):
                return sample_batch(self._batch(shares, positions), len(positions))
        return self._items(positions)

    @property
    def item_hook(self) -> str | None:
        """Name of a method that the dataset class overrides, but `batch` does not call; None if there is none."""
        return hook_of(self.datasets[0], "batch")

    @property
    def fills_batches(self) -> bool:
        """Whether `batch` can fill arrays passed as `out`."""
        return fills_rows(self.datasets[0])

    @property
    def layout(self) -> BatchLayout:
        """The names, shapes and dtypes of the arrays of a sample."""
        if not self.fills_batches:
            check_hooks(self.datasets[0], "fill_rows")
            message = f"{type(self.datasets[0]).__name__} cannot fill given arrays"
            raise ConfigError(message, hint="call `batch` without `out`")
        outputs = self.datasets[0].layout.outputs
        if self._layout is None or self._layout[0] is not outputs:
            self._layout = outputs, self._with_number(outputs)
        return self._layout[1]

    digests_tokens = fills_batches
    """Whether `batch` can return digests of tokens."""

    def batch(
        self,
        positions: Sequence[int | None] | NDArray[np.integer[Any]],
        *,
        out: dict[str, Any] | None = None,
        digests: NDArray[np.uint64] | None = None,
    ) -> dict[str, Any]:
        """Returns many samples as NumPy arrays with a leading batch axis, filled by one kernel call per dataset.

        For a position None, the batch has a sample without loss, from the first dataset. Arguments and errors are those
        of `GPTDataset.batch`.
        """
        if self._overrides.found and self._needs_items("batch"):  # `_batch` checks overrides of the datasets
            if out is not None:
                check_hooks(self, "batch")
            return stack(self._items(positions), name=type(self).__name__)
        return self._batch(self._by_dataset(positions), positions, out, digests)

    def _batch(
        self,
        shares: Sequence[Share],
        positions: Sequence[int | None] | NDArray[np.integer[Any]],
        out: dict[str, Any] | None = None,
        digests: NDArray[np.uint64] | None = None,
    ) -> dict[str, Any]:
        shares = shares or [self._share(0, [], np.empty(0, dtype=np.int64))]
        members = [self.datasets[share.number] for share in shares]
        if out is not None:
            for dataset in members:
                check_hooks(dataset, "fill_rows")
            self.layout.check(out, len(positions), name=self._name())
        elif all(map(fills_rows, members)):
            out = self.layout.allocate((len(positions),), integers=INTEGERS[0], empty=recycled_empty)
        elif any(map(needs_items, members)):
            return stack(self._items(positions), name=type(self).__name__)
        else:
            return self._join(shares, len(positions))
        return self._fill(shares, out, digests)

    def _by_dataset(self, positions: Sequence[int | None] | NDArray[np.integer[Any]]) -> list[Share]:
        groups: dict[int, tuple[list[int | None], list[int]]] = {}
        for row, (number, sample) in enumerate(self._located(positions)):
            samples, rows = groups.setdefault(number, ([], []))
            samples.append(sample)
            rows.append(row)
        self.order.check()
        return [self._share(number, groups[number][0], np.array(groups[number][1])) for number in sorted(groups)]

    def _located(self, positions: Sequence[int | None] | NDArray[np.integer[Any]]) -> Iterable[tuple[int, int | None]]:
        """Returns `locate(position)` per position, (0, None) for None; if all are valid, one call locates all."""
        rows = np.asarray(positions)  # an array of objects if a position is None
        if rows.ndim == 1 and rows.dtype.kind in "iu" and rows.size:
            given, num_samples = rows.tolist(), len(self)
            if min(given) >= -num_samples and max(given) < num_samples:
                numbers, samples = (found.tolist() for found in self.order.locate(rows % num_samples))
                if min(numbers) >= 0 and max(numbers) < len(self.datasets) and min(samples) >= 0:
                    lengths = {number: len(self.datasets[number]) for number in set(numbers)}
                    found = list(zip(numbers, samples, strict=True))
                    if all(sample < lengths[number] for number, sample in found):
                        return found
        return [(0, None) if position is None else self.locate(int(position)) for position in positions]

    def facts(self) -> dict[str, Any]:
        """Returns the facts that `repr` and `info` show: split, number of samples, and the share of each dataset."""
        total = sum(self.weights)
        return {
            "split": self.split.name,
            "samples": len(self),
            "class": type(self.datasets[0]).__name__,
            "sequence length": self.datasets[0].config.sequence_length,
            "datasets": [
                {"dataset": str(dataset.dataset_path), "share": f"{weight / total:.3%}"}
                for dataset, weight in zip(self.datasets, self.weights, strict=True)
            ],
        }

    @property
    def remote_paths(self) -> list[str]:
        """The addresses of the objects that contain the tokens; empty for local data."""
        members = [dataset for dataset in self.datasets if isinstance(dataset, Announces)]
        return list(dict.fromkeys(path for dataset in members for path in dataset.remote_paths))

    def will_need(self, positions: Sequence[int | None]) -> None:
        """Starts to prefetch samples from object storage, dataset by dataset; does nothing for local data."""
        for share in self._by_dataset(positions):
            if is_remote_dataset(self.datasets[share.number]):
                self.datasets[share.number].will_need(share.samples)
