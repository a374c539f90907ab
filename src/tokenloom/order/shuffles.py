"""The reference's shuffles: first of documents, then of samples, by the same `numpy.random.RandomState(seed)`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.kernels.order import LegacyRandom
from tokenloom.order.documents import Documents
from tokenloom.order.epochs import EpochPlan
from tokenloom.order.windows import sample_index_dtype

_INT32_MAX = np.iinfo(np.int32).max
_UINT32_MAX = np.iinfo(np.uint32).max


def document_index_dtype(largest: int) -> np.dtype[Any]:
    """Returns the dtype of a document index whose largest element is `largest`."""
    return np.dtype(np.int32 if largest <= _INT32_MAX else np.int64)


def shuffle_index_dtype(num_samples: int) -> np.dtype[Any]:
    """Returns the dtype of a shuffle index, which is the window of each of `num_samples` samples."""
    return np.dtype(np.uint32 if num_samples < _UINT32_MAX - 1 else np.int64)


def build_document_and_sample_index(
    documents: Documents,
    plan: EpochPlan,
    random: LegacyRandom,
    *,
    window_length: int,
    extra: int,
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Returns the shuffled documents of all epochs, and the result of `build_sample_index` for these.

    All epochs are shuffled together, except for a final epoch that the plan separates. The shuffles advance `random`.
    """
    count = len(documents)
    stream = np.empty(plan.num_epochs * count, dtype=document_index_dtype(documents.rows.largest))
    stream.reshape(plan.num_epochs, count)[:] = documents.rows.array()
    together = [plan.num_epochs - 1, 1] if plan.separate_final_epoch else [plan.num_epochs]
    windows = random.shuffle_windows(
        stream,
        documents.lengths,
        parts=np.outer(np.array(together, dtype=np.int64), np.array([count, plan.tokens_per_epoch])),
        window_length=window_length,
        extra=extra,
        num_windows=plan.num_samples,
        dtype=sample_index_dtype(len(stream)),
    )
    return stream, windows


def build_shuffle_index(plan: EpochPlan, random: LegacyRandom) -> NDArray[Any]:
    """Returns the window of each sample, a permutation; shuffles the final epoch separately if `plan` says so."""
    shuffled = np.arange(plan.num_samples, dtype=shuffle_index_dtype(plan.num_samples))
    random.shuffle(shuffled[: plan.num_samples_sans_final_epoch])
    if plan.separate_final_epoch:
        random.shuffle(shuffled[plan.num_samples_sans_final_epoch :])
    return shuffled
