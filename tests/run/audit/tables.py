"""Span tables in a few lines."""

from __future__ import annotations

import numpy as np

from tokenloom.run.audit.pair_rows import PairRows
from tokenloom.run.audit.span_table import SpanTable


def small_table(**changes) -> SpanTable:
    """Returns three spans of two samples: of `web`, which has two pairs, and of `code`."""
    columns: dict = {
        "positions": np.array([4, 4, 7]),
        "segments": np.array([0, 0, 1], dtype=np.int32),
        "sources": np.array([0, 0, 1], dtype=np.int32),
        "passes": np.array([0, 0, -1]),
        "walks": np.array([0, 0, -1]),
        "windows": np.array([3, 3, 5]),
        "documents": np.array([1, 3, 2]),
        "starts": np.array([5, 0, 0]),
        "lengths": np.array([2, 3, 5]),
        "slots": np.array([0, 2, 0]),
        "denied": np.array([False, True, False]),
        "source_names": ("web", "code"),
        "stage_names": ("main", "long"),
        "pair_rows": PairRows.of([[("w0", 2), ("w1", 4)], [("c", 9)]]),
        "run": "abc",
    }
    return SpanTable(**(columns | changes))
