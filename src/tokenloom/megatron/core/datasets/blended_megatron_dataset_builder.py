"""`megatron.core.datasets.blended_megatron_dataset_builder`: the datasets of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any, ClassVar

import torch

from tokenloom.blending import builder
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


class BlendedMegatronDatasetBuilder(builder.BlendedMegatronDatasetBuilder):
    """`tokenloom.BlendedMegatronDatasetBuilder` with the hooks of the reference; same args and errors.

    A class that overrides one of the four methods below builds step by step as in the reference: rank 0 first, the
    others after a barrier of `torch.distributed`. Otherwise ranks build as in tokenloom.
    """

    uncalled_hooks: ClassVar[Mapping[str, Uncalled]] = {}
    blend_class: ClassVar[type[BlendedDataset]] = BlendedDataset

    def build(self) -> list[Any]:
        """Returns the datasets of train, valid and test; None where the split is empty or not built on this rank."""
        if not overrides(self, *builder.BlendedMegatronDatasetBuilder.uncalled_hooks):
            return super().build()
        return self._build_blended_dataset_splits()

    @property
    def _looks_first(self) -> bool:
        return super()._looks_first and not overrides(self.cls, "_build_document_sample_shuffle_indices")

    def _build_blended_dataset_splits(self) -> list[Any]:
        """Returns the datasets of train, valid and test, built step by step; a hook."""
        matrix: Any = self.config.split_matrix
        if self.config.mock:
            return self._build_megatron_dataset_splits(None, matrix, self.sizes)
        if self.config.blend is None or (self.config.blend_per_split is not None and any(self.config.blend_per_split)):
            return [None if quota is None else self._build_alone(quota) for quota in self.quotas]
        first = next(quota for quota in self.quotas if quota is not None)
        if first.kind == "single":
            return self._build_megatron_dataset_splits(first.prefixes[0], matrix, self.sizes)
        asked = [
            [0 if quota is None else quota.num_samples[number] for quota in self.quotas]
            for number in range(len(first.prefixes))
        ]
        built = self._build_megatron_datasets_parallel(first.prefixes, matrix, asked)
        return [
            None if quota is None else self._build_blend(quota, datasets)
            for quota, datasets in zip(self.quotas, built, strict=True)
        ]

    def _build_alone(self, quota: Quota) -> Any:
        """Returns a split with data of its own."""
        place = quota.split.value
        matrix = [quota.bounds if split is quota.split else None for split in Split]

        def alone(size: int | None) -> list[int | None]:
            return [size if split is quota.split else 0 for split in Split]

        if not quota.is_blend:
            datasets = [
                self._build_megatron_dataset_splits(prefix, matrix, alone(quota.size))[place]
                for prefix in quota.prefixes
            ]
            return datasets[0] if quota.kind == "single" else datasets
        asked = [alone(size) for size in quota.num_samples]
        return self._build_blend(quota, self._build_megatron_datasets_parallel(quota.prefixes, matrix, asked)[place])

    def _build_blend(self, quota: Quota, datasets: Sequence[Any]) -> Any:
        """Returns the blend of a split; without the datasets of other ranks."""
        arguments = quota.blend_arguments([0 if dataset is None else len(dataset) for dataset in datasets])
        waits = not self.config.fast_cache_load
        return self.build_generic_dataset(
            BlendedDataset, self.is_built_on_rank, waits, datasets, *arguments, self.config
        )

    def _build_megatron_datasets_parallel(
        self, prefixes: Sequence[str | None], split: Matrix, sizes_per_dataset: Sequence[Sequence[int | None]]
    ) -> list[list[Any]]:
        """Returns the datasets of each split, built by several threads; a hook."""
        apart = False  # the ranks wait here, not for each prefix

        def build() -> list[list[Any]]:
            with ThreadPoolExecutor(max_workers=self.config.num_dataset_builder_threads) as executor:
                tasks = [
                    executor.submit(
                        copy_context().run, self._build_megatron_dataset_splits, prefix, split, sizes, apart
                    )
                    for prefix, sizes in zip(prefixes, sizes_per_dataset, strict=True)
                ]
                return [list(datasets) for datasets in zip(*(task.result() for task in tasks), strict=True)]

        datasets: list[list[Any]] = _one_rank_first(build, waits=not self.config.fast_cache_load)
        return datasets

    def _build_megatron_dataset_splits(
        self, dataset_path: str | None, split: Matrix, sizes: Sequence[int | None], synchronize_ranks: bool = True
    ) -> list[Any]:
        """Returns the splits of one prefix; a hook."""
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
        """Returns `cls(*args)`; None on ranks of `torch.distributed` that do not build.

        With `synchronize_ranks`, rank 0 builds first, and the others wait for it.
        """
        return _one_rank_first(
            lambda: cls(*args) if not has_ranks() or is_built_on_rank() else None, waits=synchronize_ranks
        )


def _one_rank_first(build: Callable[[], Any], *, waits: bool) -> Any:
    """Builds, on rank 0 before the others if these wait for it."""
    if not has_ranks() or not waits:
        return build()
    is_first = torch.distributed.get_rank() == 0
    built = build() if is_first else None
    torch.distributed.barrier()
    return built if is_first else build()
