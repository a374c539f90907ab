"""Maps positions to the documents they read, and documents to the positions that read them, as tables of spans.

No token is read. A computed order is traced by arithmetic; a stored order is looked up in its index. Spans come from
`span_batch`; with fill-in-the-middle, spans are the pieces before rearranging. Mixing moves samples only within a
block, so a range of positions reads a few ranges of windows, plus single windows at the ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from tokenloom.blending.blended import BlendedDataset
from tokenloom.datasets.base import MegatronDataset
from tokenloom.datasets.protocols import KnowsSpans
from tokenloom.errors import ConfigError
from tokenloom.optional import require
from tokenloom.run.dataset import RunDataset
from tokenloom.run.digest import run_identity
from tokenloom.run.lock import MOST_SAMPLES, Int64s, Integers, LockedSource, RunLock
from tokenloom.run.source_progress import MOST_WALKS, Walk, too_many_walks
from tokenloom.run.timeline import Timeline

if TYPE_CHECKING:
    from tokenloom.run.audit.source_origins import SourceOrigins

Int32s = NDArray[np.int32]


class DealsPositions(Protocol):
    """Maps positions to training steps and ranks; `loading.batch_sizes.Topology` implements it."""

    @property
    def has_ranks(self) -> bool: ...

    def steps(self, positions: Int64s) -> Int64s: ...

    def ranks(self, positions: Int64s) -> Int64s: ...

    def micro_batches(self, positions: Int64s) -> Int64s: ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SpanTable:
    """A table of the document spans in samples of a run, one row per span.

    The spans of a sample are in reading order and cover all tokens that the sample reads: in a GPT sample these are
    the inputs and one more token, which is only a label. The rest of a sample is padding. A pass over a source is one
    walk, or several if pairs are added or the sequence length changes in the pass. Each array has num_spans rows.

    Attributes:
        positions: int64, position of the sample.
        segments: int32, index of the segment in `run.lock`; 0 without a run.
        sources: int32, index of the source.
        passes: int64, index of the pass over the source, or of the epoch in a stored order; -1 if unknown.
        walks: int64, index of the walk among all walks over the source; -1 in a stored order.
        windows: int64, index of the window in the walk; in a stored order, index of the sample in its dataset.
        documents: int64, index of the document in the source, over all pairs of the source.
        starts, lengths: int64, index of the span's first token in the document, and number of tokens of the span.
        slots: int64, index of the span's first token in the sample.
        denied: bool, whether the document is denied at the position; the sample then has padding instead.
        source_names, stage_names: name of each source; name of each segment's stage, empty without a run.
        pair_rows: prefixes of the `.bin`/`.idx` pairs of each source, and the first document of each pair.
        run: identity of the run; None for datasets without a run.
        files: int32, index of the document's input file in `file_names`; -1 if unknown. None without `with_origins`.
        records: int64, record number of the document in this file, from 1; 0 if unknown. None without `with_origins`.
        file_names: paths of the input files at the time of tokenization; empty without `with_origins`.
        steps: int64, training step that reads the sample, from 0; None without `with_steps`.
        ranks, micro_batches: int64, data-parallel rank, and micro-batch in the step, from 0; None if ranks are unknown.
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
        return len(self.positions)

    def __repr__(self) -> str:
        return f"SpanTable({len(self)} spans of {len(np.unique(self.positions))} positions)"

    def with_origins(self, origins: SourceOrigins) -> Self:
        """Returns the table with the input file and record of each document."""
        files = np.full(len(self), -1, dtype=np.int32)
        records = np.zeros(len(self), dtype=np.int64)
        for source in np.unique(self.sources).tolist():
            chosen = np.flatnonzero(self.sources == source)
            files[chosen], records[chosen] = origins.locate(source, self.documents[chosen])
        return replace(self, files=files, records=records, file_names=tuple(origins.file_names))

    def with_steps(self, topology: DealsPositions) -> Self:
        """Returns the table with steps added, and with ranks and micro-batches if `topology` has ranks."""
        found = replace(self, steps=topology.steps(self.positions))
        if not topology.has_ranks:
            return found
        ranks, micro_batches = topology.ranks(self.positions), topology.micro_batches(self.positions)
        return replace(found, ranks=ranks, micro_batches=micro_batches)

    def take(self, rows: NDArray[Any]) -> Self:
        """Returns the selected rows as a table; `rows` is integers[count] or bool[num_spans]."""
        return replace(self, **{name: values[rows] for name, values in self._arrays().items()})

    def _arrays(self) -> dict[str, Any]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, np.ndarray)}

    def pairs(self) -> tuple[Int32s, Int64s]:
        """Returns, for each span, the index of its pair in `pair_rows.prefixes`, and its document's row in the pair."""
        return self.pair_rows.locate(self.sources, self.documents)

    def columns(self) -> dict[str, tuple[NDArray[Any], NDArray[np.bool_] | None]]:
        """Returns {name: (values[num_spans], mask)}; mask: bool[num_spans], True if unknown; None if all are known."""
        pairs, rows = self.pairs()
        unknown = np.full(len(self), -1, dtype=np.int64)

        def known(values: Int64s | None) -> tuple[NDArray[Any], NDArray[np.bool_] | None]:
            values = unknown if values is None else values
            return values, values < 0

        records = unknown + 1 if self.records is None else self.records
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
        """Yields each span as a dict of plain values with the names of `columns`; None for unknown values."""
        columns = self.columns()
        lists = [
            np.ma.masked_array(values, mask=missing is not None and missing).tolist()
            for values, missing in columns.values()
        ]
        for row in zip(*lists, strict=True):
            yield dict(zip(columns, row, strict=True))

    def to_arrow(self) -> Any:
        """Returns a `pyarrow.Table` of `columns`; null for unknown values."""
        arrow = require("pyarrow", extra="parquet")
        arrays = {}
        for name, (values, missing) in self.columns().items():
            of_text = values.dtype == object
            arrays[name] = arrow.array(values, type=arrow.string() if of_text else None, mask=missing)
        return arrow.table(arrays)


