"""`megatron.core.datasets.blended_megatron_dataset_config`: the settings common to all datasets."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tokenloom.datasets import config
from tokenloom.datasets.blends import Blend, checked_blend, is_pairs
from tokenloom.datasets.splits import SplitMatrix, split_matrix
from tokenloom.errors import ConfigError
from tokenloom.megatron.core.datasets.utils import Split, log_single_rank, logger, normalize  # noqa: F401
from tokenloom.numbers import quoted
from tokenloom.storage.addresses import is_remote
from tokenloom.storage.secrets import admit


@dataclass
class BlendedMegatronDatasetConfig(config.BlendedMegatronDatasetConfig):
    """`tokenloom.BlendedMegatronDatasetConfig` with only Megatron's validation; other invalid settings fail on use."""

    def __post_init__(self) -> None:
        """Validates the settings and computes `mock` and `split_matrix`."""
        self._check_cache_folder()
        self._check_cache_options()
        if self.fast_cache_load and self.blend is not None:
            message = "`fast_cache_load` and `blend` exclude each other"
            raise ConfigError(message, hint="use `blend_per_split` instead of `blend`")
        self._check_data()

    @staticmethod
    def _checked_blend(blend: Any, where: str) -> Blend:
        """Validates that a blend is (prefixes, weights); the builder validates the values of the weights."""
        if is_pairs(blend):
            return checked_blend(blend, where)
        prefixes, weights = blend
        if weights is not None and len(prefixes) != len(weights):
            raise ConfigError(f"{where}: got {len(weights)} weights for {len(prefixes)} prefixes")
        if any(isinstance(prefix, str) and is_remote(prefix) for prefix in prefixes):
            return [admit(prefix) for prefix in prefixes], weights
        given: Blend = blend
        return given

    @staticmethod
    def _shares_of(split: str) -> list[float]:
        return parse_and_normalize_split(split)

    @staticmethod
    def _matrix_of(shares: Sequence[float], within: Sequence[float] | None = None) -> SplitMatrix:
        return convert_split_vector_to_split_matrix(shares, within)


def parse_and_normalize_split(split: str) -> list[float]:
    """Returns the shares of train, valid and test, which sum to 1; missing weights are 0.

    Example:
        >>> parse_and_normalize_split("8:1:1")
        [0.8, 0.1, 0.1]
    """
    if re.search(r"[0-9.][eE]|[-+][0-9.]", split):  # Megatron would read "1e3" as two weights
        raise ConfigError(f"split {quoted(split)}: a number has a sign or exponent", hint="write numbers like 0.9")
    weights = [float(weight) for weight in re.findall(r"[.0-9]+", split)]
    weights += [0.0] * (len(Split) - len(weights))
    if len(weights) != len(Split):
        raise ConfigError(f"split {quoted(split)}: must have at most {len(Split)} weights, got {len(weights)}")
    return normalize(weights)


def convert_split_vector_to_split_matrix(
    vector_a: Sequence[float], vector_b: Sequence[float] | None = None
) -> SplitMatrix:
    """Returns the interval of each split as (start, end) in [0, 1]; None if the split is empty.

    With two vectors, the interval of a split is the intersection of its intervals in the two vectors.

    Example:
        >>> convert_split_vector_to_split_matrix([0.75, 0.25, 0.0])
        [(0, 0.75), (0.75, 1.0), None]
        >>> convert_split_vector_to_split_matrix([0.75, 0.25, 0.0], [0.5, 0.5, 0.0])
        [(0, 0.5), (0.75, 1.0), None]
    """
    return split_matrix(vector_a, vector_b)
