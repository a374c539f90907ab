"""Kernels that name samples by their tokens; `DigestSums` names them by their positions besides."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom import _native


def digest_tokens(tokens: NDArray[Any]) -> NDArray[np.uint64]:
    """Returns a digest of each row of tokens, uint64[num_samples, 2], never 0 in both halves as far as anyone knows.

    Tokens count by their values, whatever dtype holds them; those of uint64 modulo 2**64.

    Args:
        tokens: integers[num_samples, length]; int64 and int32 are read as they are, others are copied.
    """
    if tokens.dtype not in (np.int64, np.int32):  # which a foreign byte order is not either
        tokens = tokens.astype(np.int64)
    out = np.empty((len(tokens), 2), dtype=np.uint64)
    _native.digest_rows(np.ascontiguousarray(tokens), out)
    return out