def joined_tables(tables: Sequence[SpanTable]) -> SpanTable:
    """Joins one or more tables of the same run; sorts the rows by position and slot."""
    parts = [table._arrays() for table in tables]
    columns: dict[str, Any] = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    joined = replace(tables[0], **columns)
    return joined.take(np.lexsort((joined.slots, joined.positions)))


def _named(names: Sequence[str], numbers: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    missing = numbers < 0
    by_number = np.array([*names, None], dtype=object)  # index -1 gives the last element, None
    return by_number[numbers], missing


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PairRows:
    """The pairs of all sources, in ascending order of sources and documents.

    `first_pairs`, int64[num_sources + 1]: for each source, the index of the first pair in `prefixes`; the last element
    is the number of pairs. `first_documents`, int64[num_pairs]: per pair, index of its first document in the source.
    """

    prefixes: tuple[str, ...]
    first_pairs: Int64s
    first_documents: Int64s

    @classmethod
    def of_lock(cls, lock: RunLock) -> Self:
        return cls.of([[(pair.prefix, pair.num_documents) for pair in source.pairs] for source in lock.sources])

    @classmethod
    def of(cls, sources: Sequence[Sequence[tuple[str, int]]]) -> Self:
        """Builds the table; `sources` has, for each source, (prefix, number of documents) of each pair."""
        firsts = (accumulate((count for _, count in pairs), initial=0) for pairs in sources)
        return cls(
            prefixes=tuple(prefix for pairs in sources for prefix, _ in pairs),
            first_pairs=np.cumsum([0, *map(len, sources)], dtype=np.int64),
            first_documents=np.array([first for each in firsts for first in [*each][:-1]], dtype=np.int64),
        )

    def locate(self, sources: NDArray[np.int32], documents: Int64s) -> tuple[NDArray[np.int32], Int64s]:
        """Returns, for each document, the index of its pair in `prefixes` and its row in this pair, both [count]."""
        pairs = np.empty(len(documents), dtype=np.int32)
        for source in np.unique(sources).tolist():
            chosen = np.flatnonzero(sources == source)
            first, stop = self.first_pairs[source : source + 2].tolist()
            found = np.searchsorted(self.first_documents[first:stop], documents[chosen], side="right")
            pairs[chosen] = first + found - 1
        return pairs, documents - self.first_documents[pairs]

    def source_of(self, pair: int) -> int:
        return int(np.searchsorted(self.first_pairs, pair, side="right")) - 1


def trace_dataset(dataset: Any, positions: Integers) -> SpanTable:
    """Returns the document spans at positions of a run, a blend or a tokenloom dataset.

    Positions may repeat and be in any order. Without a run, each dataset is a source named by its prefix, documents are
    rows of its `.idx` file, and `passes` are epochs of the cached index.
    """
    if isinstance(dataset, RunDataset):
        positions = _checked_positions(positions, dataset)
        located, found = dataset.timeline.locate(positions), []
        begun, which = np.unique(located.sources * np.int64(MOST_WALKS) + located.walks, return_inverse=True)
        passes = [dataset.timeline.walk_of(*divmod(each, MOST_WALKS)).pass_number for each in begun.tolist()]
        known = {"passes": np.array(passes, np.int64)[which], "walks": located.walks, "windows": located.windows}
        for samples, group in dataset.groups_of(positions, located.segments):
            own = {name: values[samples] for name, values in known.items()}
            found.append(group.ask(partial(_columns, samples=samples, source=group.number, of_samples=own)))
        pair_rows = PairRows.of_lock(dataset.lock)
        return _spans_of(positions, found, lock=dataset.lock, segments=located.segments, pair_rows=pair_rows)
    paths = [each.dataset_path if isinstance(each, MegatronDataset) else None for each in members_of(dataset)]
    names = [f"dataset {number}" if path is None else str(path) for number, path in enumerate(paths)]
    firsts = [(number, 0) for number in range(len(names))]
    return trace_stored(dataset, positions, firsts, pair_rows=PairRows.of([[(name, 0)] for name in names]), lock=None)


def members_of(dataset: Any) -> Sequence[Any]:
    return dataset.datasets if isinstance(dataset, BlendedDataset) else [dataset]


def _checked_positions(positions: Integers, dataset: Any) -> Int64s:
    positions = np.atleast_1d(np.asarray(positions))
    if positions.size and positions.dtype.kind not in "iu":
        raise ConfigError(f"positions must be integers, got {positions.dtype.name}")
    count = len(dataset)
    if len(wrong := positions[(positions < 0) | (positions >= count)]):
        raise IndexError(f"position {wrong[0]} out of range: the dataset has {count} samples")
    return np.ascontiguousarray(positions, dtype=np.int64)


def trace_stored(
    dataset: Any, positions: Integers, sources: Sequence[tuple[int, int]], *, pair_rows: PairRows, lock: RunLock | None
) -> SpanTable:
    """Traces a stored order; `sources`: per dataset, (index of the source, index of the first document in it)."""
    positions = _checked_positions(positions, dataset)
    members, numbers, samples = members_of(dataset), np.zeros(len(positions), dtype=np.int32), positions
    if isinstance(dataset, BlendedDataset):
        numbers, samples = (np.asarray(each) for each in dataset.order.locate(positions))
        dataset.order.check()
    parts = []
    for number in np.unique(numbers).tolist():
        member, chosen = members[number], np.flatnonzero(numbers == number)
        if not isinstance(member, KnowsSpans):
            message = f"{type(member).__name__} cannot be traced: it has no `span_batch`"
            raise ConfigError(message, hint="implement `spans` and `span_batch` like `GPTDataset`")
        own = np.ascontiguousarray(samples[chosen], dtype=np.int64)
        unknown = np.full(len(own), -1, dtype=np.int64)
        passes = member.epochs_of(own) if hasattr(member, "epochs_of") else unknown
        source, first = sources[number]
        of_samples = {"passes": passes, "walks": unknown, "windows": own}
        parts.append(_columns(member, own, samples=chosen, source=source, first_document=first, of_samples=of_samples))
    return _spans_of(positions, parts, pair_rows=pair_rows, lock=lock, segments=None)


Columns = dict[str, NDArray[Any]]


def _columns(
    dataset: KnowsSpans, numbers: Int64s, *, samples: Int64s, source: int, of_samples: Columns, first_document: int = 0
) -> Columns:
    """Returns the spans of samples `numbers` as columns; `samples[k]`: index of the traced position of `numbers[k]`."""
    spans = dataset.span_batch(numbers)
    slots = dataset.slots_of(spans.documents) if hasattr(dataset, "slots_of") else spans.lengths
    counts, denied, ends = np.diff(spans.row_offsets), spans.documents < 0, np.cumsum(slots)
    before = np.concatenate([np.zeros(1, dtype=np.int64), ends])[spans.row_offsets[:-1]]
    return {
        "samples": np.repeat(samples, counts),
        "sources": np.full(len(denied), source, dtype=np.int32),
        "documents": np.where(denied, -1 - spans.documents, spans.documents) + first_document,
        "starts": spans.starts,
        "lengths": spans.lengths,
        "slots": ends - slots - np.repeat(before, counts),
        "denied": denied,
        **{name: np.repeat(values, counts) for name, values in of_samples.items()},
    }


def _spans_of(
    positions: Int64s, parts: list[Columns], *, pair_rows: PairRows, lock: RunLock | None, segments: Int32s | None
) -> SpanTable:
    """Builds a table from columns of spans, in the order of the positions; without a lock, each pair is a source."""
    segments = np.zeros(len(positions), dtype=np.int32) if segments is None else segments
    longs = ("samples", "passes", "walks", "windows", "documents", "starts", "lengths", "slots")
    types: dict[str, type[Any]] = {**dict.fromkeys(longs, np.int64), "sources": np.int32, "denied": np.bool_}
    empty: Columns = {name: np.empty(0, dtype=dtype) for name, dtype in types.items()}
    joined: dict[str, Any] = {name: np.concatenate([part[name] for part in (empty, *parts)]) for name in types}
    samples = joined.pop("samples")
    table = SpanTable(
        positions=positions[samples],
        segments=segments[samples],
        **joined,
        source_names=pair_rows.prefixes if lock is None else tuple(source.name for source in lock.sources),
        stage_names=() if lock is None else tuple(segment.stage for segment in lock.segments),
        pair_rows=pair_rows,
        run=None if lock is None else run_identity(lock),
    )
    return table.take(np.lexsort((table.slots, samples)))


_MOST_AT_ONCE = 1 << 18  # maximum number of documents times walks searched at a time


def find_spans(
    dataset: RunDataset, source: int, documents: Integers, *, start: int = 0, stop: int | None = None
) -> SpanTable:
    """Computes the spans of `documents` of a source at positions [start, stop).

    For conversations use `positions_reading` and `trace_dataset` instead. Held-out and empty documents have no spans.
    `denied` is True for spans of denied documents at positions from the denial on.
    """
    lock = dataset.lock
    parts = list(_occurrences(dataset, source, documents, start, stop))
    positions = _positions(parts)
    for part in parts:
        at = part.pop("positions")
        part["samples"], part["sources"] = np.searchsorted(positions, at), np.full(len(at), source, dtype=np.int32)
        part["denied"] = at >= denied_from(lock, source, part["documents"])
    starts = [segment.start for segment in lock.segments]
    segments = (np.searchsorted(starts, positions, side="right") - 1).astype(np.int32)
    return _spans_of(positions, parts, lock=lock, segments=segments, pair_rows=PairRows.of_lock(lock))


def positions_reading(
    dataset: RunDataset, source: int, documents: Integers, *, start: int = 0, stop: int | None = None
) -> Int64s:
    """Returns, in ascending order, the positions in [start, stop) that read `documents` of a source."""
    return _positions(_occurrences(dataset, source, documents, start, stop))


def _positions(parts: Iterable[Columns]) -> Int64s:
    return np.unique(np.concatenate([np.empty(0, dtype=np.int64), *(part["positions"] for part in parts)]))


def _occurrences(
    dataset: RunDataset, source: int, documents: Integers, start: int, stop: int | None
) -> Iterator[Columns]:
    timeline = dataset.timeline
    wanted = checked_documents(timeline.lock.sources[source], documents)
    first, last = checked_range(timeline.lock.num_samples, start, stop)
    if not len(wanted) or first >= last:
        return
    at_once = max(1, _MOST_AT_ONCE // len(wanted))
    for alike, numbers in _walks_read(timeline, source, first, last).items():
        order = dataset.member(source, alike.sequence_length).order
        read = np.unique(np.concatenate(numbers))
        for walks in np.split(read, np.flatnonzero(np.diff(read) > 1) + 1):
            begin = timeline.walk_of(source, int(walks[0]))
            order.add_walks(begin.number, begin.first_pair, begin.last_pair, begin.num_windows, begin.part)
            for at in range(0, len(walks), at_once):
                found = order.occurrences(walks[at : at + at_once], wanted)
                length = alike.sequence_length
                positions = timeline.positions_of(source, found.walks, found.windows, sequence_length=length)
                inside = np.flatnonzero((positions >= first) & (positions < last))
                columns = {name: column[inside] for name, column in found._asdict().items()}
                passes = columns["walks"] + (begin.pass_number - begin.number)
                yield {"positions": positions[inside], "passes": passes, **columns}


def _walks_read(timeline: Timeline, source: int, start: int, stop: int) -> dict[Walk, list[Int64s]]:
    """Returns the numbers of walks read in mixing blocks of [start, stop); keys are `Walk`s with number and pass 0."""
    found: dict[Walk, list[Int64s]] = {}

    def add(walk: Walk, numbers: Int64s) -> None:
        found.setdefault(replace(walk, number=0, pass_number=0), []).append(numbers)

    block = timeline.lock.mixing_block
    for number, locked in enumerate(timeline.lock.segments):
        first, last = max(start - locked.start, 0), min(stop, locked.stop or stop) - locked.start
        if first >= last or source not in dict(locked.weights):
            continue
        segment = timeline.segment(number)
        entered, mixed = segment.entered, segment.mixed
        leaf = int(np.searchsorted(entered.sources, source))
        low = int(mixed.counts(first - first % block)[leaf])
        high = int(mixed.counts(min(-(-last // block) * block, len(mixed)))[leaf])
        num_early, size = int(entered.early_counts[leaf]), int(entered.num_windows[leaf])
        alone: list[int] = []
        if low < min(high, num_early):
            alone += (walk for walk, *_ in entered.early[leaf].ranges(low, min(high, num_early)))
        if max(low, num_early) < high:
            begin, end = (int(entered.offsets[leaf]) - num_early + take for take in (max(low, num_early), high - 1))
            walk, final = int(entered.walks[leaf]) + begin // size, int(entered.walks[leaf]) + end // size
            if final >= MOST_WALKS:
                raise too_many_walks(timeline.lock.sources[source].name, "`stop`", final)
            apart = [each for each in timeline.special_walks(source) if walk <= each <= final]
            if len(regular := np.setdiff1d(np.arange(walk, final + 1, dtype=np.int64), apart)):
                add(entered.regular_walk(leaf, walk), regular)
            alone += apart
        for walk in alone:
            add(timeline.walk_of(source, walk), np.array([walk], dtype=np.int64))
    return found


def checked_documents(source: LockedSource, documents: Integers) -> Int64s:
    """Validates document indices of a source; returns them sorted, without repeats, int64[num_documents]."""
    wanted = np.unique(np.asarray(documents, dtype=np.int64))
    count = source.num_documents
    if len(wanted) and not 0 <= (wrong := int(wanted[0] if wanted[0] < 0 else wanted[-1])) < count:
        raise ConfigError(f"document `{source.name}:{wrong}` out of range: the source has {count} documents, from 0")
    return wanted


def checked_range(num_samples: int | None, start: int, stop: int | None) -> tuple[int, int]:
    if stop is None and num_samples is None:
        raise ConfigError("the run is endless, so an end is needed", hint="pass a position or step to stop at")
    ends = [end for end in (stop, num_samples) if end is not None]
    if not 0 <= start <= ends[0]:
        raise ConfigError(f"start must be in [0, {ends[0]}], got {start}")
    return start, min(*ends, MOST_SAMPLES)


def denied_from(lock: RunLock, source: int, documents: Int64s) -> Int64s:
    """Returns the first position at which each document of a source is denied, int64[count]; 2**62 if never."""
    first = np.full(len(documents), 1 << 62, dtype=np.int64)
    for denial in reversed(lock.denials):  # denials are ascending by `start`
        for number, denied in denial.documents:
            if number == source:
                first[np.isin(documents, denied)] = denial.start
    return first
