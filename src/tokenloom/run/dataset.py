"""The map-style dataset of a run; it opens a pair when a sample first needs this pair."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from tokenloom._native import SourceDocuments
from tokenloom.blending.array_order import number_type
from tokenloom.blending.composite import Composite, Share, with_dataset_id
from tokenloom.datasets.base import positions_and_fillers
from tokenloom.datasets.config import GPTDatasetConfig
from tokenloom.datasets.data_match import check_kind
from tokenloom.datasets.protocols import Positions
from tokenloom.datasets.sample_arrays import INTEGERS, BatchLayout, recycled_empty
from tokenloom.datasets.slot_counts import SlotCounts
from tokenloom.datasets.tensors import Sample, sample_batch
from tokenloom.datasets.tokenizer import pad_token_id
from tokenloom.errors import AmbiguousPadWarning, ConfigError
from tokenloom.forks import READING_LOCK, cached_property
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.joined import JoinedPairs, PairToJoin
from tokenloom.kernels.walks import NOT_KNOWN, WINDOW_BITS, make_source_documents, make_walk_reader, sample_numbers
from tokenloom.order.walk_order import WalkOrder, source_key, with_pairs
from tokenloom.order.windows import Spans
from tokenloom.run.digest import KnownOrder, order_digest, run_identity
from tokenloom.run.held_out import DeniedDocuments
from tokenloom.run.lock import LockedPair, LockedSource, LockedTokenizer, RunLock
from tokenloom.run.settings import CONVERSATIONS, KINDS, class_of, data_kind, most_in_pack
from tokenloom.run.source_progress import Walk, tokens_of
from tokenloom.run.sources import check_opened
from tokenloom.run.timeline import Timeline, bounds_of
from tokenloom.storage.addresses import is_remote
from tokenloom.storage.settings import ObjectStorageSettings
from tokenloom.tokenizers.load import load_tokenizer

if TYPE_CHECKING:  # this module imports the tokenization of conversations, which other runs need not load
    from tokenloom.datasets.exposure import JoinedConversations

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a sample comes from: a window of a walk; a walk is a pass or part of a pass. All numbers count from 0."""

    position: int
    stage: str
    source: str
    pass_number: int
    walk: int
    window: int
    sequence_length: int


def place_at(timeline: Timeline, position: int) -> Place:
    number, source, walk, window = (int(each[0]) for each in timeline.locate(np.array([position], dtype=np.int64)))
    segment = timeline.lock.segments[number]
    return Place(
        position=position,
        stage=segment.stage,
        source=timeline.lock.sources[source].name,
        pass_number=timeline.walk_of(source, walk).pass_number,
        walk=walk,
        window=window,
        sequence_length=segment.sequence_length,
    )


