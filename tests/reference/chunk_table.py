"""Chunks of documents, one after the other: the slow twin of `tokenloom_retro.chunk_table`."""

from collections.abc import Sequence


def chunk_rows(documents: Sequence[Sequence[int]], eod: int, chunk_length: int) -> list[tuple[int, int, int]]:
    """Returns (document, start, end) of every chunk."""
    rows = []
    for number, tokens in enumerate(documents):
        length = len(tokens) - (len(tokens) > 0 and tokens[-1] == eod)
        rows += [(number, start, min(start + chunk_length, length)) for start in range(0, length, chunk_length)]
    return rows
