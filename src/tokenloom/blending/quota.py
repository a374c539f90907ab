"""What each split of a build is made of, and how many samples it asks of each dataset: the owner of these numbers."""

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
    """What one split is made of.

    Attributes:
        split: which.
        kind: "single": the samples of one dataset. "list": of several, apart from each other. "weighted": a blend by
            the user's weights. "proportional": a blend by the lengths of the datasets.
        prefixes: prefixes of the datasets; (None,) for made-up data.
        weights: weights as configured; None without, or where they mean nothing.
        bounds: the interval of each dataset's elements that the split exposes, in [0, 1].
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
        """Returns the samples meant for each dataset of a weighted blend: its share, rounded up."""
        assert self.weights is not None
        assert self.size is not None
        return target_sizes(normalize(self.weights), self.size)

    def blend_arguments(self, lengths: Sequence[int]) -> tuple[list[float], int | None]:
        """Returns weights and size of the `BlendedDataset`.

        Args:
            lengths: samples that each dataset has; a weighted blend does not ask.
        """
        if self.kind == "weighted":
            assert self.weights is not None
            return normalize(self.weights), sum(self.targets())
        return list(lengths), None if self.size is None else min(self.size, sum(lengths))

    def owed(self, lengths: Sequence[int]) -> list[int]:
        """Returns how many samples a blend takes of each dataset; 10 to 100 ns per sample of a blend with a size.

        Args:
            lengths: samples that each dataset has.
        """
        weights, size = self.blend_arguments(lengths)
        return list(lengths) if size is None else blend_counts(weights, size).tolist()


def three_sizes(sizes: Sizes | int | None, *, name: str = "sizes") -> Sizes:
    """Returns the samples of train, valid and test: as they are, or of train alone, where others are one epoch.

    Raises:
        ConfigError: they are neither a number nor three.
    """
    if sizes is None or isinstance(sizes, (int, np.integer)):
        return [sizes if sizes is None else checked_integer(name, sizes), None, None]
    if isinstance(sizes, (str, bytes, Mapping)) or not hasattr(sizes, "__len__"):
        message = f"expected {len(Split)} sizes (train, valid, test) as `{name}`, or one for train, found {sizes!r}"
        raise ConfigError(message, hint="such as [100_000, 1000, 1000], with None for one epoch")
    if len(sizes) != len(Split):
        message = f"expected {len(Split)} sizes (train, valid, test), found {len(sizes)}"
        raise ConfigError(message)
    return sizes


def quotas(config: BlendedMegatronDatasetConfig, sizes: Sizes | int | None) -> list[Quota | None]:
    """Returns what train, valid and test are made of; None for a split without data.

    Args:
        config: the settings.
        sizes: samples wanted at least from train, valid and test, see `three_sizes`; None for one epoch.

    Raises:
        ConfigError: the sizes are not three, weights come without a size, a weight vanishes beside the others, or
            several full validation sets come with a size.
    """
    sizes = three_sizes(sizes)
    for split, size in zip(Split, sizes, strict=True):
        if size is not None and checked_integer(f"the size for {split.name}", size) < 0:
            message = f"expected a size of at least 0 for {split.name}, found {size!r}"
            raise ConfigError(message)
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
        kind, weights = "single", None  # the only dataset of a split has all of it, whatever its weight
    elif per_split and config.multiple_validation_sets and split is Split.valid:
        kind, weights = "list", None
        if config.full_validation and size is not None:
            message = f"expected no size for valid, whose datasets are read once each, found {size}"
            raise ConfigError(message, hint="pass None, or leave `full_validation` out")
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
        message = f"expected a size for {split.name}, whose blend has weights, found None"
        raise ConfigError(message, hint="name how many samples to blend, or leave the weights out")
    with np.errstate(over="ignore"):
        shares, total = normalize(weights), float(np.sum(weights))
    for prefix, weight, share in zip(prefixes, weights, shares, strict=True):
        if not share > 0:
            message = f"the weight {weight!r} of `{prefix}` ({split.name}) is nothing beside the sum of all, {total!r}"
            raise ConfigError(message, hint="leave the dataset out, or use weights that are nearer to each other")
    return tuple(with_surplus(target, surplus) for target in target_sizes(shares, size))


def normalize(weights: Sequence[float]) -> list[float]:
    """Returns the weights divided by their sum: NumPy's float64 sum and division, as the reference does it."""
    array = np.array(weights, dtype=np.float64)
    normalized: list[float] = (array / np.sum(array)).tolist()
    return normalized


def target_sizes(weights: Sequence[float], size: int) -> list[int]:
    """Returns the samples that a blend of `size` takes of each dataset by its normalised weight, rounded up."""
    return [math.ceil(size * weight) for weight in weights]


def with_surplus(target: int, surplus: float) -> int:
    """Returns a number of samples and a share of it more, rounded up."""
    return math.ceil(target * (1 + surplus))


def blend_counts(weights: Sequence[float], size: int) -> NDArray[np.int64]:
    """Returns how many samples a `BlendedDataset` of these weights and this size takes of each dataset."""
    if size == 0:
        return np.zeros(len(weights), dtype=np.int64)
    return blending_counts(np.array(normalize(weights), dtype=np.float64), size)


def check_weights(datasets: Sequence[Any], weights: Sequence[float], size: int | None) -> None:
    """Checks that datasets and weights make a blend; without a size, weights are how many samples each gives."""
    if not datasets or len(datasets) != len(weights):
        message = f"expected as many weights as datasets, at least one, found {len(weights)} for {len(datasets)}"
        raise ConfigError(message)
    for name, values in (
        ("class", [type(dataset).__name__ for dataset in datasets]),
        ("split", [dataset.index_split.name for dataset in datasets]),
    ):
        if len(set(values)) != 1:
            message = f"expected datasets of one {name} in a blend, found {sorted(set(values))}"
            raise ConfigError(message)
    for number, weight in enumerate(weights):
        where = f"dataset {number} (`{datasets[number].dataset_path}`, {datasets[number].index_split.name})"
        if not weight > 0 or weight == float("inf"):
            message = f"expected a weight above 0 for {where}, found {weight!r}"
            empty = "it holds too few tokens for one sample: leave it out, or shorten the samples"
            raise ConfigError(message, hint=empty if weight == 0 else None)
        if size is None and (weight != int(weight) or weight > len(datasets[number])):
            message = f"expected how many of its {len(datasets[number])} samples {where} gives, found weight {weight!r}"
            raise ConfigError(message, hint="name a size of the blend to use weights as shares")