class RunDataset(Composite):
    """The samples of a run by position; `dataset_id` of a sample is the index of its source.

    Negative positions count from the end, unless the run is endless. Position None gives a sample without any loss.
    Data of a source are opened when its first sample is read. Thread-safe, fork-safe and picklable.

    Args:
        timeline: the order of the run.
        tokenizer: the tokenizer of the run.
        reading: how to read the data.
        held_out_of: lock of a run whose held-out documents are read; None to read the documents for training.
    """

    def __init__(
        self, timeline: Timeline, *, tokenizer: Any, reading: Reading, held_out_of: RunLock | None = None
    ) -> None:
        self._check_overrides()
        self.timeline = timeline
        self.lock: RunLock = timeline.lock
        self._data_lock = self.lock if held_out_of is None else held_out_of
        self.makes_batches: bool = self.lock.dataset != "varlen"
        """Whether `batch` works; False for dataset "varlen", since its samples differ in length."""
        self.digests_tokens: bool = self.lock.dataset not in CONVERSATIONS
        """Whether `batch` can compute digests of tokens; False for conversations."""
        self.tokenizer = tokenizer
        self.reading = reading
        self._number_type = number_type(len(self.lock.sources))
        digest_at = partial(order_digest, self.lock)
        self.run_order: KnownOrder = KnownOrder(run=run_identity(self.lock), num_samples=len(self), digest_at=digest_at)
        self._lengths = sorted({segment.sequence_length for segment in self.lock.segments})
        self._configs = {length: run_config(self.lock, length, tokenizer, reading) for length in self._lengths}
        self._begin()

    def _begin(self) -> None:
        self._layouts: dict[int, BatchLayout] = {}
        self._denied = DeniedDocuments(self.lock)
        self._lookups = Lookups(self.timeline)
        self._opened: dict[int, SourceData] = {}
        self._members: dict[tuple[int, int, int], Member] = {}

    def __getstate__(self) -> dict[str, Any]:
        opened = ("_layouts", "_denied", "_lookups", "_opened", "_members", "_overrides")
        return {name: value for name, value in self.__dict__.items() if name not in opened}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

    def __len__(self) -> int:
        """Number of samples; 2**60 if the run is endless."""
        return self.lock.end

    def __repr__(self) -> str:
        size = "without end" if self.lock.num_samples is None else f"num_samples={len(self)}"
        return f"RunDataset({len(self.lock.sources)} sources, {len(self.lock.segments)} segments, {size})"

    def facts(self) -> dict[str, Any]:
        """Returns a summary of the lock and the number of open pairs, for display; see `HasFacts`."""
        return lock_facts(self.lock) | {"open pairs": sum(data.pairs.num_open for data in self._opened.values())}

    def place(self, idx: int) -> Place:
        """Returns the stage, source and window of a position, without opening data."""
        return place_at(self.timeline, self._position(idx))

    def spans(self, idx: int) -> Spans:
        """Returns the spans of a sample; documents are given by index in the source, denied documents by -1 - index."""
        spans: Spans = self._group(idx).ask(lambda dataset, numbers: dataset.span_batch(numbers))[0]
        return spans

    def _shares(self, positions: NDArray[np.int64]) -> list[Share]:
        """Groups the samples of a batch by source and by level, the number of the source's denials in force."""
        length, source_numbers, numbers = self._lookups.at(positions)
        sources = source_numbers.tolist()
        denies = bool(self._denied)
        rows: dict[tuple[int, int], Any] = {}
        if not denies and sources and sources.count(sources[0]) == len(sources):
            rows[sources[0], 0] = None
        else:
            for row, (source, position) in enumerate(zip(sources, positions.tolist(), strict=True)):
                level = self._denied.level(source, position) if denies else 0
                rows.setdefault((source, level), []).append(row)
        groups = []
        for (source, level), chosen in sorted(rows.items()):
            at = None if chosen is None else np.array(chosen, dtype=np.int64)
            own = numbers if at is None else numbers[at]
            walks = set((own >> WINDOW_BITS).tolist())
            groups.append(Share(source, own, at, self.member(source, length, level, walks).ask))
        return groups

    def member(self, source: int, length: int, level: int = 0, walks: Set[int] = frozenset()) -> Member:
        """Returns the samples of a source with its first `level` denials in force, ready to read at least `walks`."""
        member = self._members.get((source, length, level))
        if member is not None and walks <= member.walks:
            return member
        with READING_LOCK:
            config = self._configs[length]
            if source not in self._opened:
                held = self._data_lock is not self.lock
                self._opened[source] = SourceData(self._data_lock, source, self.reading, config, held=held)
            if (member := self._members.get((source, length, level))) is None:
                identity = f"{self.run_order.run} source {source} length {length} denied {level}"
                denied = self._denied.of(source, level)
                member = Member(self._opened[source], self.lock, config, denied=denied, identity=identity)
            for walk in walks - member.walks:
                member.add_walk(self.timeline.walk_of(source, walk))
            self._members[source, length, level] = member
            return member

    def groups_of(
        self, positions: NDArray[np.int64], segments: NDArray[np.int32] | None = None
    ) -> Iterator[tuple[NDArray[np.int64], Share]]:
        """Groups positions by segment, source and denials in force; yields (indices in `positions`, samples) per group.

        Positions may be in any order, and samples may differ in length. `segments`: index of each position's segment.
        """
        if segments is None:
            segments = self.timeline.locate(positions).segments
        for segment in np.unique(segments).tolist():
            rows = np.flatnonzero(segments == segment)
            for group in self._shares(positions[rows]):
                yield rows[group.places], group

    def _position(self, idx: int) -> int:
        position, count = operator.index(idx), len(self)
        if not -count <= position < count or (position < 0 and self.lock.num_samples is None):
            raise IndexError(f"position {position} out of range: the run has {count} samples")
        return position if position >= 0 else position + count

    def _group(self, idx: int | None) -> Share:
        [group] = self._shares(np.array([0 if idx is None else self._position(idx)], dtype=np.int64))
        return group

    def __getitem__(self, idx: int | None) -> Sample:
        """Returns a sample, including `dataset_id`, as torch tensors; None gives a sample without loss."""
        group = self._group(idx)
        item = group.ask(lambda dataset, numbers: dataset[int(numbers[0])])
        if idx is None:
            item["loss_mask"] = item["loss_mask"] * 0
        numbered: Sample = with_dataset_id(self._number_type(group.number), item)
        return numbered

    def sample(self, idx: int | None) -> Sample:
        """Returns a sample, including `dataset_id`, as NumPy arrays; None gives a sample without loss."""
        group = self._group(idx)
        arrays = group.ask(lambda dataset, numbers: dataset.sample(int(numbers[0])))
        if idx is None:
            arrays["loss_mask"] = np.zeros_like(arrays["loss_mask"])
        return {"dataset_id": np.array(group.number, dtype=self._number_type), **arrays}

    def __getitems__(self, positions: Sequence[int | None]) -> list[Sample]:
        """Returns several samples as torch tensors; torch's DataLoader calls this for each batch."""
        if not self.makes_batches:
            return [self[position] for position in positions]
        return sample_batch(self.batch(positions), len(positions))

    @property
    def fills_batches(self) -> bool:
        """Whether `batch` can fill arrays passed as `out`; False for conversations and for several sequence lengths."""
        return len(self._lengths) == 1 and self.lock.dataset not in CONVERSATIONS

    @property
    def layout(self) -> BatchLayout:
        """The names, shapes and dtypes of the arrays of a sample, including `dataset_id`."""
        if not self.fills_batches:
            kind = "conversations" if self.lock.dataset in CONVERSATIONS else f"samples of {self._lengths} tokens"
            raise ConfigError(f"`batch` cannot fill given arrays with {kind}", hint="call `batch` without `out`")
        return self._layouts.get(self._lengths[0]) or self._group(0).call(self._layout_of)

    def _layout_of(self, dataset: Any) -> BatchLayout:
        length = dataset.config.sequence_length
        if (layout := self._layouts.get(length)) is None:
            layout = self._layouts[length] = self._with_number(dataset.layout.outputs)
        return layout

    def batch(
        self, positions: Positions, *, out: Sample | None = None, digests: NDArray[np.uint64] | None = None
    ) -> Sample:
        """Returns samples as NumPy arrays with a leading batch axis; makes one kernel call per source.

        Args:
            positions: positions in any order, repeats allowed; an element None gives a sample without loss.
            out: arrays of `allocate_batch` to fill and return; None to allocate new ones.
            digests: uint64[count, 2], receives a digest of the tokens of each sample; see `FillsBatches`.
        """
        known, fillers = self._known(positions)
        groups = self._shares(known)
        if self.lock.dataset in CONVERSATIONS and out is None:
            out = self._join(groups, len(known))
        else:
            if out is not None:
                self.layout.check(out, len(known), name=repr(self))
            else:
                layout = groups[0].call(self._layout_of) if groups else self.layout
                out = layout.allocate((len(known),), integers=INTEGERS[0], empty=recycled_empty)
            self._fill(groups, out, digests)
        if fillers:
            out["loss_mask"][fillers] = 0
        return out

    def lengths(self, positions: NDArray[np.integer[Any]] | None = None) -> NDArray[np.int64]:
        """Returns the number of tokens of each sample, int64[num_positions], without reading samples.

        None stands for all positions. The number is `original_seq_len` for dataset "varlen", otherwise the sequence
        length of the stage.
        """
        return self._lengths_of(positions, lambda dataset, numbers: dataset.lengths(numbers))

    def padded_lengths(self, positions: NDArray[np.integer[Any]] | None = None) -> NDArray[np.int64]:
        """Returns padded lengths, int64[num_positions]: `padded_seq_len` for dataset "varlen", otherwise `lengths`."""
        return self._lengths_of(positions, lambda dataset, numbers: dataset.padded_lengths(numbers))

    def _lengths_of(
        self, positions: NDArray[np.integer[Any]] | None, question: Callable[[Any, Any], NDArray[np.int64]]
    ) -> NDArray[np.int64]:
        known, _ = self._known(np.arange(len(self)) if positions is None else positions)
        if self.lock.dataset != "varlen":
            lengths = np.array([segment.sequence_length for segment in self.lock.segments], dtype=np.int64)
            return np.take(lengths, self.timeline.locate(known).segments)
        answers = np.empty(len(known), dtype=np.int64)
        for rows, group in self.groups_of(known):
            answers[rows] = group.ask(question)
        return answers

    def _known(self, positions: Positions) -> tuple[NDArray[np.int64], list[int]]:
        """Returns non-negative positions, int64[count], 0 for each None, and the indices of all None in `positions`."""
        known, fillers = positions_and_fillers(positions)
        first, last = bounds_of(known) if known.size else (0, -1)
        if first < 0 or last >= len(self):
            known = np.array([self._position(position) for position in known.tolist()], dtype=np.int64)
        return known, fillers

    @property
    def counts_need_tokens(self) -> bool:
        """Whether loss depends on tokens, so that `slot_counts` reads data; the property itself opens no data."""
        config = next(iter(self._configs.values()))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", AmbiguousPadWarning)  # the dataset gives this warning
            pad = pad_token_id(self.tokenizer, allow_ambiguous=bool(config.allow_ambiguous_pad_tokens))
        return bool(config.eod_mask_loss) or pad >= 0 or bool(self.lock.samples.get("fim_rate"))

    def slot_counts(self, positions: NDArray[np.integer[Any]]) -> dict[int, SlotCounts]:
        """Counts slots by use, such as loss or padding, per source index; reads tokens only if loss depends on them."""
        counts: dict[int, SlotCounts] = {}
        for group in self._shares(self._known(positions)[0]):
            found: SlotCounts = group.ask(lambda dataset, numbers: dataset.slot_counts(numbers))
            counts[group.number] = counts.get(group.number, SlotCounts()) + found
        return counts

    @property
    def remote_paths(self) -> list[str]:
        """URLs of the remote `.bin` files that tokens are read from."""
        prefixes = [pair.prefix for source in self.lock.sources for pair in source.pairs]
        return [f"{prefix}.bin" for prefix in prefixes if is_remote(prefix)]

    def will_need(self, positions: Sequence[int | None]) -> None:
        """Starts to prefetch samples from object storage; `positions` are in the order in which they will be read."""
        known, _ = self._known([position for position in positions if position is not None])
        for _, group in self.groups_of(known):
            group.ask(lambda dataset, numbers: dataset.will_need(numbers.tolist()))


