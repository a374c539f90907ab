"""Data that reports are about."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from tokenloom import IndexedDatasetBuilder

WritePair = Callable[..., str]


@pytest.fixture
def write_pair(tmp_path: Path) -> WritePair:
    """Writes a pair with documents of ids, or of so many tokens each; returns its prefix."""

    def written(documents: Sequence[Sequence[int] | int], name: str = "corpus") -> str:
        prefix = f"{tmp_path}/{name}"
        with IndexedDatasetBuilder(f"{prefix}.bin", dtype=np.uint16) as builder:
            for document in documents:
                ids = [3] * document if isinstance(document, int) else document
                builder.add_document(ids, [len(ids)])
            builder.finalize(f"{prefix}.idx")
        return prefix

    return written
