"""The owner of the numbers of a build: the data of each split, and the samples asked of each dataset."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from tokenloom.datasets.blends import Blend
from tokenloom.datasets.config import BlendedMegatronDatasetConfig
from tokenloom.datasets.splits import Split
from tokenloom.errors import ConfigError
from tokenloom.kernels.order import blending_counts
from tokenloom.numbers import checked_integer

Sizes = Sequence[int | None]
"""Samples of train, valid and test."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """The data of one split.

    Attributes:
        split: the split.
        kind: "single": one dataset. "list": several, apart from each other. "weighted": a blend by the user's weights.
            "proportional": a blend by the lengths of the datasets.
        prefixes: prefixes of the datasets; (None,) for mock data.
        weights: weights as configured; None if there are none, or without effect.
        bounds: the interval of each dataset's elements in the split, in [0, 1].
        size: samples wanted of the split at least; None for one epoch.
        num_samples: samples asked of each dataset at least; None for one epoch.
    """

    split: Split
    kind: Literal["single", "list", "weighted", "proportional"]
    prefixes: tuple[str | None, ...]
    weights: tuple[float, ...] | None
    bounds: tuple[float, float]
    size: int | None
    num_samples: tuple[int | None, ...]

    @property
    def is_blend(self) -> bool:
        """Whether the split is one `BlendedDataset`."""
        return self.kind in ("weighted", "proportional")

    def targets(self) -> list[int]:
        """Returns the share of each dataset of a weighted blend, in samples, rounded up."""
        assert self.weights is not None
        assert self.size is not None
        return target_sizes(normalize(self.weights), self.size)

    def blend_arguments(self, lengths: Sequence[int]) -> tuple[list[float], int | None]:
        """Returns weights and size of the `BlendedDataset`, given the samples of each dataset (ignored if weighted)."""
        if self.kind == "weighted":
            assert self.weights is not None
            return normalize(self.weights), sum(self.targets())
        return list(lengths), None if self.size is None else min(self.size, sum(lengths))

    def owed(self, lengths: Sequence[int]) -> list[int]:
        """Returns the samples that a blend takes of each dataset, given their lengths; 10 to 100 ns per sample."""
        weights, size = self.blend_arguments(lengths)
        return list(lengths) if size is None else blend_counts(weights, size).tolist()


def three_sizes(sizes: Sizes | int | None, *, name: str = "sizes") -> Sizes:
    """Returns the samples of train, valid and test; one number is that of train, and None means one epoch.

    Raises:
        ConfigError: they are neither a number nor three.
    """
    if sizes is None or isinstance(sizes, (int, np.integer)):
        return [sizes if sizes is None else checked_integer(name, sizes), None, None]
    if isinstance(sizes, (str, bytes, Mapping)) or not hasattr(sizes, "__len__") or len(sizes) != len(Split):
        message = f"`{name}`: must be {len(Split)} sizes (train, valid, test), or one for train, got {sizes!r}"
        raise ConfigError(message, hint="such as [100_000, 1000, 1000], with None for one epoch")
    return sizes


def quotas(config: BlendedMegatronDatasetConfig, sizes: Sizes | int | None) -> list[Quota | None]:
    """Returns the data of train, valid and test; None for a split without data.

    Args:
        config: the settings.
        sizes: samples wanted at least from train, valid and test, see `three_sizes`.

    Raises:
        ConfigError: the sizes are not three, weights come without a size, a weight vanishes beside the others, or
            several full validation sets come with a size.
    """
    sizes = three_sizes(sizes)
    for split, size in zip(Split, sizes, strict=True):
        if size is not None:
            checked_integer(f"the size for {split.name}", size, at_least=0)
    return [_quota(config, split, size) for split, size in zip(Split, sizes, strict=True)]


def _quota(config: BlendedMegatronDatasetConfig, split: Split, size: int | None) -> Quota | None:
    per_split = config.blend_per_split is not None and any(config.blend_per_split)
    blend: Blend | None
    bounds: tuple[float, float] | None
    if per_split:
        assert config.blend_per_split is not None
        blend, bounds = cast(list[Blend | None], config.blend_per_split)[split.value], (0.0, 1.0)
    else:
        assert config.split_matrix is not None
        blend, bounds = cast(Blend | None, config.blend), config.split_matrix[split.value]
        if bounds is None:
            return None
    if config.mock:
        prefixes: tuple[str | None, ...] = (None,)
        weights = None
    elif blend is None:
        return None
    else:
        prefixes, weights = tuple(blend[0]), None if blend[1] is None else tuple(blend[1])
    kind: Literal["single", "list", "weighted", "proportional"] = "proportional" if weights is None else "weighted"
    if len(prefixes) == 1 and (per_split or weights is None):
        kind, weights = "single", None  # whatever its weight
    elif per_split and config.multiple_validation_sets and split is Split.valid:
        kind, weights = "list", None
        if config.full_validation and size is not None:
            message = f"the size for valid must be None, as its datasets are read once each, got {size}"
            raise ConfigError(message, hint="or leave `full_validation` out")
    num_samples: tuple[int | None, ...] = (size,) * len(prefixes)
    if weights is not None:
        num_samples = _weighted_sizes(prefixes, weights, size, split, surplus=config.mid_level_dataset_surplus)
    elif kind == "proportional":  # one epoch of each, whatever the size of the blend
        num_samples = (None,) * len(prefixes)
    return Quota(
        split=split, kind=kind, prefixes=prefixes, weights=weights, bounds=bounds, size=size, num_samples=num_samples
    )


def _weighted_sizes(
    prefixes: Sequence[str | None], weights: Sequence[float], size: int | None, split: Split, *, surplus: float
) -> tuple[int, ...]:
    if size is None:
        message = f"no size given for {split.name}, whose blend has weights"
        raise ConfigError(message, hint="give the number of samples to blend, or leave the weights out")
    with np.errstate(over="ignore"):
        shares, total = normalize(weights), float(np.sum(weights))
    for prefix, weight, share in zip(prefixes, weights, shares, strict=True):
        if not share > 0:
            message = f"the weight {weight!r} of `{prefix}` ({split.name}) is nothing beside the sum of all, {total!r}"
            raise ConfigError(message, hint="leave the dataset out, or use weights that are nearer to each other")
    return tuple(with_surplus(target, surplus) for target in target_sizes(shares, size))


def normalize(weights: Sequence[float]) -> list[float]:
    """Returns the weights divided by their sum, in NumPy's float64, as the reference does."""
    array = np.array(weights, dtype=np.float64)
    normalized: list[float] = (array / np.sum(array)).tolist()
    return normalized


