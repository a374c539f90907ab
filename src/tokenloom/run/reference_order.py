"""Runs in the reference's order: the dataset builder builds and caches the order, which cannot change.

`run.lock` has the data, as for every run. The samples of a pair are the windows of one stream, which has enough
epochs for all samples; the windows of these epochs are shuffled together.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.blending.blended import BlendedDataset
from tokenloom.blending.dataset_builder import BlendedMegatronDatasetBuilder
from tokenloom.blending.quota import normalize
from tokenloom.datasets.base import MegatronDataset
from tokenloom.datasets.conversations import ConversationSamples
from tokenloom.datasets.gpt import GPTDataset
from tokenloom.datasets.slot_counts import NO_SLOTS, count_windows
from tokenloom.distributed.building import do_together
from tokenloom.errors import ConfigError
from tokenloom.forks import cached_property
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.order.policies import ArrayOrder
from tokenloom.run.audit.ledger import LedgerRow, LedgerStage, Report, RunLedger, chunks_of, not_counted
from tokenloom.run.audit.trace import PairRows, SpanTable, checked_documents, checked_range, members_of, trace_stored
from tokenloom.run.changes import WHOLE, stored_order_facts
from tokenloom.run.dataset import Reading, RunTokenizer, run_config
from tokenloom.run.digest import KnownOrder, run_identity
from tokenloom.run.lock import Int64s, Integers, LockedPair, RunLock
from tokenloom.run.plan import Float64s
from tokenloom.run.settings import RunSettings, class_of, read_run
from tokenloom.run.sources import check_opened


def known_order(settings: RunSettings, lock: RunLock, num_samples: int) -> KnownOrder:
    """Returns the order for loader states; positions above 0 share one digest, as any change reshuffles all samples."""
    _, shares = _blend(settings, lock)
    weights = [] if shares is None else [share.hex() for share in normalize(shares)]
    facts = {**stored_order_facts(lock), "weights": weights}
    digest = hashlib.sha256(json.dumps(facts, separators=(",", ":"), sort_keys=True).encode()).hexdigest()
    at = partial(_digest_at, digest, num_samples)
    return KnownOrder(run=run_identity(lock), num_samples=num_samples, digest_at=at, why=f": {WHOLE}")


def _digest_at(digest: str, num_samples: int, position: int) -> str:
    if not 0 <= position <= num_samples:
        message = f"position {position} out of range: the run has {num_samples} samples"
        raise ConfigError(message, hint="begin another run: a run in the reference's order cannot be lengthened")
    return digest if position else hashlib.sha256(b"").hexdigest()


class ReferenceOrder:
    """The reference's order of a run, built and cached by `BlendedMegatronDatasetBuilder`.

    The reference's rounding depends on how weights are written, so this class reads weights from `run.toml` again.
    """

    def __init__(
        self, lock: RunLock, *, path: str, tokenizer: Any, reading: Reading, path_to_cache: str | None
    ) -> None:
        self.path = path
        self.lock = lock
        self.tokenizer = tokenizer
        self._reading = reading
        self._path_to_cache = path_to_cache
        self._pair_rows = PairRows.of_lock(lock)

    def digest(self, position: int) -> str:
        return known_order(read_run(self.path), self.lock, self.lock.end).digest_at(position)

    def dataset(self) -> Any:
        """Builds the dataset of the run's pair or blend, with the attribute `run_order`.

        Under `torch.distributed` all ranks must call this; one rank builds. The blend can need more samples
        of a dataset than the reference builds: the reference then raises an error, this method builds more samples.
        """
        settings, lock, tokenizer = read_run(self.path), self.lock, self.tokenizer
        if isinstance(tokenizer, RunTokenizer) and lock.tokenizer is not None:
            tokenizer = tokenizer.loaded
        pairs, shares = _blend(settings, lock)
        segment = lock.segments[0]
        config = run_config(
            lock,
            segment.sequence_length,
            tokenizer,
            self._reading,
            random_seed=lock.seed,
            blend_per_split=[([pair.prefix for pair in pairs], shares), None, None],
            path_to_cache=self._path_to_cache,
            extend_short_datasets=True,
        )

        def check() -> None:
            options: Any = {"mmap": self._reading.mmap, "object_storage": self._reading.object_storage}
            for pair in pairs:
                check_opened(IndexedDataset(pair.prefix, **options), pair)

        do_together("checking the data of the run against its lock", check)
        sizes = [segment.num_samples, None, None]
        train, _, _ = BlendedMegatronDatasetBuilder(class_of(lock.dataset), sizes, lambda: True, config).build()
        train.run_order = known_order(settings, lock, len(train))
        return train

    @cached_property
    def _dataset(self) -> Any:
        return self.dataset()

    @cached_property
    def _members(self) -> list[tuple[Any, int, int]]:
        """(dataset, index of the pair, index of the source) for each pair of the blend."""
        numbers = {name: pair for pair, name in enumerate(self._pair_rows.prefixes)}
        pairs = [(each, numbers[str(each.dataset_path)]) for each in members_of(self._dataset)]
        return [(each, pair, self._pair_rows.source_of(pair)) for each, pair in pairs]

    def _located(self, start: int, stop: int) -> Iterator[tuple[Int64s, NDArray[Any], NDArray[Any]]]:
        """Yields (positions, indices of datasets, indices of samples in these datasets) for chunks of [start, stop)."""
        order = self._dataset.order if isinstance(self._dataset, BlendedDataset) else None
        for first in range(start, stop, _ROWS_AT_ONCE):
            positions = np.arange(first, min(first + _ROWS_AT_ONCE, stop), dtype=np.int64)
            found = (np.zeros(len(positions), dtype=np.int64), positions) if order is None else order.locate(positions)
            yield positions, np.asarray(found[0]), np.asarray(found[1])
        if order is not None:
            order.check()

    def trace(self, positions: Integers) -> SpanTable:
        firsts = [(source, int(self._pair_rows.first_documents[pair])) for _, pair, source in self._members]
        return trace_stored(self._dataset, positions, firsts, pair_rows=self._pair_rows, lock=self.lock)

    def positions_reading(self, source: int, documents: Integers, *, start: int, stop: int | None) -> Int64s:
        """Returns at least all positions in [start, stop) that read `documents`; takes 5 ns per index row."""
        wanted = checked_documents(self.lock.sources[source], documents)
        first, last = checked_range(len(self._dataset), start, stop)
        pairs, rows = self._pair_rows.locate(np.full(len(wanted), source, dtype=np.int32), wanted)
        found = [np.empty(0, dtype=np.int64)]
        for number, (member, pair, _) in enumerate(self._members):
            if len(own := rows[pairs == pair]):
                holds = _samples_of(member, own)
                for positions, numbers, samples in self._located(first, last):
                    mine = np.flatnonzero(numbers == number)
                    found.append(positions[mine[holds[samples[mine]]]])
        return np.unique(np.concatenate(found))

    def read_before(self, points: Int64s) -> tuple[Int64s, Float64s]:
        """Returns two arrays [num_points, num_sources]: the samples and the passes of a source read before a point."""
        samples = np.zeros((len(points), len(self.lock.sources)), dtype=np.int64)
        sources = [source for _, _, source in self._members]
        read = np.zeros(len(sources), dtype=np.int64)
        for number, (begin, point) in enumerate(pairwise([0, *points.tolist()])):
            for _, datasets, _ in self._located(begin, point):
                read += np.bincount(datasets, minlength=len(read))
            np.add.at(samples[number], sources, read)
        tokens = [max(1, source.num_tokens) for source in self.lock.sources]
        length = self.lock.segments[0].sequence_length
        return samples, samples * (length / np.array(tokens, dtype=np.float64))

    def ledger(self, position: int, report: Report | None) -> RunLedger:
        """Returns the ledger of the positions before `position`; scans the index once. See `LedgerCount`."""
        read: dict[int, list[Int64s]] = {}
        for _, numbers, found in self._located(0, position):
            for number in np.unique(numbers).tolist():
                read.setdefault(number, []).append(found[numbers == number].astype(np.int64))
        rows = [LedgerRow()] * len(self.lock.sources)
        for number, parts in sorted(read.items()):
            member, _, source = self._members[number]
            rows[source] += _row(member, np.sort(np.concatenate(parts)), report)
        segment = self.lock.segments[0]
        sources = tuple((each.name, row) for each, row in zip(self.lock.sources, rows, strict=True))
        stage = LedgerStage(
            stage=segment.stage,
            start=0,
            stop=position,
            sequence_length=segment.sequence_length,
            sources=tuple(sources[number] for number, _ in segment.weights),
        )
        return RunLedger(position=position, stages=(stage,) if position else (), sources=sources)


_ROWS_AT_ONCE = 1 << 22  # index rows read at a time


def _samples_of(dataset: MegatronDataset, rows: Int64s) -> NDArray[np.bool_]:
    """Returns whether each sample of a dataset reads any of `rows` of its pair, bool[num_samples]; True if unknown."""
    count = len(dataset)
    order = dataset.order if isinstance(dataset, GPTDataset) else None
    arrays = order.arrays if isinstance(order, ArrayOrder) else {}
    if "sample_index" not in arrays:
        return np.ones(count, dtype=np.bool_)
    index = arrays["document_index"]
    parts = (np.isin(index[first : first + _ROWS_AT_ONCE], rows) for first in range(0, len(index), _ROWS_AT_ONCE))
    places = np.flatnonzero(np.concatenate([np.empty(0, dtype=np.bool_), *parts]))
    begins = arrays["sample_index"][:, 0]
    first = np.searchsorted(begins[1:], places, side="left")
    last = np.searchsorted(begins[:-1], places, side="right")
    holds = np.zeros(len(begins) + 1, dtype=np.int64)  # +1 at a document's first window, -1 after its last window
    np.add.at(holds, first, 1)
    np.add.at(holds, np.maximum(last, first), -1)
    chosen = np.cumsum(holds)[:-1] > 0
    samples: NDArray[np.bool_] = chosen[arrays["shuffle_index"]]
    return samples


def _row(dataset: Any, samples: Int64s, report: Report | None) -> LedgerRow:
    """Returns the ledger row of distinct samples of a dataset; reads no data if `report` is None."""
    length, has_conversations = dataset.config.sequence_length, isinstance(dataset, ConversationSamples)
    is_plain = not has_conversations and not dataset.counts_need_tokens
    counts = NO_SLOTS
    if report is not None and not is_plain:
        for chunk in chunks_of(samples, length):
            counts += dataset.slot_counts(chunk)
            report(len(chunk))
    if has_conversations:
        whole = dataset.ledger()
        row = LedgerRow(offered=whole.exposed.tokens)
        if report is None:
            return replace(row, counts=not_counted(len(samples), 0, row.offered))
        dropped = {name: getattr(whole, name) for name in ("dropped_empty", "dropped_long", "dropped_untrainable")}
        row = replace(row, counts=counts, **dropped)
        left = whole.not_reached.tokens if len(samples) == whole.counts.samples else row.balance[0]
        return replace(row, not_reached=left)
    plan, extra = dataset.epoch_plan, dataset.config.num_extra_tokens
    if is_plain:
        counts = count_windows(len(samples), sequence_length=length, extra=extra)
    elif report is None:
        counts = not_counted(len(samples), len(samples) * length, len(samples) * length)
    offered, left = plan.num_epochs * plan.tokens_per_epoch, plan.num_samples - len(samples)
    tail = offered - plan.num_samples * length - extra
    return LedgerRow(
        offered=offered, counts=counts, first_of_passes=extra, dropped_tail=tail, not_reached=left * length
    )


def _blend(settings: RunSettings, lock: RunLock) -> tuple[list[LockedPair], list[float] | None]:
    """Returns the non-empty pairs, in the order of `run.lock`, and their weights, which are None for a single pair."""
    shares = dict(settings.stages[0].weights or ())
    pairs: list[LockedPair] = []
    weights: list[float] = []
    for number, _ in lock.segments[0].weights:
        source = lock.sources[number]
        for pair in source.pairs:
            if pair.num_tokens:
                pairs.append(pair)
                weights.append(float(shares[source.name] * Fraction(pair.num_tokens, source.num_tokens)))
    return pairs, None if len(pairs) == 1 else weights
