"""The Megatron order: which document comes when, and which window is sample k.

One generator drives everything in a fixed sequence: first the document shuffle(s), then the sample shuffle(s). It is
`numpy.random.RandomState(seed).shuffle`, bit for bit.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.kernels import LegacyRandom
from tokenloom.order.epochs import EpochPlan

_INT32_MAX = np.iinfo(np.int32).max
_UINT32_MAX = np.iinfo(np.uint32).max


def document_index_dtype(indices: NDArray[Any]) -> np.dtype[Any]:
    """Returns the dtype of a document index; int64 only where the reference would overflow."""
    return np.dtype(np.int32 if len(indices) == 0 or int(indices.max()) <= _INT32_MAX else np.int64)


def shuffle_index_dtype(num_samples: int) -> np.dtype[Any]:
    """Returns the dtype of a shuffle index."""
    return np.dtype(np.uint32 if num_samples < _UINT32_MAX - 1 else np.int64)


def build_document_index(indices: NDArray[Any], plan: EpochPlan, random: LegacyRandom) -> NDArray[Any]:
    """Returns the stream of documents: every epoch's documents, all epochs shuffled together.

    If the plan separates the final epoch, it is shuffled by itself and stays at the end.

    Args:
        indices: integers[num_documents], the documents exposed.
        plan: how many epochs.
        random: advanced by the shuffles.
    """
    count = len(indices)
    stream = np.empty(plan.num_epochs * count, dtype=document_index_dtype(indices))
    stream.reshape(plan.num_epochs, count)[:] = indices
    if plan.separate_final_epoch:
        random.shuffle(stream[:-count])
        random.shuffle(stream[-count:])
    else:
        random.shuffle(stream)
    return stream


def build_shuffle_index(plan: EpochPlan, random: LegacyRandom) -> NDArray[Any]:
    """Returns the window behind each sample: a permutation of [0, num_samples), the final epoch's apart if separate.

    Args:
        plan: how many samples.
        random: advanced by the shuffles.
    """
    shuffled = np.arange(plan.num_samples, dtype=shuffle_index_dtype(plan.num_samples))
    random.shuffle(shuffled[: plan.num_samples_sans_final_epoch])
    if plan.separate_final_epoch:
        random.shuffle(shuffled[plan.num_samples_sans_final_epoch :])
    return shuffled
