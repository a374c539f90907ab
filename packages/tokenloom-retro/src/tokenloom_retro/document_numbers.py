"""Numbers of documents and of sequences: a document whose text is empty has no sequence, each other one has one.

What is cut into chunks are sequences, and tables of chunks name them, as samples of GPT and the reference do. People
and records of inputs count documents, with the empty ones.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import ConfigError
from tokenloom.indexed.dataset import IndexedDataset

Int64s = NDArray[np.int64]


def check_one_sequence_each(pair: IndexedDataset, start: int, stop: int) -> None:
    """Checks that sequences [start, stop) are of different documents, and these have no others.

    Raises:
        ConfigError: they are parts of documents; or there are no such sequences.
    """
    if not 0 <= start <= stop <= len(pair):
        message = f"`{pair.path_prefix}`: expected sequences in [0, {len(pair)}), got [{start}, {stop})"
        raise ConfigError(message)
    boundaries = pair.document_indices
    first = bisect_right(boundaries, start) - 1
    last = bisect_left(boundaries, stop)
    counts = np.diff(np.array(boundaries[first : last + 1]))
    if len(counts) and int(counts.max()) > 1:
        document = first + int(counts.argmax())
        message = (
            f"`{pair.path_prefix}`: expected documents of one sequence each, "
            f"found {int(counts.max())} sequences in document {document}"
        )
        raise ConfigError(message, hint="tokenize the corpus without splitting sentences")


class DocumentNumbers:
    """Tells numbers of documents from those of their sequences, and the other way round; safe from several threads.

    Args:
        pair: a pair, of documents of one sequence or none.
    """

    def __init__(self, pair: IndexedDataset) -> None:
        self.num_documents: int = pair.num_documents
        self._boundaries = None if len(pair) == pair.num_documents else np.array(pair.document_indices)

    def of_sequences(self, sequences: NDArray[np.integer]) -> Int64s:
        """Returns the documents of sequences, int64[num_sequences]."""
        numbers = np.asarray(sequences, dtype=np.int64)
        if self._boundaries is None:
            return numbers
        found: Int64s = np.searchsorted(self._boundaries, numbers, side="right") - 1
        return found
