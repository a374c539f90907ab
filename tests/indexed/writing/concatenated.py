"""Parts of a small pair."""

from __future__ import annotations

import numpy as np

from tokenloom import ConcatenatedPart

CORPUS = [[[1, 2], [3]], [], [[4]], [[], [5, 6]]]


def part(prefix, *, documents=None, kept=None):
    mask = None if kept is None else np.array(kept, dtype=np.bool_)
    return ConcatenatedPart(prefix=prefix, documents=documents, kept_documents=mask)
