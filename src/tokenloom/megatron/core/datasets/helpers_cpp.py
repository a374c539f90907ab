"""`megatron.core.datasets.helpers_cpp`: the kernels of the reference, positional as there.

Arrays are converted to these dtypes; `verbose` has no effect. The functions of the same names in `tokenloom.order` and
`tokenloom.kernels` document the parameters. Weights, sizes and numbers out of range are a `ConfigError`, too short
arrays a `ValueError`, sequences that do not exist an `IndexError`.
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
    """Fills in the dataset of each sample of a weighted blend, and its number in that dataset."""
    values = _array(weights, np.float64)[:num_datasets]
    if len(values) < max(num_datasets, 1) or not (np.isfinite(values) & (values > 0)).all():
        message = f"weights must be {num_datasets} finite numbers above 0, got {values.tolist()}"
        raise ConfigError(message, hint="leave a dataset without weight out")
    chosen, given = order.build_blending_indices(values, size=size)
    dataset_index[:size] = chosen.astype(np.int16)
    dataset_sample_index[:size] = given


def build_exhaustive_blending_indices(
    dataset_index: NDArray[np.int16],
    dataset_sample_index: NDArray[np.int64],
    sizes: ArrayLike,
    num_datasets: int,
    /,
) -> None:
    """Fills in the order of a blend that takes exactly `sizes[i]` samples from dataset i, evenly mixed."""
    counts = _array(sizes, np.int64)[:num_datasets]
    if len(counts) < num_datasets or (counts < 0).any():
        raise ConfigError(f"sizes must be {num_datasets} numbers from 0 on, got {counts.tolist()}")
    size = int(counts.sum())
    (taken,) = np.nonzero(counts)
    if size == 0:
        return
    kept = counts[taken]
    chosen, given = order.build_blending_indices(kept / float(size), size=size, sizes=kept)
    dataset_index[:size] = taken[chosen].astype(np.int16)
    dataset_sample_index[:size] = given


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
    """Returns the start of each sample, and the end of the last: int32[num_samples + 1, 2].

    A row is (position in `document_idx`, token offset in that document). Samples past the end of the stream begin at
    the end of the last document.
    """
    lengths, stream = _array(sizes, np.int32), _array(document_idx, np.int32)
    extra = int(add_extra_token_to_sequence)
    num_tokens = num_epochs * tokens_per_epoch - extra
    if drop_last_partial_sequence:
        num_samples = int(num_tokens / seq_length) if num_tokens < 0 else num_tokens // seq_length
    else:  # the reference computes with floats of 32 bits
        num_samples = math.ceil(np.float32(num_tokens) / np.float32(seq_length))
    held = int(lengths[stream].sum(dtype=np.int64))
    within = max(0, min(num_samples, (held - extra) // seq_length))  # samples that end within the stream
    index: NDArray[Any] = np.empty((num_samples + 1, 2), dtype=dtype)
    index[: within + 1] = order.build_sample_index(
        lengths, stream, window_length=seq_length, extra=extra, num_windows=within, dtype=np.dtype(dtype)
    )
    if within < num_samples:
        index[within + 1 :] = (len(stream) - 1, lengths[stream[-1]] - extra)
    return index


def build_sample_idx_int64(*arguments: Any) -> NDArray[np.int64]:
    """Returns the result of `build_sample_idx_int32` as int64[num_samples + 1, 2]."""
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
    """Returns (first sentence, one past the last, target length) of each sample, shuffled: uint32[num_samples, 3].

    As `tokenloom.order.sentences.build_mapping`; uint64 for more than 2**32 - 1 sentences.
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
    """Returns (first sentence, one past the last, document, number in its pass) of blocks: uint32[num_blocks, 4].

    As `tokenloom.order.sentences.build_blocks_mapping`; uint64 for more than 2**32 - 1 sentences.
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
