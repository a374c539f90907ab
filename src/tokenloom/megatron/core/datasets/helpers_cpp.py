"""`megatron.core.datasets.helpers_cpp`: the kernels of the reference, positional as there.

Arrays are converted to the dtypes that are named; those that are filled must have theirs.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tokenloom import kernels
from tokenloom.errors import ConfigError
from tokenloom.order import sentences

__all__ = [
    "build_blending_indices",
    "build_blocks_mapping",
    "build_exhaustive_blending_indices",
    "build_mapping",
    "build_sample_idx_int32",
    "build_sample_idx_int64",
]


def build_blending_indices(
    dataset_index: NDArray[np.int16],
    dataset_sample_index: NDArray[np.int64],
    weights: ArrayLike,
    num_datasets: int,
    size: int,
    verbose: bool,  # noqa: FBT001 - the reference's signature
    /,
) -> None:
    """Fills in which dataset each sample of a weighted blend comes from, and how many that dataset gave before.

    Args:
        dataset_index: int16[at least size], filled.
        dataset_sample_index: int64[at least size], filled.
        weights: float64[at least num_datasets].
        num_datasets: how many of the weights count.
        size: samples of the blend.
        verbose: whether to print weights and shares.

    Raises:
        ConfigError: an array is too short or of another dtype, or a weight is not finite.
    """
    _check_filled(dataset_index, dataset_sample_index, size)
    values = _array(weights, np.float64)[:num_datasets]
    if len(values) < max(num_datasets, 1) or not np.isfinite(values).all():
        message = f"expected {num_datasets} finite weights of at least 1 dataset, found {values.tolist()}"
        raise ConfigError(message)
    chosen, given = (
        kernels.build_blending_indices(values, size=size) if (values > 0).all() else _blend_step_by_step(values, size)
    )
    dataset_index[:size] = chosen.astype(np.int16)
    dataset_sample_index[:size] = given
    if verbose and size > 0:
        counts = np.bincount(chosen, minlength=num_datasets)
        for number, (weight, count) in enumerate(zip(values.tolist(), counts.tolist(), strict=True)):
            print(f"dataset {number}: weight {weight:g}, share {count / size:g}")


def build_exhaustive_blending_indices(
    dataset_index: NDArray[np.int16],
    dataset_sample_index: NDArray[np.int64],
    sizes: ArrayLike,
    num_datasets: int,
    /,
) -> None:
    """Fills in the order of a blend that takes exactly `sizes[i]` samples from dataset i, evenly mixed.

    Args:
        dataset_index: int16[at least the sum of sizes], filled.
        dataset_sample_index: int64[at least the sum of sizes], filled.
        sizes: int64[at least num_datasets], at least 0 each.
        num_datasets: how many of the sizes count.

    Raises:
        ConfigError: an array is too short or of another dtype, or a size is negative.
    """
    counts = _array(sizes, np.int64)[:num_datasets]
    if len(counts) < num_datasets or (counts < 0).any():
        message = f"expected {num_datasets} sizes of at least 0, found {counts.tolist()}"
        raise ConfigError(message)
    size = int(counts.sum())
    _check_filled(dataset_index, dataset_sample_index, size)
    (taken,) = np.nonzero(counts)
    if size == 0:
        return
    kept = counts[taken]
    chosen, given = kernels.build_blending_indices(kept / float(size), size=size, sizes=kept)
    dataset_index[:size] = taken[chosen].astype(np.int16)
    dataset_sample_index[:size] = given


def build_sample_idx_int32(
    sizes: ArrayLike,
    document_idx: ArrayLike,
    seq_length: int,
    num_epochs: int,
    tokens_per_epoch: int,
    drop_last_partial_sequence: bool,  # noqa: FBT001 - the reference's signature
    add_extra_token_to_sequence: int,
    /,
) -> NDArray[np.int32]:
    """Returns where each sample begins, and the last one ends: int32[num_samples + 1, 2].

    A row is (position in `document_idx`, token offset in that document). What lies behind the last token of the stream
    begins at the end of the last document.

    Args:
        sizes: int32[num_sequences], tokens per sequence.
        document_idx: int32[num_documents], the stream, as rows of `sizes`.
        seq_length: tokens of a sample.
        num_epochs: passes that the stream holds.
        tokens_per_epoch: tokens of one pass.
        drop_last_partial_sequence: whether a last sample that would not be full is left out.
        add_extra_token_to_sequence: tokens that a sample reads beyond its length, 0 or 1.

    Raises:
        IndexError: the stream names a sequence that does not exist.
    """
    return _sample_index(
        *(sizes, document_idx, seq_length, num_epochs, tokens_per_epoch),
        drop_last=drop_last_partial_sequence,
        extra=int(add_extra_token_to_sequence),
        dtype=np.dtype(np.int32),
    )


def build_sample_idx_int64(
    sizes: ArrayLike,
    document_idx: ArrayLike,
    seq_length: int,
    num_epochs: int,
    tokens_per_epoch: int,
    drop_last_partial_sequence: bool,  # noqa: FBT001 - the reference's signature
    add_extra_token_to_sequence: int,
    /,
) -> NDArray[np.int64]:
    """Returns what `build_sample_idx_int32` does, as int64[num_samples + 1, 2]."""
    return _sample_index(
        *(sizes, document_idx, seq_length, num_epochs, tokens_per_epoch),
        drop_last=drop_last_partial_sequence,
        extra=int(add_extra_token_to_sequence),
        dtype=np.dtype(np.int64),
    )


def build_mapping(
    docs: ArrayLike,
    sizes: ArrayLike,
    num_epochs: int,
    max_num_samples: int,
    max_seq_length: int,
    short_seq_prob: float,
    seed: int,
    verbose: bool,  # noqa: FBT001 - the reference's signature
    min_num_sent: int,
    /,
) -> NDArray[Any]:
    """Returns (first sentence, one past the last, target length) of each sample, shuffled: uint32[num_samples, 3].

    See `tokenloom.order.sentences.build_mapping`, which has the same arguments by name; uint64 for more than 2**32 - 1
    sentences.

    Raises:
        ConfigError: a number is out of its range.
        IndexError: the documents own sentences that do not exist.
    """
    mapping = sentences.build_mapping(
        _array(docs, np.int64),
        _array(sizes, np.int32),
        num_epochs=num_epochs,
        max_num_samples=min(max_num_samples, sentences.UNLIMITED),
        max_sequence_length=max_seq_length,
        short_sequence_probability=short_seq_prob,
        seed=seed,
        min_sentences=min_num_sent,
    )
    _say_rows(mapping, verbose=verbose)
    return mapping


def build_blocks_mapping(
    docs: ArrayLike,
    sizes: ArrayLike,
    titles_sizes: ArrayLike,
    num_epochs: int,
    max_num_samples: int,
    max_seq_length: int,
    seed: int,
    verbose: bool,  # noqa: FBT001 - the reference's signature
    use_one_sent_blocks: bool,  # noqa: FBT001 - the reference's signature
    /,
) -> NDArray[Any]:
    """Returns (first sentence, one past the last, document, number in its pass) of blocks: uint32[num_blocks, 4].

    See `tokenloom.order.sentences.build_blocks_mapping`, which has the same arguments by name; uint64 for more than
    2**32 - 1 sentences.

    Raises:
        ConfigError: a number is out of its range.
        IndexError: the documents own sentences that do not exist.
    """
    mapping = sentences.build_blocks_mapping(
        _array(docs, np.int64),
        _array(sizes, np.int32),
        _array(titles_sizes, np.int32),
        num_epochs=num_epochs,
        max_num_samples=min(max_num_samples, sentences.UNLIMITED),
        max_sequence_length=max_seq_length,
        seed=seed,
        use_one_sentence_blocks=bool(use_one_sent_blocks),
    )
    _say_rows(mapping, verbose=verbose)
    return mapping


def _array(values: ArrayLike, dtype: type[Any]) -> NDArray[Any]:
    return np.ascontiguousarray(values, dtype=dtype)


def _say_rows(mapping: NDArray[Any], *, verbose: bool) -> None:
    if verbose:
        print(f"mapping of {len(mapping)} samples, {mapping.dtype}")


def _check_filled(dataset_index: NDArray[Any], dataset_sample_index: NDArray[Any], size: int) -> None:
    """Refuses arrays that cannot be filled: the reference would fill a copy, or write past the end."""
    expected = (("dataset_index", dataset_index, np.int16), ("dataset_sample_index", dataset_sample_index, np.int64))
    for name, array, dtype in expected:
        if not isinstance(array, np.ndarray) or array.dtype != dtype or array.ndim != 1 or len(array) < size:
            found = f"{array.dtype}{list(array.shape)}" if isinstance(array, np.ndarray) else type(array).__name__
            message = f"expected {np.dtype(dtype)}[{size}] as {name}, found {found}"
            raise ConfigError(message)


def _blend_step_by_step(weights: NDArray[np.float64], size: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns the blend for weights that the kernel does not take: those of 0 or below."""
    counts = np.zeros(len(weights))
    chosen = np.empty(size, dtype=np.int64)
    given = np.empty(size, dtype=np.int64)
    for step in range(size):
        best = int(np.argmax(weights * max(step, 1) - counts))
        chosen[step] = best
        given[step] = counts[best]
        counts[best] += 1
    return chosen, given


