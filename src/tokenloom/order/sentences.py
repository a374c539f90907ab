"""Which sentences are sample i, for data whose documents are sequences of sentences (BERT, T5).

The only owner of these samples' number and bounds. A sample is a run of whole sentences of one document.
"""

from __future__ import annotations

import bisect
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom import kernels
from tokenloom.errors import ConfigError
from tokenloom.numbers import checked_integer
from tokenloom.storage.local import spread_evenly

UNLIMITED = 2**63 - 1
_UINT32_MAX = np.iinfo(np.uint32).max
_CHECKED_SAMPLES = 32


def mapping_dtype(num_sentences: int) -> np.dtype[Any]:
    """Returns the dtype of a mapping over data of that many sentences."""
    return np.dtype(np.uint32 if num_sentences <= _UINT32_MAX else np.uint64)


def build_mapping(
    document_indices: NDArray[np.int64],
    sequence_lengths: NDArray[np.int32],
    *,
    num_epochs: int = 1,
    max_num_samples: int | None = None,
    max_sequence_length: int,
    short_sequence_probability: float,
    seed: int,
    min_sentences: int,
    dtype: Any = None,
) -> NDArray[Any]:
    """Returns the sentences and the target length of each sample, shuffled, as the reference's function of this name.

    A sample takes sentences of a document until it holds as many tokens as its target, and at least `min_sentences`; a
    single last sentence joins the sample before it. Documents of several sentences, one of them longer than 512
    tokens, are left out. One target in round(1 / short_sequence_probability) is short: at least 2 tokens.

    Example:
        >>> rows = build_mapping(
        ...     np.array([0, 3, 5]), np.array([4, 4, 4, 4, 9], dtype=np.int32),
        ...     max_sequence_length=8, short_sequence_probability=0.0, seed=1, min_sentences=1,
        ... )
        >>> sorted(rows.tolist())
        [[0, 3, 8], [3, 5, 8]]

    Args:
        document_indices: int64[num_documents + 1], the sentence at which each document starts, and the end.
        sequence_lengths: int32[num_sentences], tokens per sentence, of all data.
        num_epochs: passes over the documents, at most.
        max_num_samples: no further pass begins once there are so many; None for no limit.
        max_sequence_length: target length in tokens; at least 2 if there are short ones.
        short_sequence_probability: probability of a shorter target, in [0, 1].
        seed: seed in [0, 2**32).
        min_sentences: fewest sentences in a sample.
        dtype: uint32 or uint64; by default, as wide as the number of sentences asks.

    Returns:
        dtype[num_samples, 3]: first sentence, one past the last, target length. The last pass is always complete.

    Raises:
        ConfigError: a number is out of its range.
        IndexError: the documents own sentences that do not exist.
    """
    _check_arrays(document_indices, sequence_lengths)
    _check_numbers(seed, num_epochs, max_num_samples)
    checked_integer("max_sequence_length", max_sequence_length, at_least=2 if short_sequence_probability else 1)
    if not 0 <= short_sequence_probability <= 1:
        message = f"expected short_sequence_probability in [0, 1], found {short_sequence_probability!r}"
        raise ConfigError(message)
    return kernels.build_mapping(
        sequence_lengths,
        document_indices,
        num_epochs=num_epochs,
        max_num_samples=UNLIMITED if max_num_samples is None else max_num_samples,
        max_length=max_sequence_length,
        short_probability=short_sequence_probability,
        seed=seed,
        min_sentences=min_sentences,
        dtype=_chosen_dtype(dtype, len(sequence_lengths)),
    )


