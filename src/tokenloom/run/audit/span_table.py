"""The answer of what is asked of a run: which tokens of which documents stand at which positions, a row per span."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from tokenloom.optional import require
from tokenloom.run.lock import RunLock

if TYPE_CHECKING:
    from tokenloom.run.audit.source_origins import SourceOrigins

Int32s = NDArray[np.int32]
Int64s = NDArray[np.int64]


class DealsPositions(Protocol):
    """Tells which step reads a position; `loading.batch_sizes.Topology` does."""

    @property
    def has_ranks(self) -> bool:
        """Whether it tells ranks and micro-batches too."""

    def steps(self, positions: Int64s) -> Int64s:
        """Returns the step of each position."""

    def ranks(self, positions: Int64s) -> Int64s:
        """Returns the rank of each position."""

    def micro_batches(self, positions: Int64s) -> Int64s:
        """Returns the micro-batch of each position."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SpanTable:
    """Spans of documents in samples of a run: one per row, all arrays of one length.

    The spans of a sample are in its order, and cover all that it reads: of a GPT sample the last token is read as a
    label only. Where spans do not fill a sample is padding.

    Attributes:
        positions: int64[num_spans], the position of the sample.
        segments: int32[num_spans], number of its segment in the lock; 0 without a lock.
        sources: int32[num_spans], number of the source.
        passes: int64[num_spans], which pass through the source it belongs to, from 0; -1 where that is not known.
        walks: int64[num_spans], which walk through the source; -1 where the order is not computed.
        windows: int64[num_spans], which sample of the walk, or of its dataset where the order is not computed.
        documents: int64[num_spans], number of the document in its source, over the pairs of that, from 0.
        starts: int64[num_spans], the first token, from the start of the document.
        lengths: int64[num_spans], tokens.
        slots: int64[num_spans], place of the first token in the sample.
        denied: bool[num_spans], whether padding stands there instead, since the document is denied.
        source_names: names of the sources, by number.
        stage_names: name of the stage, by segment; empty without a lock.
        pair_rows: the pairs of the sources.
        run: identity of the run; None for datasets without a run.
        files: int32[num_spans], number of the input file that the document was made of, -1 where that is not known;
            None where it was not asked, see `with_origins`.
        records: int64[num_spans], line or row in that file, from 1; 0 where that is not known.
        file_names: paths of the input files, by number.
        steps: int64[num_spans]; None where batch sizes were not told, see `with_steps`.
        ranks, micro_batches: int64[num_spans]; None where ranks were not told.
    """

    positions: Int64s
    segments: Int32s
    sources: Int32s
    passes: Int64s
    walks: Int64s
    windows: Int64s
    documents: Int64s
    starts: Int64s
    lengths: Int64s
    slots: Int64s
    denied: NDArray[np.bool_]
    source_names: tuple[str, ...]
    stage_names: tuple[str, ...]
    pair_rows: PairRows
    run: str | None = None
    files: Int32s | None = None
    records: Int64s | None = None
    file_names: tuple[str, ...] = ()
    steps: Int64s | None = None
    ranks: Int64s | None = None
    micro_batches: Int64s | None = None

    def __len__(self) -> int:
        """The number of spans."""
        return len(self.positions)

    def __repr__(self) -> str:
        return f"SpanTable({len(self)} spans of {len(np.unique(self.positions))} positions)"

    def with_origins(self, origins: SourceOrigins) -> Self:
        """Returns the same with the input file and record of each document."""
        files = np.full(len(self), -1, dtype=np.int32)
        records = np.zeros(len(self), dtype=np.int64)
        for source in np.unique(self.sources).tolist():
            chosen = np.flatnonzero(self.sources == source)
            files[chosen], records[chosen] = origins.locate(source, self.documents[chosen])
        return dataclasses.replace(self, files=files, records=records, file_names=tuple(origins.file_names))

    def with_steps(self, topology: DealsPositions) -> Self:
        """Returns the same with the step of each position, and with rank and micro-batch where these are told."""
        found = dataclasses.replace(self, steps=topology.steps(self.positions))
        if not topology.has_ranks:
            return found
        ranks, micro_batches = topology.ranks(self.positions), topology.micro_batches(self.positions)
        return dataclasses.replace(found, ranks=ranks, micro_batches=micro_batches)

    def take(self, rows: NDArray[Any]) -> Self:
        """Returns some rows: integers[count] or bool[num_spans]."""
        names = [field.name for field in dataclasses.fields(self)]
        arrays = {name: value for name in names if isinstance(value := getattr(self, name), np.ndarray)}
        return dataclasses.replace(self, **{name: array[rows] for name, array in arrays.items()})

    def pairs(self) -> tuple[Int32s, Int64s]:
        """Returns the pair of each document, by number of `pair_rows`, and its row there: int32, int64[num_spans]."""
        return self.pair_rows.locate(self.sources, self.documents)

    def columns(self) -> dict[str, tuple[NDArray[Any], NDArray[np.bool_] | None]]:
        """Returns all columns for programs, by name: values, and which of them are not known, None for none of them.

        `position`, `step`, `rank`, `micro_batch`, `source`, `pass`, `document`, `start`, `length`, `file`, `record`
        (from 1), `slot`, `denied`, `stage`, `walk`, `window`, `pair`, `row` (from 0) and `run`.
        """
        pairs, rows = self.pairs()
        unknown = np.full(len(self), -1, dtype=np.int64)

        def known(values: Int64s | None) -> tuple[NDArray[Any], NDArray[np.bool_] | None]:
            values = unknown if values is None else values
            return values, values < 0

        records = np.zeros(len(self), dtype=np.int64) if self.records is None else self.records
        return {
            "position": (self.positions, None),
            "step": known(self.steps),
            "rank": known(self.ranks),
            "micro_batch": known(self.micro_batches),
            "source": _named(self.source_names, self.sources),
            "pass": known(self.passes),
            "document": (self.documents, None),
            "start": (self.starts, None),
            "length": (self.lengths, None),
            "file": _named(self.file_names, unknown if self.files is None else self.files),
            "record": (records, records < 1),
            "slot": (self.slots, None),
            "denied": (self.denied, None),
            "stage": _named(self.stage_names, self.segments if self.stage_names else unknown),
            "walk": known(self.walks),
            "window": (self.windows, None),
            "pair": _named(self.pair_rows.prefixes, pairs),
            "row": (rows, None),
            "run": _named((self.run or "",), unknown if self.run is None else unknown + 1),
        }

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yields each span as a dict of plain values by the names of `columns`; None where something is not known."""
        columns = self.columns()
        lists = [
            np.ma.masked_array(values, mask=missing is not None and missing).tolist()
            for values, missing in columns.values()
        ]
        for row in zip(*lists, strict=True):
            yield dict(zip(columns, row, strict=True))

    def to_arrow(self) -> Any:
        """Returns a `pyarrow.Table` with the columns of `columns`; null where something is not known."""
        arrow = require("pyarrow", extra="parquet")
        arrays = {}
        for name, (values, missing) in self.columns().items():
            of_text = values.dtype == object
            arrays[name] = arrow.array(values, type=arrow.string() if of_text else None, mask=missing)
        return arrow.table(arrays)


def joined_tables(tables: Sequence[SpanTable]) -> SpanTable:
    """Returns tables of one run as one, in the order of positions and of their samples; at least one."""
    names = [field.name for field in dataclasses.fields(SpanTable)]
    arrays = [name for name in names if all(isinstance(getattr(table, name), np.ndarray) for table in tables)]
    columns: dict[str, Any] = {name: np.concatenate([getattr(table, name) for table in tables]) for name in arrays}
    joined = dataclasses.replace(tables[0], **columns)
    return joined.take(np.lexsort((joined.slots, joined.positions)))


def _named(names: Sequence[str], numbers: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Returns names by their numbers: object[count], and which numbers are -1."""
    missing = numbers < 0
    by_number = np.array([*names, None], dtype=object)  # -1 is the last
    return by_number[numbers], missing


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
        """Returns the pairs of sources."""
        counts = [np.array([count for _, count in pairs], dtype=np.int64) for pairs in sources]
        firsts = [np.cumsum(each) - each for each in counts]
        return cls(
            prefixes=tuple(prefix for pairs in sources for prefix, _ in pairs),
            first_pairs=np.cumsum([0, *(len(pairs) for pairs in sources)], dtype=np.int64),
            first_documents=np.concatenate([np.empty(0, dtype=np.int64), *firsts]),
        )

    def locate(self, sources: NDArray[np.int32], documents: Int64s) -> tuple[NDArray[np.int32], Int64s]:
        """Returns the pair that each document lies in, and its row there, from 0: int32[count], int64[count]."""
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
