"""`megatron.core.datasets.helpers_cpp`: Megatron's kernels, with positional arguments only.

Arrays are converted to the dtypes that the kernels need. `verbose` has no effect. Arguments are documented in the
functions of the same names in `tokenloom.order` and `tokenloom.kernels`. Invalid values raise `ConfigError`, arrays
that are too short `ValueError`, and sequence indices out of range `IndexError`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tokenloom.errors import ConfigError
from tokenloom.kernels import order
from tokenloom.order import sentences


def build_blending_indices(
    dataset_index: NDArray[np.int16],
    dataset_sample_index: NDArray[np.int64],
    weights: ArrayLike,
    num_datasets: int,
    size: int,
    verbose: bool,
    /,
) -> None:
    """Fills `dataset_index` and `dataset_sample_index` in place with a weighted blend of `size` samples."""
    values = _array(weights, np.float64)[:num_datasets]
    if len(values) < max(num_datasets, 1) or not (np.isfinite(values) & (values > 0)).all():
        message = f"`weights`: must be {num_datasets} finite numbers above 0, got {values.tolist()}"
        raise ConfigError(message, hint="remove datasets with weight 0")
    datasets, samples = order.build_blending_indices(values, size=size)
    dataset_index[:size] = datasets.astype(np.int16)
    dataset_sample_index[:size] = samples


def build_exhaustive_blending_indices(
    dataset_index: NDArray[np.int16],
    dataset_sample_index: NDArray[np.int64],
    sizes: ArrayLike,
    num_datasets: int,
    /,
) -> None:
    """Fills the first two arrays in place with an even mixture that has exactly `sizes[i]` samples of dataset i."""
    counts = _array(sizes, np.int64)[:num_datasets]
    if len(counts) < num_datasets or (counts < 0).any():
        raise ConfigError(f"`sizes`: must be {num_datasets} numbers ≥ 0, got {counts.tolist()}")
    size = int(counts.sum())
    if size == 0:
        return
    (nonempty,) = np.nonzero(counts)
    counts = counts[nonempty]
    datasets, samples = order.build_blending_indices(counts / float(size), size=size, sizes=counts)
    dataset_index[:size] = nonempty[datasets].astype(np.int16)
    dataset_sample_index[:size] = samples


def build_sample_idx_int32(
    sizes: ArrayLike,
    document_idx: ArrayLike,
    seq_length: int,
    num_epochs: int,
    tokens_per_epoch: int,
    drop_last_partial_sequence: bool,
    add_extra_token_to_sequence: int,
    /,
    *,
    dtype: Any = np.int32,
) -> NDArray[Any]:
    """Returns int32[num_samples + 1, 2]: the start of each sample, then the end of the last sample.

    A row is (index in `document_idx`, token offset in that document). Samples past the last token start at the
    end of the last document.
    """
    lengths, stream = _array(sizes, np.int32), _array(document_idx, np.int32)
    extra = int(add_extra_token_to_sequence)
    num_tokens = num_epochs * tokens_per_epoch - extra
    if drop_last_partial_sequence:
        num_samples = int(num_tokens / seq_length) if num_tokens < 0 else num_tokens // seq_length
    else:  # Megatron computes this in float32
        num_samples = math.ceil(np.float32(num_tokens) / np.float32(seq_length))
    stream_tokens = int(lengths[stream].sum(dtype=np.int64))
    num_whole = max(0, min(num_samples, (stream_tokens - extra) // seq_length))  # samples that end within the stream
    index: NDArray[Any] = np.empty((num_samples + 1, 2), dtype=dtype)
    index[: num_whole + 1] = order.build_sample_index(
        lengths, stream, window_length=seq_length, extra=extra, num_windows=num_whole, dtype=np.dtype(dtype)
    )
    if num_whole < num_samples:
        index[num_whole + 1 :] = (len(stream) - 1, lengths[stream[-1]] - extra)
    return index


def build_sample_idx_int64(*arguments: Any) -> NDArray[np.int64]:
    """Returns the result of `build_sample_idx_int32` with dtype int64."""
    return build_sample_idx_int32(*arguments, dtype=np.int64)


def build_mapping(
    docs: ArrayLike,
    sizes: ArrayLike,
    num_epochs: int,
    max_num_samples: int,
    max_seq_length: int,
    short_seq_prob: float,
    seed: int,
    verbose: bool,
    min_num_sent: int,
    /,
) -> NDArray[Any]:
    """Returns uint32[num_samples, 3]: (first sentence, end sentence, target length) of each sample, shuffled.

    The end sentence is exclusive. The dtype is uint64 for more than 2**32 - 1 sentences. See
    `tokenloom.order.sentences.build_mapping`.
    """
    return sentences.build_mapping(
        _array(docs, np.int64),
        _array(sizes, np.int32),
        num_epochs=num_epochs,
        max_num_samples=min(max_num_samples, sentences.UNLIMITED),
        max_sequence_length=max_seq_length,
        short_sequence_probability=short_seq_prob,
        seed=seed,
        min_sentences=min_num_sent,
    )


def build_blocks_mapping(
    docs: ArrayLike,
    sizes: ArrayLike,
    titles_sizes: ArrayLike,
    num_epochs: int,
    max_num_samples: int,
    max_seq_length: int,
    seed: int,
    verbose: bool,
    use_one_sent_blocks: bool,
    /,
) -> NDArray[Any]:
    """Returns uint32[num_blocks, 4]: (first sentence, end sentence, document, block index in the epoch) of each block.

    The end sentence is exclusive. The dtype is uint64 for more than 2**32 - 1 sentences. See
    `tokenloom.order.sentences.build_blocks_mapping`.
    """
    return sentences.build_blocks_mapping(
        _array(docs, np.int64),
        _array(sizes, np.int32),
        _array(titles_sizes, np.int32),
        num_epochs=num_epochs,
        max_num_samples=min(max_num_samples, sentences.UNLIMITED),
        max_sequence_length=max_seq_length,
        seed=seed,
        use_one_sentence_blocks=bool(use_one_sent_blocks),
    )


def _array(values: ArrayLike, dtype: type[Any]) -> NDArray[Any]:
    return np.ascontiguousarray(values, dtype=dtype)
