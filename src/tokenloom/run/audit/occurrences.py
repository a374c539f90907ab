"""From documents to the positions that read them, past and to come: the inverse of the order, by arithmetic.

A walk through a source is a permutation of its windows; which window a token falls into takes the sum of what comes
before its document, and where that window stands is the inverse of the mixture. Nothing is kept per walk, and nothing
is read but the lengths of the pairs that the documents lie in.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import ConfigError
from tokenloom.kernels import sample_numbers
from tokenloom.order.walk_order import Occurrences
from tokenloom.order.windows import SpanBatch
from tokenloom.run.audit.span_table import Int64s, PairRows, SpanTable
from tokenloom.run.audit.windows_read import Cut, Ranges, windows_read
from tokenloom.run.dataset import RunDataset
from tokenloom.run.digest import run_identity
from tokenloom.run.lock import MOST_SAMPLES, RunLock
from tokenloom.run.progress import MOST_WALKS, too_many_walks
from tokenloom.run.sample_settings import CONVERSATIONS

Documents = Sequence[int] | NDArray[np.integer[Any]]
"""Numbers of documents of a source."""

_MOST_AT_ONCE = 1 << 18
"""Documents times walks that are looked for at a time."""


class OccurrenceSearch:
    """Where documents of a run are read. Pairs are opened when one of their documents is asked for, and stay open."""

    def __init__(self, dataset: RunDataset) -> None:
        self._timeline = dataset.timeline
        self._groups = dataset.groups
        self._pair_rows = PairRows.of_lock(dataset.lock)
        self._identity = run_identity(dataset.lock)

    def find(self, source: int, documents: Documents, *, start: int = 0, stop: int | None = None) -> SpanTable:
        """Returns all spans of documents at positions [start, stop), in the order of positions and of their samples.

        Documents that are held out, or empty, have none. A document that is denied keeps its spans: from the denial on
        they are marked, and padding stands there.
        """
        lock = self._timeline.lock
        wanted = checked_documents(lock, source, documents)
        first, last = checked_range(self._timeline.num_samples, start, stop)
        found = []
        if len(wanted) and first < last:
            read = windows_read(self._timeline, first, self._block_end(last), sources=[source])
            for cut, ranges in read.get(source, {}).items():
                for walks, passes in self._walks(source, cut, ranges, len(wanted)):
                    occurrences = self._occurrences(source, cut.sequence_length, walks, wanted)
                    found.append(self._placed(source, cut, occurrences, walks, passes, first, last))
        return self._table(source, found)

    def _block_end(self, stop: int) -> int:
        """Returns the end of the mixing block that ends at a position or behind it; what is read of it is ranges."""
        starts = [segment.start for segment in self._timeline.segments if segment.start < stop]
        block = self._timeline.lock.mixing_block
        return starts[-1] - (starts[-1] - stop) // block * block

    def _walks(self, source: int, cut: Cut, ranges: Ranges, num_documents: int) -> Iterator[tuple[Int64s, Int64s]]:
        """Yields the walks that windows are of, a few at a time, and their passes, after telling the order of them."""
        size = cut.num_windows
        order = self._groups.member(source, cut.sequence_length).order
        if (last := max(stop - 1 for _, stop in ranges) // size) >= MOST_WALKS:
            raise too_many_walks(self._timeline.lock.sources[source].name, "the last position that is asked for", last)
        walks = np.unique(np.concatenate([np.arange(a // size, (b - 1) // size + 1) for a, b in ranges]))
        at_once = max(1, _MOST_AT_ONCE // num_documents)
        for run in np.split(walks, np.flatnonzero(np.diff(walks) > 1) + 1):  # others lie between
            begin = self._timeline.walk_of(source, int(run[0]))
            order.add_walks(begin.number, begin.first_pair, begin.last_pair, begin.num_windows)
            passes = run - run[0] + begin.pass_number
            for at in range(0, len(run), at_once):
                yield run[at : at + at_once], passes[at : at + at_once]

    def _occurrences(self, source: int, length: int, walks: Int64s, documents: Int64s) -> Occurrences:
        member = self._groups.member(source, length)
        found = member.order.occurrences(walks, documents)
        if self._timeline.lock.dataset not in CONVERSATIONS or not len(found.walks):
            return found
        # The order counts slots, or one for a conversation; of tokens a sample takes as many in every walk.
        some, first = np.unique(found.documents, return_index=True)
        numbers = sample_numbers(found.walks[first], found.windows[first])
        spans: SpanBatch = member.ask(lambda dataset: dataset.span_batch(numbers))
        by_document = np.argsort(spans.documents, kind="stable")
        places = by_document[np.searchsorted(spans.documents[by_document], some)]
        lengths = spans.lengths[places][np.searchsorted(some, found.documents)]
        return found._replace(starts=np.zeros_like(lengths), lengths=lengths)

    def _placed(
        self, source: int, cut: Cut, found: Occurrences, walks: Int64s, passes: Int64s, start: int, stop: int
    ) -> dict[str, NDArray[Any]]:
        """Returns what of it stands in [start, stop), as columns of a table."""
        positions = self._timeline.positions_of(source, found.walks, found.windows, sequence_length=cut.sequence_length)
        inside = np.flatnonzero((positions >= start) & (positions < stop))
        return {
            "positions": positions[inside],
            "passes": passes[np.searchsorted(walks, found.walks[inside])],
            **{name: column[inside] for name, column in found._asdict().items()},
        }

    def _table(self, source: int, found: Sequence[dict[str, NDArray[Any]]]) -> SpanTable:
        names = ("positions", "passes", *Occurrences._fields)
        empty = np.empty(0, dtype=np.int64)
        columns: dict[str, Any] = {name: np.concatenate([empty, *(part[name] for part in found)]) for name in names}
        in_order = np.lexsort((columns["slots"], columns["positions"]))
        columns = {name: column[in_order] for name, column in columns.items()}
        lock, positions = self._timeline.lock, columns["positions"]
        starts = np.array([segment.start for segment in lock.segments], dtype=np.int64)
        return SpanTable(
            **columns,
            segments=(np.searchsorted(starts, positions, side="right") - 1).astype(np.int32),
            sources=np.full(len(positions), source, dtype=np.int32),
            denied=positions >= denied_from(lock, source, columns["documents"]),
            source_names=tuple(each.name for each in lock.sources),
            stage_names=tuple(segment.stage for segment in lock.segments),
            pair_rows=self._pair_rows,
            run=self._identity,
        )


def checked_documents(lock: RunLock, source: int, documents: Documents) -> Int64s:
    """Returns documents of a source, rising: int64[num_documents], each once."""
    wanted = np.unique(np.asarray(documents, dtype=np.int64))
    count = sum(pair.num_documents for pair in lock.sources[source].pairs)
    if len(wanted) and not 0 <= (wrong := int(wanted[0] if wanted[0] < 0 else wanted[-1])) < count:
        message = f"expected a document of source {lock.sources[source].name!r} in [0, {count}), found {wrong}"
        raise ConfigError(message, hint="documents are numbered over the pairs of a source, as in run.lock")
    return wanted


def checked_range(num_samples: int | None, start: int, stop: int | None) -> tuple[int, int]:
    """Returns the positions that are asked for, up to the end of the run."""
    if stop is None:
        if num_samples is None:
            message = "expected a position to stop at, found none, and the last stage of the run has no end"
            raise ConfigError(message, hint="say up to which position or step documents are looked for")
        stop = num_samples
    if not 0 <= start <= stop:
        message = f"expected positions from 0 on, and `stop` behind `start`, found [{start}, {stop})"
        raise ConfigError(message)
    if num_samples is None and stop > MOST_SAMPLES:
        message = f"expected a position up to {MOST_SAMPLES}, which no run goes beyond, found {stop}"
        raise ConfigError(message)
    return start, stop if num_samples is None else min(stop, num_samples)


def denied_from(lock: RunLock, source: int, documents: Int64s) -> Int64s:
    """Returns the first position at which each document of a source is denied: int64[count], 2**62 where it is not."""
    first = np.full(len(documents), 1 << 62, dtype=np.int64)
    for denial in lock.denials:
        for number, denied in denial.documents:
            if number == source:
                first[np.isin(documents, denied)] = np.minimum(first[np.isin(documents, denied)], denial.start)
    return first
