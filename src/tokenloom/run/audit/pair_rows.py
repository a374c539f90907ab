"""Documents of sources as rows of pairs, and back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from tokenloom.run.lock import RunLock

Int64s = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PairRows:
    """The pairs of all sources, one source after the other, in the order in which documents count over them.

    Attributes:
        prefixes: their prefixes.
        first_pairs: int64[num_sources + 1], the first pair of each source, and the end.
        first_documents: int64[num_pairs], number of the first document of each pair in its source.
    """

    prefixes: tuple[str, ...]
    first_pairs: Int64s
    first_documents: Int64s

    @classmethod
    def of_lock(cls, lock: RunLock) -> Self:
        """Returns the pairs of a run."""
        return cls.of([[(pair.prefix, pair.num_documents) for pair in source.pairs] for source in lock.sources])

    @classmethod
    def of(cls, sources: Sequence[Sequence[tuple[str, int]]]) -> Self:
        """Returns the pairs of sources.

        Args:
            sources: of each source its pairs, as prefix and number of documents.
        """
        counts = [np.array([count for _, count in pairs], dtype=np.int64) for pairs in sources]
        firsts = [np.cumsum(each) - each for each in counts]
        return cls(
            prefixes=tuple(prefix for pairs in sources for prefix, _ in pairs),
            first_pairs=np.cumsum([0, *(len(pairs) for pairs in sources)], dtype=np.int64),
            first_documents=np.concatenate([np.empty(0, dtype=np.int64), *firsts]),
        )

    def locate(self, sources: NDArray[np.int32], documents: Int64s) -> tuple[NDArray[np.int32], Int64s]:
        """Returns the pair that each document lies in, and its row there, from 0: int32[count], int64[count].

        Args:
            sources: int32[count], numbers of sources.
            documents: int64[count], numbers of documents of these.
        """
        pairs = np.empty(len(documents), dtype=np.int32)
        for source in np.unique(sources).tolist():
            chosen = np.flatnonzero(sources == source)
            first, stop = self.first_pairs[source : source + 2].tolist()
            found = np.searchsorted(self.first_documents[first:stop], documents[chosen], side="right")
            pairs[chosen] = first + found - 1
        return pairs, documents - self.first_documents[pairs]

    def source_of(self, pair: int) -> int:
        """Returns the number of the source that a pair is of."""
        return int(np.searchsorted(self.first_pairs, pair, side="right")) - 1