def _sample_index(
    sizes: ArrayLike,
    document_idx: ArrayLike,
    seq_length: int,
    num_epochs: int,
    tokens_per_epoch: int,
    *,
    drop_last: bool,
    extra: int,
    dtype: np.dtype[Any],
) -> NDArray[Any]:
    lengths = _array(sizes, np.int32)
    stream = _array(document_idx, np.int32)
    num_tokens = num_epochs * tokens_per_epoch - extra
    if drop_last:
        num_samples = int(num_tokens / seq_length) if num_tokens < 0 else num_tokens // seq_length
    else:  # the reference computes with floats of 32 bits
        num_samples = math.ceil(np.float32(num_tokens) / np.float32(seq_length))
    within = _num_within(lengths, stream, seq_length, extra=extra, at_most=num_samples)
    index: NDArray[Any] = np.empty((num_samples + 1, 2), dtype=dtype)
    index[: within + 1] = kernels.build_sample_index(
        lengths, stream, window_length=seq_length, extra=extra, num_windows=within, dtype=dtype
    )
    if within < num_samples:
        index[within + 1 :] = (len(stream) - 1, lengths[stream[-1]] - extra)
    return index


def _num_within(
    lengths: NDArray[np.int32], stream: NDArray[np.int32], seq_length: int, *, extra: int, at_most: int
) -> int:
    """Returns how many samples end within the stream, at most so many."""
    total = int(lengths[stream].sum(dtype=np.int64))
    return max(0, min(at_most, (total - extra) // seq_length))
