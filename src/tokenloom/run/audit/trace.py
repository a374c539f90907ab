"""From positions to the documents that stand there: of a run, and of any dataset or blend of ours without one.

Nothing of it reads a token. Of a computed order it is the arithmetic that makes samples; of a stored one it asks the
index. Spans are those of `span_batch`: of fill in the middle the pieces before they are rearranged.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.blending.blended import BlendedDataset
from tokenloom.datasets.base import MegatronDataset
from tokenloom.datasets.protocols import KnowsEpochs, KnowsSlots, KnowsSpans, Samples
from tokenloom.errors import ConfigError
from tokenloom.order.windows import SpanBatch
from tokenloom.run.audit.span_table import Int32s, Int64s, PairRows, SpanTable
from tokenloom.run.dataset import RunDataset
from tokenloom.run.digest import run_identity
from tokenloom.run.lock import RunLock
from tokenloom.run.progress import MOST_WALKS
from tokenloom.run.timeline import Located, Timeline

Asked = Sequence[int] | NDArray[np.integer[Any]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Traced:
    """The spans of some samples of one source.

    Attributes:
        samples: int64[num_samples], which of the positions asked for these are.
        source, first_document: number of the source, and in it of the first document that spans count from.
        passes, walks, windows: int64[num_samples].
        spans: the spans; numbers of documents that are denied are negative.
        slots: int64[num_spans], what each takes of its sample.
    """

    samples: Int64s
    source: int
    first_document: int = 0
    passes: Int64s
    walks: Int64s
    windows: Int64s
    spans: SpanBatch
    slots: Int64s


def trace_dataset(dataset: Any, positions: Asked) -> SpanTable:
    """Returns the spans at positions of a dataset: of a run, a blend, or one of our own datasets.

    Of a run, sources are its sources; else they are the datasets, named by their prefixes, documents are rows of their
    `.idx` files, and `passes` counts epochs as the cached index has them.

    Args:
        dataset: it.
        positions: integers[num_positions], in any order, repeats allowed.

    Raises:
        IndexError: there is no such position.
        ConfigError: positions are no integers, or a dataset does not tell its spans.
    """
    asked = checked_positions(positions, dataset)
    if isinstance(dataset, RunDataset):
        return _trace_computed(dataset, asked)
    members, parts = trace_stored(dataset, asked)
    names = [_name_of(member, number) for number, member in enumerate(members)]
    return spans_of(
        asked,
        parts,
        segments=np.zeros(len(asked), dtype=np.int32),
        pair_rows=PairRows.of([[(name, 0)] for name in names]),
    )


def checked_positions(positions: Asked, dataset: Any) -> Int64s:
    """Returns positions as int64[num_positions]."""
    if not isinstance(dataset, Samples):
        message = f"expected a dataset, found {type(dataset).__name__}"
        raise ConfigError(message)
    asked = np.atleast_1d(np.asarray(positions))
    if asked.size and asked.dtype.kind not in "iu":
        message = f"expected integers as positions, found {asked.dtype.name}"
        raise ConfigError(message)
    count = len(dataset)
    if len(wrong := asked[(asked < 0) | (asked >= count)]):
        message = f"expected positions in [0, {count}), found {wrong[0]}"
        raise IndexError(message)
    return np.ascontiguousarray(asked, dtype=np.int64)


def _trace_computed(dataset: RunDataset, asked: Int64s) -> SpanTable:
    located = dataset.timeline.locate(asked)
    passes = passes_of(dataset.timeline, located)
    parts = []
    for samples, group in dataset.groups_of(asked, located.segments):
        spans, slots = group.ask(_spans_of)
        parts.append(
            Traced(
                samples=samples,
                source=group.number,
                passes=passes[samples],
                walks=located.walks[samples],
                windows=located.windows[samples],
                spans=spans,
                slots=slots,
            )
        )
    pair_rows = PairRows.of_lock(dataset.lock)
    return spans_of(asked, parts, lock=dataset.lock, segments=located.segments, pair_rows=pair_rows)


def trace_stored(dataset: Any, asked: Int64s) -> tuple[list[Any], list[Traced]]:
    """Returns the datasets that a dataset is made of, and the spans, whose sources are the numbers of these."""
    members, numbers, samples = [dataset], np.zeros(len(asked), dtype=np.int32), asked
    if isinstance(dataset, BlendedDataset):
        members = dataset.datasets
        numbers, samples = (np.asarray(each) for each in dataset.order.locate(asked))
        dataset.order.check()
    parts = []
    for number in np.unique(numbers).tolist():
        member, chosen = members[number], np.flatnonzero(numbers == number)
        if not isinstance(member, KnowsSpans):
            message = f"expected datasets that tell their spans, found {type(member).__name__}"
            raise ConfigError(message, hint="offer `spans` and `span_batch`, as `GPTDataset` does")
        own = np.ascontiguousarray(samples[chosen], dtype=np.int64)
        spans, slots = _spans_of(member, own)
        unknown = np.full(len(own), -1, dtype=np.int64)
        parts.append(
            Traced(
                samples=chosen,
                source=number,
                passes=member.epochs_of(own) if isinstance(member, KnowsEpochs) else unknown,
                walks=unknown,
                windows=own,
                spans=spans,
                slots=slots,
            )
        )
    return members, parts


def _spans_of(dataset: KnowsSpans, numbers: Int64s) -> tuple[SpanBatch, Int64s]:
    """Returns the spans of samples, and what each takes of its sample: int64[num_spans]."""
    spans = dataset.span_batch(numbers)
    return spans, dataset.slots_of(spans.documents) if isinstance(dataset, KnowsSlots) else spans.lengths


def _name_of(dataset: Any, number: int) -> str:
    path = dataset.dataset_path if isinstance(dataset, MegatronDataset) else None
    return f"dataset {number}" if path is None else str(path)


def passes_of(timeline: Timeline, located: Located) -> Int64s:
    """Returns the pass that stands at each position: int64[num_positions]."""
    begun, which = np.unique(located.sources * np.int64(MOST_WALKS) + located.walks, return_inverse=True)
    known = [timeline.walk_of(*divmod(each, MOST_WALKS)).pass_number for each in begun.tolist()]
    return np.array(known, dtype=np.int64)[which]


def spans_of(
    positions: Int64s,
    parts: Iterable[Traced],
    *,
    segments: Int32s,
    pair_rows: PairRows,
    lock: RunLock | None = None,
) -> SpanTable:
    """Returns the spans of all samples as a table, in the order of the positions; without a run, sources are pairs."""
    columns: dict[str, list[NDArray[Any]]] = {name: [np.empty(0, dtype=dtype)] for name, dtype in _TYPES.items()}
    for part in parts:
        spans, counts = part.spans, np.diff(part.spans.row_offsets)
        denied = spans.documents < 0
        numbers = np.where(denied, -1 - spans.documents, spans.documents) + part.first_document
        ends = np.cumsum(part.slots)
        before = np.concatenate([np.zeros(1, dtype=np.int64), ends])[spans.row_offsets[:-1]]
        found = {
            "samples": np.repeat(part.samples, counts),
            "sources": np.full(len(numbers), part.source, dtype=np.int32),
            "passes": np.repeat(part.passes, counts),
            "walks": np.repeat(part.walks, counts),
            "windows": np.repeat(part.windows, counts),
            "documents": numbers,
            "starts": spans.starts,
            "lengths": spans.lengths,
            "slots": ends - part.slots - np.repeat(before, counts),
            "denied": denied,
        }
        for name, values in found.items():
            columns[name].append(values)
    samples = np.concatenate(columns.pop("samples"))
    in_order = np.argsort(samples, kind="stable")
    samples = samples[in_order]
    joined: dict[str, Any] = {name: np.concatenate(values)[in_order] for name, values in columns.items()}
    return SpanTable(
        positions=positions[samples],
        segments=segments[samples],
        **joined,
        source_names=pair_rows.prefixes if lock is None else tuple(source.name for source in lock.sources),
        stage_names=() if lock is None else tuple(segment.stage for segment in lock.segments),
        pair_rows=pair_rows,
        run=None if lock is None else run_identity(lock),
    )


_TYPES: dict[str, type[Any]] = {
    **dict.fromkeys(("samples", "passes", "walks", "windows", "documents", "starts", "lengths", "slots"), np.int64),
    "sources": np.int32,
    "denied": np.bool_,
}