def lock_facts(lock: RunLock) -> dict[str, Any]:
    """Returns the ID, size, stages and sources of a run, for display; see `HasFacts`."""
    denied = sum(len(documents) for denial in lock.denials for _, documents in denial.documents)
    stages = [
        {"stage": each.stage, "from position": each.start, "samples": each.num_samples, "tokens": each.sequence_length}
        for each in lock.segments
    ]
    sources = [
        {"source": each.name, "pairs": len(each.pairs), "documents": each.num_documents, "tokens": each.num_tokens}
        for each in lock.sources
    ]
    return {
        "identity": run_identity(lock)[:16],
        "samples": "without end" if lock.num_samples is None else lock.num_samples,
        "consumed": lock.consumed or None,
        "order": lock.order_name,
        "seed": str(lock.seed),
        "dataset": lock.dataset,
        "tokenizer": None if lock.tokenizer is None else lock.tokenizer.name,
        "denied documents": denied or None,
        "stages": stages,
        "sources": sources,
    }


_NEAR = 2048  # batches whose positions are closer together than this are looked up in chunks
_KEPT = 4  # cached chunks: usually enough for one per reading thread


Samples = tuple[int, NDArray[np.int32], NDArray[np.int64]]
"""(Sequence length of all samples; their sources, int32[count]; their `walk << WINDOW_BITS | window`, int64[count])."""


