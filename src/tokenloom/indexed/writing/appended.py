"""What is added to a dataset that is being written: checked, and in the form in which it is stored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import ConfigError

_LONGEST = 2**31 - 1  # lengths are stored as int32


def stored_as(tokens: NDArray[Any], dtype: np.dtype[Any], refuse: Callable[[int], Exception]) -> NDArray[Any]:
    """Returns tokens in the dtype of a dataset, contiguous.

    Args:
        tokens: tokens of any dtype.
        dtype: dtype of the dataset.
        refuse: makes the error for a token that does not fit.

    Raises:
        ConfigError: no integers, for a dtype of integers.
    """
    if tokens.dtype == dtype:
        return np.ascontiguousarray(tokens)
    if dtype.kind in "iu" and tokens.size:
        if tokens.dtype.kind not in "iu":
            message = f"tokens must be integers for dtype {dtype}, got {tokens.dtype}"
            raise ConfigError(message)
        lowest, highest = int(tokens.min()), int(tokens.max())
        bounds = np.iinfo(dtype)
        if lowest < bounds.min or highest > bounds.max:
            raise refuse(lowest if lowest < bounds.min else highest)
    return np.ascontiguousarray(tokens, dtype=dtype)


def checked_document_ends(
    document_ends: NDArray[np.int64] | None, lengths: NDArray[np.int32], num_tokens: int
) -> NDArray[np.int64]:
    """Returns where the documents of a block of sequences end: int64[num_documents], the sequences before each end.

    Args:
        document_ends: the same, as given; None makes every sequence a document.
        lengths: int32[num_sequences], tokens per sequence.
        num_tokens: number of tokens of the block.

    Raises:
        ValueError: the parts do not fit together.
    """
    if len(lengths) and not 0 <= int(lengths.min()) <= int(lengths.max()) <= _LONGEST:
        message = f"lengths must be in [0, {_LONGEST}], got {lengths.min()} to {lengths.max()}"
        raise ValueError(message)
    if int(lengths.sum(dtype=np.int64)) != num_tokens:
        message = f"lengths add up to {int(lengths.sum(dtype=np.int64))} tokens, but {num_tokens} were given"
        raise ValueError(message)
    if document_ends is None:
        return np.arange(1, len(lengths) + 1, dtype=np.int64)
    if np.any(np.diff(document_ends, prepend=0, append=len(lengths)) < 0) or (
        len(lengths) and (len(document_ends) == 0 or int(document_ends[-1]) != len(lengths))
    ):
        message = f"document_ends must rise to {len(lengths)}, the number of sequences"
        raise ValueError(message)
    return document_ends
