"""Pairs to blend."""

from __future__ import annotations

from pathlib import Path

from tests.support import write_corpus


def corpora(folder: Path, count: int) -> list[str]:
    """Writes pairs of one document of ten tokens, of two, and so on; returns their prefixes."""
    return [write_corpus(folder / f"s{number}", [[1] * 10] * (number + 1)) for number in range(count)]
