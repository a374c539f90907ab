"""`megatron.core.datasets.helpers`: builds the index arrays of datasets and blends."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import ConfigError
from tokenloom.megatron.core.datasets.helpers_cpp import (  # noqa: F401
    build_blending_indices,
    build_blocks_mapping,
    build_exhaustive_blending_indices,
    build_mapping,
    build_sample_idx_int32,
    build_sample_idx_int64,
)


def build_sample_idx(
    sizes: NDArray[np.int32],
    document_indices: NDArray[np.int32],
    sequence_length: int,
    num_epochs: int,
    tokens_per_epoch: int,
    drop_last_partial_sequence: bool = True,
    add_extra_token_to_sequence: bool = True,
) -> NDArray[Any]:
    """Returns the sample index, see `build_sample_idx_int32`; int64 if an index or length exceeds int32."""
    largest = max(document_indices.shape[0], int(sizes.max()))
    build = build_sample_idx_int32 if largest <= np.iinfo(np.int32).max else build_sample_idx_int64
    stream = document_indices, sequence_length, num_epochs, tokens_per_epoch
    index: NDArray[Any] = build(sizes, *stream, drop_last_partial_sequence, int(bool(add_extra_token_to_sequence)))
    if index.dtype == np.int32 and not (index.min() >= 0 and index.max() <= largest):  # as with an empty last document
        raise ConfigError(f"values of the sample index must be in [0, {largest}], got {index.min()} to {index.max()}")
    return index