class Lookups:
    """Looks up the samples at positions, and caches the samples at the positions that follow. Thread-safe."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._lengths = {segment.sequence_length for segment in timeline.lock.segments}
        self._chunk = lru_cache(_KEPT)(self._look_up_chunk)
        self._previous = -_NEAR

    def at(self, positions: NDArray[np.int64]) -> Samples:
        """Returns the samples at `positions`; all positions must be in the run.

        Training reads nearby positions batch after batch, so from the second batch on, thousands of positions are
        looked up at once and cached.
        """
        if not len(positions):
            return 0, np.empty(0, np.int32), positions
        first, last = bounds_of(positions)
        previous, self._previous = self._previous, last
        if last - first < _NEAR and abs(first - previous) < _NEAR:
            start = first - first % _NEAR
            with suppress(ConfigError):  # only other positions of the chunk may have another length
                length, sources, numbers = self._chunk(start)
                return length, sources[positions - start], numbers[positions - start]
        return self._look_up(positions)

    def _look_up_chunk(self, start: int) -> Samples:
        return self._look_up(np.arange(start, min(start + 2 * _NEAR, self._timeline.lock.end), dtype=np.int64))

    def _look_up(self, positions: NDArray[np.int64]) -> Samples:
        found = self._timeline.locate(positions)
        segments = self._timeline.lock.segments
        first = segments[int(found.segments.min())]
        if len(self._lengths) > 1:
            for other in (segments[number] for number in np.unique(found.segments).tolist()):
                if other.sequence_length != first.sequence_length:
                    lengths = f"{first.sequence_length} tokens (stage {first.stage!r}) and {other.sequence_length}"
                    stage = f"stage {other.stage!r}, from position {other.start} on"
                    message = f"a batch mixes samples of {lengths} ({stage})"
                    raise ConfigError(message, hint="begin a stage of another sequence length where a batch begins")
        return first.sequence_length, found.sources, sample_numbers(found.walks, found.windows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How to read the data of a run; changes no sample.

    Attributes:
        mmap: whether to map tokens into memory.
        object_storage: how to read object storage; None for the defaults.
        allow_tokenizer_mismatch, allow_data_mismatch: see `BlendedMegatronDatasetConfig`.
    """

    mmap: bool = True
    object_storage: ObjectStorageSettings | None = None
    allow_tokenizer_mismatch: bool = False
    allow_data_mismatch: bool = False


