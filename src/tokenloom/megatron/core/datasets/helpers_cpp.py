"""`megatron.core.datasets.helpers_cpp`: the kernels of the reference, positional as there.

Arrays are converted to the dtypes that are named, and nothing is printed with `verbose`. What the parameters mean is
said by the functions of `tokenloom.order` and `tokenloom.kernels` that do the same.
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
    """Fills in which dataset each sample of a weighted blend comes from, and how many that dataset gave before.

    Raises:
        ConfigError: a weight is missing, not finite, or not above 0.
        ValueError: an array is too short.
    """
    values = _array(weights, np.float64)[:num_datasets]
    if len(values) < max(num_datasets, 1) or not (np.isfinite(values) & (values > 0)).all():
        message = f"expected {num_datasets} finite weights above 0 of at least 1 dataset, found {values.tolist()}"
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
    """Fills in the order of a blend that takes exactly `sizes[i]` samples from dataset i, evenly mixed.

    Raises:
        ConfigError: a size is missing or negative.
        ValueError: an array is too short.
    """
    counts = _array(sizes, np.int64)[:num_datasets]
    if len(counts) < num_datasets or (counts < 0).any():
        message = f"expected {num_datasets} sizes of at least 0, found {counts.tolist()}"
        raise ConfigError(message)
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
    """Returns where each sample begins, and the last one ends: int32[num_samples + 1, 2].

    A row is (position in `document_idx`, token offset in that document). What lies behind the last token of the stream
    begins at the end of the last document.

    Raises:
        IndexError: the stream names a sequence that does not exist.
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
    """Returns what `build_sample_idx_int32` does, as int64[num_samples + 1, 2]."""
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

    Raises:
        ConfigError: a number is out of its range.
        IndexError: the documents own sentences that do not exist.
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

    Raises:
        ConfigError: a number is out of its range.
        IndexError: the documents own sentences that do not exist.
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
