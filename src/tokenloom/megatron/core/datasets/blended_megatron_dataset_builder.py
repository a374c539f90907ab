"""`megatron.core.datasets.blended_megatron_dataset_builder`: builds the train, valid and test datasets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any, ClassVar

import torch

from tokenloom.blending import dataset_builder
from tokenloom.blending.quota import Quota
from tokenloom.datasets.splits import split_indices
from tokenloom.megatron.core.datasets.blended_dataset import BlendedDataset
from tokenloom.megatron.core.datasets.blended_megatron_dataset_config import BlendedMegatronDatasetConfig  # noqa: F401
from tokenloom.megatron.core.datasets.gpt_dataset import GPTDatasetConfig  # noqa: F401
from tokenloom.megatron.core.datasets.megatron_dataset import LowLevelDataset, MegatronDataset
from tokenloom.megatron.core.datasets.utils import Split, has_ranks, log_single_rank, logger, normalize  # noqa: F401
from tokenloom.overrides import Uncalled, overrides

MidLevelDataset = MegatronDataset
TopLevelDataset = BlendedDataset | MidLevelDataset
DistributedDataset = TopLevelDataset | LowLevelDataset | torch.utils.data.Dataset[Any]

Matrix = Sequence[tuple[float, float] | None]


class BlendedMegatronDatasetBuilder(dataset_builder.BlendedMegatronDatasetBuilder):
    """`tokenloom.BlendedMegatronDatasetBuilder` with Megatron's hooks; same arguments and errors.

    Hooks are the methods `_build_…` and `build_generic_dataset`. If a subclass overrides a hook, `build` calls all
    hooks as Megatron does: rank 0 builds first, the other ranks build after a `torch.distributed` barrier. Without
    overridden hooks, `build` works as in the base class.
    """

    uncalled_hooks: ClassVar[Mapping[str, Uncalled]] = {}
    blend_class: ClassVar[type[BlendedDataset]] = BlendedDataset

    def build(self) -> list[Any]:
        """Returns the train, valid and test datasets; None for a split that is empty or not built on this rank."""
        if not overrides(self, *dataset_builder.BlendedMegatronDatasetBuilder.uncalled_hooks):
            return super().build()
        return self._build_blended_dataset_splits()

    @property
    def _loads_first(self) -> bool:
        return super()._loads_first and not overrides(self.cls, "_build_document_sample_shuffle_indices")

    def _build_blended_dataset_splits(self) -> list[Any]:
        """Returns the train, valid and test datasets; may be overridden."""
        matrix: Any = self.config.split_matrix
        if self.config.mock:
            return self._build_megatron_dataset_splits(None, matrix, self.sizes)
        if self.config.blend is None or (self.config.blend_per_split is not None and any(self.config.blend_per_split)):
            return [None if quota is None else self._build_split(quota) for quota in self.quotas]
        first = next(quota for quota in self.quotas if quota is not None)
        if first.kind == "single":
            return self._build_megatron_dataset_splits(first.prefixes[0], matrix, self.sizes)
        sizes = [
            [0 if quota is None else quota.num_samples[number] for quota in self.quotas]
            for number in range(len(first.prefixes))
        ]
        built = self._build_megatron_datasets_parallel(first.prefixes, matrix, sizes)
        return [
            None if quota is None else self._build_blend(quota, datasets)
            for quota, datasets in zip(self.quotas, built, strict=True)
        ]

    def _build_split(self, quota: Quota) -> Any:
        """Returns the dataset of a split of `blend_per_split`; for quota kind "list", one dataset per prefix."""
        place = quota.split.value
        matrix = [quota.bounds if split is quota.split else None for split in Split]

        def sizes(size: int | None) -> list[int | None]:
            return [size if split is quota.split else 0 for split in Split]

        if not quota.is_blend:
            datasets = [
                self._build_megatron_dataset_splits(prefix, matrix, sizes(quota.size))[place]
                for prefix in quota.prefixes
            ]
            return datasets[0] if quota.kind == "single" else datasets
        all_sizes = [sizes(size) for size in quota.num_samples]
        built = self._build_megatron_datasets_parallel(quota.prefixes, matrix, all_sizes)
        return self._build_blend(quota, built[place])

    def _build_blend(self, quota: Quota, datasets: Sequence[Any]) -> Any:
        arguments = quota.blend_arguments([0 if dataset is None else len(dataset) for dataset in datasets])
        waits = not self.config.fast_cache_load
        return self.build_generic_dataset(
            BlendedDataset, self.is_built_on_rank, waits, datasets, *arguments, self.config
        )

    def _build_megatron_datasets_parallel(
        self, prefixes: Sequence[str | None], split: Matrix, sizes_per_dataset: Sequence[Sequence[int | None]]
    ) -> list[list[Any]]:
        """Builds datasets in threads; returns a list per split, each in the order of `prefixes`. May be overridden."""
        build_splits = self._build_megatron_dataset_splits

        def build() -> list[list[Any]]:
            with ThreadPoolExecutor(max_workers=self.config.num_dataset_builder_threads) as executor:
                tasks = [  # False: the ranks synchronize once, below
                    executor.submit(copy_context().run, build_splits, prefix, split, sizes, False)
                    for prefix, sizes in zip(prefixes, sizes_per_dataset, strict=True)
                ]
                return [list(datasets) for datasets in zip(*(task.result() for task in tasks), strict=True)]

        datasets: list[list[Any]] = _one_rank_first(build, waits=not self.config.fast_cache_load)
        return datasets

    def _build_megatron_dataset_splits(
        self, dataset_path: str | None, split: Matrix, sizes: Sequence[int | None], synchronize_ranks: bool = True
    ) -> list[Any]:
        """Returns the train, valid and test datasets of one prefix; may be overridden."""
        if has_ranks() and not self.is_built_on_rank():
            for bounds in split:
                if bounds is not None and synchronize_ranks:
                    torch.distributed.barrier()
            return [None] * len(split)
        low_level = self.cls.build_low_level_dataset(dataset_path, self.config)  # type: ignore[arg-type]
        num_elements = self.cls.numel_low_level_dataset(low_level)
        datasets: list[Any] = []
        for which, bounds, size in zip(Split, split, sizes, strict=True):
            if bounds is None:
                datasets.append(None)
                continue
            arguments = low_level, dataset_path, split_indices(bounds, num_elements), size, which, self.config
            datasets.append(self.build_generic_dataset(self.cls, self.is_built_on_rank, synchronize_ranks, *arguments))
        return datasets

    @staticmethod
    def build_generic_dataset(
        cls: Callable[..., Any], is_built_on_rank: Callable[[], bool], synchronize_ranks: bool, *args: Any
    ) -> Any:
        """Returns `cls(*args)`; None on ranks for which `is_built_on_rank()` is False.

        With `synchronize_ranks`, rank 0 builds first and the other ranks wait at a barrier.
        """
        return _one_rank_first(
            lambda: cls(*args) if not has_ranks() or is_built_on_rank() else None, waits=synchronize_ranks
        )


def _one_rank_first(build: Callable[[], Any], *, waits: bool) -> Any:
    """Returns `build()`; if `waits`, rank 0 builds first and the other ranks wait at a barrier."""
    if not has_ranks() or not waits:
        return build()
    is_first = torch.distributed.get_rank() == 0
    built = build() if is_first else None
    torch.distributed.barrier()
    return built if is_first else build()