def run_config(lock: RunLock, sequence_length: int, tokenizer: Any, reading: Reading, **further: Any) -> Any:
    """Returns the settings of the dataset class for a sequence length; `further` overrides settings of the lock."""
    settings = dict(lock.samples)
    for name in ("allow_tokenizer_mismatch", "allow_data_mismatch"):
        settings[name] = bool(settings.get(name)) or getattr(reading, name)
    settings |= {"random_seed": lock.seed % 2**31, "window_policy": lock.windows} | further
    return KINDS[lock.dataset](
        sequence_length=sequence_length,
        tokenizer=tokenizer,
        mmap_bin_files=reading.mmap,
        object_storage=reading.object_storage,
        **settings,
    )


class SourceData:
    def __init__(self, lock: RunLock, number: int, reading: Reading, config: GPTDatasetConfig, *, held: bool) -> None:
        self.source: LockedSource = lock.sources[number]
        self.held: bool = held  # whether held-out documents are read, in file order, instead of training documents
        self._key = source_key(lock.seed, self.source.name)
        self._config = config
        self._reads = data_kind(lock.dataset)
        self.pairs: JoinedPairs = JoinedPairs(
            [
                PairToJoin(prefix=pair.prefix, num_sequences=pair.num_documents, check=partial(self._check, pair))
                for pair in self.source.pairs
            ],
            dtype=np.dtype(self.source.pairs[0].dtype),
            mmap=reading.mmap,
            object_storage=reading.object_storage,
            beside=[pair.prefix for source in lock.sources for pair in source.pairs],
        )

    def _check(self, locked: LockedPair, pair: IndexedDataset) -> None:
        check_opened(pair, locked)
        check_kind(pair, self._config, name=f"`{locked.prefix}`", reads=self._reads)

    @cached_property
    def documents(self) -> SourceDocuments:
        tokens = [pair.held_tokens if self.held else tokens_of(pair) for pair in self.source.pairs]
        documents = self.documents_of(tokens)
        self.pairs.connect(documents)
        return documents

    def documents_of(self, sizes: Sequence[int]) -> SourceDocuments:
        """Returns the documents to read from all pairs; `sizes` has the number of tokens or packs of each pair."""
        both = zip(self.source.pairs, sizes, strict=True)
        rows = [(pair.num_documents, size, pair.held_blocks, pair.held_documents) for pair, size in both]
        return make_source_documents(rows, key=self._key, reads_held=self.held)

    def num_packs(self, sequence_length: int) -> list[int]:
        return [dict(pair.packs)[sequence_length] for pair in self.source.pairs]


