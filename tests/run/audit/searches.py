"""What a search for documents finds, and what a look at every position finds."""

from __future__ import annotations

import numpy as np

from tokenloom.run.audit.occurrences import OccurrenceSearch
from tokenloom.run.members import Reading
from tokenloom.run.run import Run

Row = tuple[int, ...]


def search(run: Run) -> OccurrenceSearch:
    return OccurrenceSearch(run.timeline, tokenizer=run.tokenizer, reading=Reading())


def scanned(run: Run, source: int, documents, *, start: int = 0, stop: int | None = None) -> list[Row]:
    """Returns the rows of documents among all that is traced."""
    last = run.num_samples if stop is None else stop
    table = run.trace(np.arange(start, last))
    return rows_of(table.take((table.sources == source) & np.isin(table.documents, list(documents))))


def rows_of(table) -> list[Row]:
    """Returns position, document, start, length, whether denied, walk, pass, slot, segment of each row."""
    columns = (
        table.positions, table.documents, table.starts, table.lengths, table.denied, table.walks, table.passes,
        table.slots, table.segments,
    )  # fmt: skip
    return list(zip(*(column.tolist() for column in columns), strict=True))