def build_blocks_mapping(
    document_indices: NDArray[np.int64],
    sequence_lengths: NDArray[np.int32],
    title_lengths: NDArray[np.int32],
    *,
    num_epochs: int = 1,
    max_num_samples: int | None = None,
    max_sequence_length: int,
    seed: int,
    use_one_sentence_blocks: bool = False,
    dtype: Any = None,
) -> NDArray[Any]:
    """Returns blocks of sentences for retrieval, shuffled, as the reference's function of this name.

    As `build_mapping`, with room for the title of the document in each block, and without short targets.

    Args:
        document_indices: int64[num_documents + 1], the sentence at which each document starts, and the end.
        sequence_lengths: int32[num_sentences], tokens per sentence, of all data.
        title_lengths: int32[num_documents], tokens of each document's title.
        num_epochs: passes over the documents, at most.
        max_num_samples: no further pass begins once there are so many; None for no limit.
        max_sequence_length: tokens of a block and its title.
        seed: seed in [0, 2**32).
        use_one_sentence_blocks: whether a block may consist of one sentence; else it has two or more.
        dtype: uint32 or uint64; by default, as wide as the number of sentences asks.

    Returns:
        dtype[num_blocks, 4]: first sentence, one past the last, document, number of the block in its pass.

    Raises:
        ConfigError: a number is out of its range.
        IndexError: the documents own sentences that do not exist.
    """
    _check_arrays(document_indices, sequence_lengths)
    _check_numbers(seed, num_epochs, max_num_samples)
    checked_integer("max_sequence_length", max_sequence_length, at_least=1)
    if title_lengths.dtype != np.int32 or len(title_lengths) != max(len(document_indices) - 1, 0):
        message = (
            f"expected int32[{max(len(document_indices) - 1, 0)}] as title_lengths, one for each document, "
            f"found {title_lengths.dtype}{list(title_lengths.shape)}"
        )
        raise ConfigError(message)
    return kernels.build_blocks_mapping(
        sequence_lengths,
        document_indices,
        title_lengths,
        num_epochs=num_epochs,
        max_num_samples=UNLIMITED if max_num_samples is None else max_num_samples,
        max_length=max_sequence_length,
        seed=seed,
        min_sentences=1 if use_one_sentence_blocks else 2,
        dtype=_chosen_dtype(dtype, len(sequence_lengths)),
    )


def sentence_misfit(
    mapping: NDArray[Any], document_indices: NDArray[np.int64], *, max_sequence_length: int
) -> str | None:
    """Returns why a mapping cannot belong to these documents, or None; looks at a few samples only.

    A sample lies in one document, which fails for nearly all samples when the data behind a cached mapping were
    replaced.
    """
    count = len(mapping)
    for row in spread_evenly(count, _CHECKED_SAMPLES):
        start, stop, target = (int(value) for value in mapping[row])
        document = bisect.bisect_right(document_indices, start) - 1
        inside = 0 <= document < len(document_indices) - 1 and start < stop <= document_indices[document + 1]
        if not inside:
            return f"sample {row} takes sentences [{start}, {stop}), which are not in one document of this split"
        if not 0 < target <= max_sequence_length:
            return f"sample {row} has a target of {target} tokens, which must be in [1, {max_sequence_length}]"
    return None


def _chosen_dtype(dtype: Any, num_sentences: int) -> np.dtype[Any]:
    chosen = mapping_dtype(num_sentences) if dtype is None else np.dtype(dtype)
    if chosen not in (np.uint32, np.uint64):
        message = f"expected a dtype of uint32 or uint64, found {chosen}"
        raise ConfigError(message)
    return chosen


def _check_arrays(document_indices: NDArray[Any], sequence_lengths: NDArray[Any]) -> None:
    for name, array, dtype in (
        ("document_indices", document_indices, np.int64),
        ("sequence_lengths", sequence_lengths, np.int32),
    ):
        if array.dtype != dtype or array.ndim != 1:
            message = f"expected {np.dtype(dtype)} in one dimension as {name}, found {array.dtype}{list(array.shape)}"
            raise ConfigError(message)


def _check_numbers(seed: int, num_epochs: int, max_num_samples: int | None) -> None:
    checked_integer("a seed", seed, at_least=0, below=2**32)
    checked_integer("num_epochs", num_epochs, at_least=1)
    if max_num_samples is not None:
        checked_integer("max_num_samples", max_num_samples, at_least=0)