class Member:
    """The samples of a source for one sequence length and denial level, by `walk << WINDOW_BITS | window`."""

    def __init__(
        self, data: SourceData, lock: RunLock, config: GPTDatasetConfig, *, denied: Sequence[int], identity: str
    ) -> None:
        if lock.dataset == "fim":  # sample numbers repeat in each source, so sources need different seeds
            config = replace(config, random_seed=source_key(lock.seed, data.source.name)[0] % 2**31)
        self.data = data
        self.taken: JoinedConversations | None = None
        kind = class_of(lock.dataset)
        length, extra, num_packs = config.sequence_length, config.num_extra_tokens, None
        if lock.dataset in CONVERSATIONS:
            packs = data.num_packs(length)
            documents = data.documents_of([NOT_KNOWN] * len(packs) if kind.shares_samples else packs)
            self.taken = kind.joined_conversations(data.pairs, config, name=data.source.name)
            self.taken.report_slots(documents, shares_samples=kind.shares_samples)
            length, extra, num_packs = (length, 0, packs) if kind.shares_samples else (1, 0, None)
        else:
            documents = data.documents
            num_packs = data.num_packs(length) if lock.windows == "best_fit" else None
        reader = make_walk_reader(
            documents,
            is_shuffled=lock.documents == "shuffled" and not data.held,
            sequence_length=length,
            extra=extra,
            denied=denied,
            num_packs=num_packs,
            most_pieces=most_in_pack(lock),
        )
        self.order: WalkOrder = WalkOrder(data.pairs, reader, identity=identity)
        if self.taken is not None:
            self.dataset: Any = kind.in_order(self.taken, self.order)
        else:
            self.dataset = kind.in_order(data.pairs, self.order, config, name=data.source.name)
        self.walks: set[int] = set()

    def add_walk(self, walk: Walk) -> None:
        self.order.add_walks(walk.number, walk.first_pair, walk.last_pair, walk.num_windows, walk.part)
        self.walks.add(walk.number)

    def ask(self, question: Callable[[Any], Result]) -> Result:
        """Returns `question(dataset)`; opens the pairs that `question` reads."""
        return with_pairs(self.data.pairs, lambda: question(self.dataset))


_KNOWN = ("loaded", "eos", "special_tokens_dict")


class RunTokenizer:
    """The tokenizer of a run: token ids and `vocab_size` come from the lock; other attributes load the tokenizer."""

    def __init__(self, locked: LockedTokenizer | None, located: str | None) -> None:
        self._locked, self._located = locked, located
        self.vocab_size: int | None = None if locked is None else locked.vocab_size
        self.unique_identifiers: dict[str, str | None] = {"run": None if locked is None else locked.fingerprint}

    @property
    def eod(self) -> int:
        if self._locked is None or self._locked.eod is None:
            what = "without `tokenizer`, a run has" if self._locked is None else f"tokenizer {self._locked.name!r} has"
            hint = "remove `reset_position_ids`, `reset_attention_mask` and `eod_mask_loss`, or change `tokenizer`"
            raise ConfigError(f"{what} no end-of-document id", hint=hint)
        return self._locked.eod

    @property
    def pad(self) -> int:
        """The padding id. Raises `NotImplementedError` if there is none; samples then recognize padding by slot."""
        if self._locked is None or self._locked.pad is None:
            raise NotImplementedError
        return self._locked.pad

    @cached_property
    def loaded(self) -> Any:
        if self._located is None:
            raise ConfigError("text is needed, but run.toml has no `tokenizer`", hint="set `tokenizer` in run.toml")
        return load_tokenizer(self._located)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name in _KNOWN:
            raise AttributeError(name)
        return getattr(self.loaded, name)

    def __reduce__(self) -> tuple[Any, ...]:
        return RunTokenizer, (self._locked, self._located)
