"""Computes which datasets each split reads, and the number of samples to build per dataset."""

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
"""Numbers of samples of train, valid and test; None for one epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """The datasets of one split, and the number of samples to build from each dataset.

    Attributes:
        split: the split.
        kind: "single" for one dataset, "list" for separate datasets, "weighted" for a blend by the user's weights,
            "proportional" for a blend by the lengths of the datasets.
        prefixes: prefixes of the datasets; (None,) for mock data.
        weights: configured weights; None if they are not configured or have no effect.
        bounds: interval within [0, 1]: the part of the elements of each dataset that the split reads.
        size: minimum number of samples of the split; None for one epoch.
        num_samples: minimum number of samples per dataset; None for one epoch.
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
        """Returns `size` times the normalised weight of each dataset, rounded up; weighted blends only."""
        assert self.weights is not None
        assert self.size is not None
        return target_sizes(normalize(self.weights), self.size)

    def blend_arguments(self, lengths: Sequence[int]) -> tuple[list[float], int | None]:
        """Returns the weights and the size of the `BlendedDataset`; a weighted blend ignores `lengths`."""
        if self.kind == "weighted":
            assert self.weights is not None
            return normalize(self.weights), sum(self.targets())
        return list(lengths), None if self.size is None else min(self.size, sum(lengths))

    def owed(self, lengths: Sequence[int]) -> list[int]:
        """Returns how many samples the blend takes from each dataset. Takes 10 to 100 ns per sample of the blend."""
        weights, size = self.blend_arguments(lengths)
        return list(lengths) if size is None else blend_counts(weights, size).tolist()


def three_sizes(sizes: Sizes | int | None, *, name: str = "sizes") -> Sizes:
    """Returns the sizes of train, valid and test; a single number is the size of train; None stands for one epoch."""
    if sizes is None or isinstance(sizes, (int, np.integer)):
        return [sizes if sizes is None else checked_integer(name, sizes), None, None]
    if isinstance(sizes, (str, bytes, Mapping)) or not hasattr(sizes, "__len__") or len(sizes) != len(Split):
        message = f"`{name}`: must be {len(Split)} sizes (train, valid, test), or one size for train, got {sizes!r}"
        raise ConfigError(message, hint="pass sizes such as [100_000, 1000, None], with None for one epoch")
    return sizes


def quotas(config: BlendedMegatronDatasetConfig, sizes: Sizes | int | None) -> list[Quota | None]:
    """Returns the quotas of train, valid and test for the requested `sizes`; None for a split without data."""
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
        kind, weights = "single", None  # the weight of a single dataset has no effect
    elif per_split and config.multiple_validation_sets and split is Split.valid:
        kind, weights = "list", None
        if config.full_validation and size is not None:
            message = f"the size for valid: must be None with `full_validation`, got {size}"
            raise ConfigError(message, hint="pass None, or remove `full_validation`")
    num_samples: tuple[int | None, ...] = (size,) * len(prefixes)
    if weights is not None:
        num_samples = _weighted_sizes(prefixes, weights, size, split, surplus=config.mid_level_dataset_surplus)
    elif kind == "proportional":  # one epoch of each dataset for any size of the blend
        num_samples = (None,) * len(prefixes)
    return Quota(
        split=split, kind=kind, prefixes=prefixes, weights=weights, bounds=bounds, size=size, num_samples=num_samples
    )


def _weighted_sizes(
    prefixes: Sequence[str | None], weights: Sequence[float], size: int | None, split: Split, *, surplus: float
) -> tuple[int, ...]:
    if size is None:
        message = f"the size for {split.name}: must be a number for a blend with weights, got None"
        raise ConfigError(message, hint="pass the number of samples to blend, or remove the weights")
    with np.errstate(over="ignore"):
        shares, total = normalize(weights), float(np.sum(weights))
    for prefix, weight, share in zip(prefixes, weights, shares, strict=True):
        if not share > 0:
            message = f"weight {weight!r} of `{prefix}` ({split.name}): too small for a sum of weights of {total!r}"
            raise ConfigError(message, hint="remove the dataset, or use weights of similar magnitude")
    return tuple(with_surplus(target, surplus) for target in target_sizes(shares, size))


def normalize(weights: Sequence[float]) -> list[float]:
    """Returns the weights divided by their sum, with NumPy's float64 arithmetic, as in the reference."""
    array = np.array(weights, dtype=np.float64)
    normalized: list[float] = (array / np.sum(array)).tolist()
    return normalized


def target_sizes(weights: Sequence[float], size: int) -> list[int]:
    """Returns `size` times each normalised weight, rounded up."""
    return [math.ceil(size * weight) for weight in weights]


def with_surplus(target: int, surplus: float) -> int:
    """Returns `target * (1 + surplus)`, rounded up."""
    return math.ceil(target * (1 + surplus))


def sufficient_surplus(target: int, owed: int) -> float:
    """Returns a `mid_level_dataset_surplus` that raises the size of a dataset from `target` to `owed` samples."""
    return (owed - 0.5) / target - 1  # half a sample less, so that rounding errors do not matter


def remedy_for(surplus: float | None) -> str:
    """Returns a hint for a dataset with too few samples; if `surplus` is given, the hint proposes this value."""
    setting = "raise `mid_level_dataset_surplus`"
    if surplus is not None:
        setting = f"set at least `mid_level_dataset_surplus={surplus!r}`"
    return f"set `extend_short_datasets=True` to build more epochs, or {setting}, or lower the weight of the dataset"


def blend_counts(weights: Sequence[float], size: int) -> NDArray[np.int64]:
    """Returns how many samples a `BlendedDataset` with these weights and this size takes from each dataset."""
    if size == 0:
        return np.zeros(len(weights), dtype=np.int64)
    return blending_counts(np.array(normalize(weights), dtype=np.float64), size)


def check_weights(datasets: Sequence[Any], weights: Sequence[float], size: int | None) -> None:
    """Validates the datasets and weights of a blend; if `size` is None, weights are numbers of samples."""
    if not datasets or len(datasets) != len(weights):
        raise ConfigError(f"a blend needs one weight per dataset, got {len(weights)} for {len(datasets)} datasets")
    for name, values in (
        ("class", {type(dataset).__name__ for dataset in datasets}),
        ("split", {dataset.index_split.name for dataset in datasets}),
    ):
        if len(values) != 1:
            raise ConfigError(f"datasets of a blend must have the same {name}, got {sorted(values)}")
    for number, weight in enumerate(weights):
        where = f"dataset {number} (`{datasets[number].dataset_path}`, {datasets[number].index_split.name})"
        if not weight > 0 or weight == float("inf"):
            empty = "a dataset with too few tokens for one sample has weight 0: remove it, or lower `sequence_length`"
            hint = empty if weight == 0 else None
            raise ConfigError(f"weight of {where}: must be finite and above 0, got {weight!r}", hint=hint)
        if size is None and (weight != int(weight) or weight > len(datasets[number])):
            message = f"weight of {where}: without `size`, must be an integer up to {len(datasets[number])}"
            raise ConfigError(f"{message}, got {weight!r}", hint="pass `size` to use weights as fractions")
