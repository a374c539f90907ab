"""Building the splits that a configuration describes, once for all ranks."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from tokenloom import kernels
from tokenloom.blending.blended import BlendedDataset
from tokenloom.blending.quota import build_sizes, normalize, target_sizes
from tokenloom.datasets.base import MegatronDataset
from tokenloom.datasets.config import Blend, BlendedMegatronDatasetConfig
from tokenloom.datasets.splits import Split, SplitMatrix, split_indices
from tokenloom.distributed.building import Builders, build_together
from tokenloom.errors import ConfigError

Sizes = Sequence[int | None]


class BlendedMegatronDatasetBuilder:
    """Builds the train, valid and test datasets of a run.

    For each split, from `blend` and `split`, or from `blend_per_split`:

    | prefixes | weights | size | result |
    |---|---|---|---|
    | one | none | given or not | the dataset, of at least `size` samples, or of one epoch |
    | several | given | given | a blend by weight, of `size` samples and up to one more per dataset |
    | any | given | none | an error: weights say nothing without a size |
    | several | none | given | a blend in proportion to the datasets' lengths, of at most one epoch of each |
    | several | none | none | all samples of one epoch of each, mixed |

    Under `blend_per_split`, the weight of a single prefix is ignored, and `multiple_validation_sets` gives a list of
    datasets for valid. Under `torch.distributed`, call `build` on every rank: one rank builds, the others load.

    Args:
        cls: the dataset class, such as `GPTDataset`.
        sizes: samples wanted at least from train, valid and test; None for one epoch. `full_validation` makes it
            one epoch for valid.
        is_built_on_rank: whether this process needs the datasets.
        config: the settings.
        builders: who builds under `torch.distributed`, see `build_together`.

    Raises:
        ConfigError: the sizes are not three, or weights come without a size.
    """

    def __init__(
        self,
        cls: type[MegatronDataset],
        sizes: Sizes,
        is_built_on_rank: Callable[[], bool],
        config: BlendedMegatronDatasetConfig,
        *,
        builders: Builders = "auto",
    ) -> None:
        if len(sizes) != len(Split):
            message = f"expected {len(Split)} sizes (train, valid, test), found {len(sizes)}"
            raise ConfigError(message)
        self.cls = cls
        self.sizes = list(sizes)
        if config.full_validation:
            self.sizes[Split.valid.value] = None
        self.is_built_on_rank = is_built_on_rank
        self.config = config
        self.builders: Builders = builders
        for split in Split:
            blend = self._blend_of(split)
            if self.sizes[split.value] is None and blend is not None and self._weights_need_size(blend, split):
                message = f"expected a size for {split.name}, whose blend has weights, found None"
                raise ConfigError(message, hint="name how many samples to blend, or leave the weights out")

    def build(self) -> list[Any]:
        """Returns the datasets of train, valid and test; None where the split is empty or not built on this rank.

        Raises:
            BuildError: a rank failed or died; all ranks raise.
            OversampledError: a blend takes more samples of a dataset than it has.
            IndexCacheError: the index cache cannot be written, or was to exist and does not.
        """
        if self.config.fast_cache_load:  # all caches exist: nothing to wait for
            return self._build() if self.is_built_on_rank() else [None] * len(Split)
        datasets = build_together(
            self._build, is_built_on_rank=self.is_built_on_rank, folder=self._folder(), builders=self.builders
        )
        return [None] * len(Split) if datasets is None else datasets

    def _blend_of(self, split: Split) -> Blend | None:
        if self.config.blend_per_split is not None and any(self.config.blend_per_split):
            return self.config.blend_per_split[split.value]
        return self.config.blend

    def _weights_need_size(self, blend: Blend, split: Split) -> bool:
        prefixes, weights = blend
        if weights is None:
            return False
        alone = len(prefixes) == 1 and self.config.blend is None
        return not alone and not self._is_list(split)

    def _is_list(self, split: Split) -> bool:
        """Whether a split of `blend_per_split` becomes a list of datasets."""
        return self.config.blend is None and bool(self.config.multiple_validation_sets) and split is Split.valid

    def _folder(self) -> str | None:
        """Returns where the indices go, for the ranks to find out whether they see the same place."""
        if self.config.mock or self.config.path_to_cache is not None:
            return self.config.path_to_cache
        prefix = next(blend[0][0] for blend in map(self._blend_of, Split) if blend is not None)
        return os.path.dirname(os.path.abspath(prefix))

    def _build(self) -> list[Any]:
        config = self.config
        if config.mock:
            assert config.split_matrix is not None
            return self._build_splits(None, config.split_matrix, self.sizes)
        if config.blend is not None:
            assert config.split_matrix is not None
            prefixes, weights = config.blend
            if len(prefixes) == 1 and weights is None:
                return self._build_splits(prefixes[0], config.split_matrix, self.sizes)
            return self._build_blend(config.blend, config.split_matrix, self.sizes)
        return [self._build_split(split) for split in Split]

    def _build_split(self, split: Split) -> Any:
        """Returns the dataset (or list of datasets) of a split with a blend of its own."""
        if (blend := self._blend_of(split)) is None:
            return None
        matrix: SplitMatrix = [None] * len(Split)
        matrix[split.value] = (0.0, 1.0)
        sizes: list[int | None] = [0] * len(Split)
        sizes[split.value] = self.sizes[split.value]
        prefixes, _ = blend
        if len(prefixes) == 1:
            return self._build_splits(prefixes[0], matrix, sizes)[split.value]
        if self._is_list(split):
            return [self._build_splits(prefix, matrix, sizes)[split.value] for prefix in prefixes]
        return self._build_blend(blend, matrix, sizes)[split.value]

    def _build_blend(self, blend: Blend, matrix: SplitMatrix, sizes: Sizes) -> list[Any]:
        """Returns the blends of several datasets (or of one with a weight), for each split that is not empty."""
        prefixes, weights = blend
        shares = None if weights is None else normalize(weights)
        # Without weights, one epoch of each dataset, whatever the size of the blend.
        per_split = [
            [None] * len(prefixes)
            if shares is None or size is None
            else build_sizes(shares, size, surplus=self.config.mid_level_dataset_surplus)
            for size in sizes
        ]

        def build(number: int) -> list[Any]:
            return self._build_splits(prefixes[number], matrix, [each[number] for each in per_split])

        if (num_threads := self.config.num_dataset_builder_threads) > 1:
            with ThreadPoolExecutor(max_workers=num_threads) as executor:
                built = list(executor.map(build, range(len(prefixes))))
        else:
            built = [build(number) for number in range(len(prefixes))]
        return [
            None
            if matrix[split.value] is None
            else self._blend([datasets[split.value] for datasets in built], shares, sizes[split.value])
            for split in Split
        ]

    def _blend(self, datasets: list[Any], shares: list[float] | None, size: int | None) -> BlendedDataset:
        if shares is not None and size is not None:
            size = sum(target_sizes(shares, size))
            if self.config.extend_short_datasets:
                datasets = self._extend(datasets, shares, size)
            return BlendedDataset(datasets, shares, size, self.config)
        lengths = [len(dataset) for dataset in datasets]
        return BlendedDataset(datasets, lengths, None if size is None else min(size, sum(lengths)), self.config)

    def _extend(self, datasets: list[Any], shares: list[float], size: int) -> list[Any]:
        """Returns the datasets, with those of which the blend takes too many samples built for as many as it takes."""
        owed = kernels.blending_counts(np.array(normalize(shares), dtype=np.float64), size).tolist()
        return [
            dataset
            if count <= len(dataset)
            else self.cls(
                dataset.dataset, dataset.dataset_path, dataset.indices, count, dataset.index_split, self.config
            )
            for dataset, count in zip(datasets, owed, strict=True)
        ]

    def _build_splits(self, prefix: str | None, matrix: SplitMatrix, sizes: Sizes) -> list[Any]:
        """Returns the datasets of one prefix, for each split that is not empty."""
        low_level: Any = self.cls.build_low_level_dataset(prefix, self.config)  # type: ignore[arg-type]
        num_elements = self.cls.numel_low_level_dataset(low_level)
        return [
            None
            if bounds is None
            else self.cls(low_level, prefix, split_indices(bounds, num_elements), size, split, self.config)
            for split, bounds, size in zip(Split, matrix, sizes, strict=True)
        ]
