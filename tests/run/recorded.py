"""Pairs that know which records of which input file their documents were made of."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from tests.indexed.columns import put_origins

from tokenloom.indexed.origins import RUNS, OriginFile


def write_lines_origins(prefix: str, runs: list[tuple[int, int, int]], *, path: str, num_records: int) -> None:
    """Writes the origins of a pair: runs of (0, first line, lines) of a file of so many lines."""
    file = OriginFile(path=path, num_bytes=1, version=None, unit="line", num_records=num_records)
    put_origins(prefix, [file], [np.array(runs, dtype=RUNS)])


def with_origins(folder: Path) -> None:
    """Documents of `code` are lines 1, 2, …; of line 3 nothing came, of line 5 two documents."""
    write_lines_origins(
        str(folder / "code"), [(0, 1, 2), (0, 4, 2), (0, 5, 136)], path="raw/code.jsonl", num_records=200
    )
