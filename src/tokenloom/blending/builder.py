"""Building the splits that a configuration describes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tokenloom.datasets.base import MegatronDataset
from tokenloom.datasets.config import BlendedMegatronDatasetConfig
from tokenloom.datasets.splits import Split, SplitMatrix, split_indices
from tokenloom.errors import ConfigError


class BlendedMegatronDatasetBuilder:
    """Builds the train, valid and test datasets of a run.

    This version builds from one prefix per split, or from made-up data; a blend of several prefixes is an error.

    Args:
        cls: the dataset class, such as `GPTDataset`.
        sizes: samples wanted at least from train, valid and test; None for one epoch. `full_validation` makes it
            one epoch for valid.
        is_built_on_rank: whether this process needs the datasets.
        config: the settings.

    Raises:
        ConfigError: the sizes are not three, or the blend has several prefixes.
    """

    def __init__(
        self,
        cls: type[MegatronDataset],
        sizes: Sequence[int | None],
        is_built_on_rank: Callable[[], bool],
        config: BlendedMegatronDatasetConfig,
    ) -> None:
        if len(sizes) != len(Split):
            message = f"expected {len(Split)} sizes (train, valid, test), found {len(sizes)}"
            raise ConfigError(message)
        for blend in (config.blend, *(config.blend_per_split or ())):
            if blend is not None and (len(blend[0]) != 1 or (config.blend is not None and blend[1] is not None)):
                message = f"expected a single prefix without weights, found {len(blend[0])} prefixes in {blend!r}"
                raise ConfigError(message, hint="join the datasets with `tokenloom merge`")
        self.cls = cls
        self.sizes = list(sizes)
        if config.full_validation:
            self.sizes[Split.valid.value] = None
        self.is_built_on_rank = is_built_on_rank
        self.config = config

    def build(self) -> list[Any]:
        """Returns the datasets of train, valid and test; None where the split is empty or not built on this rank."""
        if not self.is_built_on_rank():
            return [None] * len(Split)
        config = self.config
        if config.mock or config.blend is not None:
            assert config.split_matrix is not None
            prefix = None if config.blend is None else config.blend[0][0]
            return self._build_splits(prefix, config.split_matrix, self.sizes)
        datasets: list[Any] = [None] * len(Split)
        for split in Split:
            blend = (config.blend_per_split or [None] * len(Split))[split.value]
            if blend is not None:
                matrix: SplitMatrix = [None] * len(Split)
                matrix[split.value] = (0.0, 1.0)
                datasets[split.value] = self._build_splits(blend[0][0], matrix, self.sizes)[split.value]
        return datasets

    def _build_splits(self, prefix: str | None, matrix: SplitMatrix, sizes: Sequence[int | None]) -> list[Any]:
        low_level: Any = self.cls.build_low_level_dataset(prefix, self.config)  # type: ignore[arg-type]
        num_elements = self.cls.numel_low_level_dataset(low_level)
        return [
            None
            if bounds is None
            else self.cls(low_level, prefix, split_indices(bounds, num_elements), size, split, self.config)
            for split, bounds, size in zip(Split, matrix, sizes, strict=True)
        ]