def target_sizes(weights: Sequence[float], size: int) -> list[int]:
    """Returns the samples that a blend of `size` takes of each dataset by its normalised weight, rounded up."""
    return [math.ceil(size * weight) for weight in weights]


def with_surplus(target: int, surplus: float) -> int:
    """Returns `target * (1 + surplus)`, rounded up."""
    return math.ceil(target * (1 + surplus))


def sufficient_surplus(target: int, owed: int) -> float:
    """Returns a surplus with which `owed` samples, more than the target, are asked of a dataset."""
    return (owed - 0.5) / target - 1  # half a sample off, so that rounding decides nothing


def remedy_for(surplus: float | None) -> str:
    """Returns what to do about datasets with too few samples, with a surplus that suffices if one is known."""
    raised = "raise `mid_level_dataset_surplus`"
    if surplus is not None:
        raised = f"`mid_level_dataset_surplus={surplus!r}` or more"
    return f"set `extend_short_datasets=True` to take further epochs, or {raised}, or lower the weight"


def blend_counts(weights: Sequence[float], size: int) -> NDArray[np.int64]:
    """Returns the samples that a `BlendedDataset` of these weights and this size takes of each dataset."""
    if size == 0:
        return np.zeros(len(weights), dtype=np.int64)
    return blending_counts(np.array(normalize(weights), dtype=np.float64), size)


def check_weights(datasets: Sequence[Any], weights: Sequence[float], size: int | None) -> None:
    """Checks that datasets and weights make a blend; without a size, weights are numbers of samples."""
    if not datasets or len(datasets) != len(weights):
        raise ConfigError(f"a blend needs a weight per dataset, got {len(weights)} for {len(datasets)} datasets")
    for name, values in (
        ("class", {type(dataset).__name__ for dataset in datasets}),
        ("split", {dataset.index_split.name for dataset in datasets}),
    ):
        if len(values) != 1:
            raise ConfigError(f"datasets of a blend must have one {name}, got {sorted(values)}")
    for number, weight in enumerate(weights):
        where = f"dataset {number} (`{datasets[number].dataset_path}`, {datasets[number].index_split.name})"
        if not weight > 0 or weight == float("inf"):
            empty = "it holds too few tokens for one sample: leave it out, or shorten the samples"
            hint = empty if weight == 0 else None
            raise ConfigError(f"weight of {where}: must be finite and above 0, got {weight!r}", hint=hint)
        if size is None and (weight != int(weight) or weight > len(datasets[number])):
            message = f"weight of {where}: without a size, must be up to its {len(datasets[number])} samples"
            raise ConfigError(f"{message}, got {weight!r}", hint="give a size of the blend to use weights as shares")
