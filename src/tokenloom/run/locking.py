"""Locks a run: resolves `run.toml` to exact data and segments; consumed positions keep their samples.

A stage is split into segments where a source gains pairs or reaches `max_passes`. Locking again keeps begun segments
and the sizes of begun mixing blocks. If a shortened stage ends within a begun block, the block's segment is cut there.
If the last block of an extended stage has begun and is shorter than other blocks, the stage gets another segment.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Collection, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

import numpy as np

from tokenloom.datasets.tokenizer import NO_TOKEN, optional_token_id, pad_token_id
from tokenloom.errors import AmbiguousPadWarning, ConfigError, TokenizerError
from tokenloom.indexed.manifests import fingerprint_of, optional_number
from tokenloom.kernels.mixture import Mixture, smallest_weights
from tokenloom.numbers import checked_integer
from tokenloom.run.audit.source_origins import NamedDocuments, resolve_names
from tokenloom.run.changes import Moved, check_past, dropped_denials, first_moved
from tokenloom.run.dataset import Reading
from tokenloom.run.held_out import check_not_emptied
from tokenloom.run.lock import (
    MEGATRON_ORDER,
    MOST_SAMPLES,
    LockedDenial,
    LockedSegment,
    LockedSource,
    LockedTokenizer,
    RunLock,
    lock_bytes,
    lock_path,
    read_lock_if_there,
    write_lock,
)
from tokenloom.run.settings import (
    DenialSettings,
    DocumentName,
    RunSettings,
    StageSettings,
    join_path,
    located_tokenizer,
    parse_name,
    read_run,
    whole_weights,
)
from tokenloom.run.source_progress import Entered, Progress, are_packs, mixed_size, planned_size
from tokenloom.run.sources import lock_sources
from tokenloom.run.toml_file import read_text
from tokenloom.storage.atomic import PendingFile
from tokenloom.storage.publishing import FileGroup, OutputLock, publish_together
from tokenloom.tokenizers.load import load_tokenizer

_MOST_NAMED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedRun:
    """A new lock and the lock that it replaces.

    Attributes:
        lock: the new lock.
        old: the lock that `lock` replaces; None if no lock existed.
        moved: the first position where `lock` and `old` differ; None if they agree or `old` is None.
        exhausted: each source that reaches its `max_passes`, with the position and the stage where this happens.
        is_stopped: whether `max_passes` of a source ends the run before its last stage ends.
        empty_records: names of denied records from which no document was made.
        unknown_pairs: prefixes of pairs that may contain denied records, since the pairs have no origins.
        dropped: names of documents that `old` denies, and `lock` does not deny or denies from a later position on.
    """

    lock: RunLock
    old: RunLock | None
    moved: Moved | None = None
    exhausted: tuple[Exhausted, ...] = ()
    is_stopped: bool = False
    empty_records: tuple[str, ...] = ()
    unknown_pairs: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()


DROPS = ("consumed", "denials")  # parts of an old lock that `lock_run` can drop


def lock_run(
    path: str | os.PathLike[str],
    *,
    consumed: int | None = None,
    at: int | None = None,
    settings: RunSettings | None = None,
    reading: Reading | None = None,
    drop: Collection[str] = (),
    write: bool = True,
) -> LockedRun:
    """Locks a run as `run.toml` describes it; consumed positions keep their samples.

    Args:
        path: path of `run.toml`.
        consumed: number of positions read by training, which must not change; None for the number in the old lock.
        at: position of an amendment: earlier positions must not change, consumed or not; None without an amendment.
        settings: settings to lock instead of those in `run.toml`.
        reading: how to read data.
        drop: parts of the old lock to drop: "denials" allows denials to be removed or to begin at a later position;
            "consumed" allows `consumed` to be smaller than in the old lock.
        write: whether to write the lock.

    Raises:
        ConfigError: `run.toml` is invalid; a position that is or may be consumed would change; `consumed` would shrink
            or denials would be lost, and `drop` does not allow this. The old lock stays unchanged.
        OutputBusyError: another process is changing the run. The old lock stays unchanged.
    """
    with OutputLock(lock_path(os.fspath(path))) if write else nullcontext():
        settings = read_run(path) if settings is None else settings
        locked = _locked(settings, consumed, at, reading or Reading(), drop)
        if write:
            write_lock(lock_path(settings.path), locked.lock)
    return locked


def _locked(
    settings: RunSettings, consumed: int | None, at: int | None, reading: Reading, drop: Collection[str]
) -> LockedRun:
    old = read_lock_if_there(lock_path(settings.path))
    if consumed is not None:
        checked_integer("consumed", consumed, at_least=0)
    known = (0 if old is None else old.consumed) if consumed is None else consumed
    if old is not None and known < old.consumed and "consumed" not in drop:
        message = f"number of consumed positions must be at least {old.consumed}, as in the lock, got {known}"
        raise ConfigError(message, hint="after resuming an older checkpoint, run `tokenloom run lock --drop consumed`")
    begin = 0 if at is None else checked_integer("at", at, at_least=known)
    amended = 0 if old is None else max(begin, 0 if consumed == 0 else old.amended)
    kept = 0 if old is None else max(known, amended)
    read = old if kept else None  # if no position was read or amended, the whole old lock may change
    new, named = _with_data(settings, read, since=kept if at is None else begin, reading=reading)
    resolved = resolve(settings, new.sources, read, kept)
    new = replace(new, segments=resolved.segments, cut_short=resolved.cut_short, consumed=known, amended=amended)
    check_not_emptied(new)
    moved, dropped = None, tuple[str, ...]()
    if old is not None:
        check_past(old, new, max(known, begin))
        moved, dropped = first_moved(old, new, min(old.end, new.end)), tuple(dropped_denials(old, new))
    if dropped and "denials" not in drop:
        more = f" and {len(dropped) - _MOST_NAMED:,} more" if len(dropped) > _MOST_NAMED else ""
        names = ", ".join(dropped[:_MOST_NAMED]) + more
        message = f"`{settings.path}` removes locked denials, or begins them later: {names}"
        raise ConfigError(message, hint="restore `[[denied]]`, or run `tokenloom run lock --drop denials`")
    if moved is not None and consumed is None and at is None and not known:
        message = f"position {moved.position} may already be consumed: {moved.before} would become {moved.after}"
        raise ConfigError(message, hint="pass `--consumed-samples N`, the number of samples read so far, 0 if none")
    return LockedRun(
        lock=new,
        old=old,
        moved=moved,
        exhausted=resolved.exhausted,
        is_stopped=resolved.stopped,
        empty_records=tuple(dict.fromkeys(each for found in named for each in found.empty_records)),
        unknown_pairs=tuple(dict.fromkeys(each for found in named for each in found.unknown_pairs)),
        dropped=dropped,
    )


def _with_data(
    settings: RunSettings, read: RunLock | None, *, since: int, reading: Reading
) -> tuple[RunLock, list[NamedDocuments]]:
    """Returns the new lock, still without segments, and the documents of each `[[denied]]` table.

    `read` is the old lock if positions were read or amended, otherwise None.
    """
    tokenizer = locked = None
    if settings.tokenizer is not None:
        tokenizer = load_tokenizer(located_tokenizer(settings.tokenizer, settings.folder))
        allow_ambiguous_pad = bool(settings.samples.get("allow_ambiguous_pad_tokens"))
        locked = locked_tokenizer(settings.tokenizer, tokenizer, allow_ambiguous_pad=allow_ambiguous_pad)
    sources = lock_sources(
        settings,
        old=read,
        at=since,
        tokenizer=tokenizer,
        allow_data_mismatch=reading.allow_data_mismatch,
        object_storage=reading.object_storage,
    )
    denials, named = _denied(settings, sources, reading)
    same = ("seed", "documents", "windows", "mixing_block", "dataset", "samples", "content_sha256")
    lock = RunLock(
        order=MEGATRON_ORDER if settings.order == "megatron" else settings.order,
        **{name: getattr(settings, name) for name in same},
        tokenizer=locked,
        sources=sources,
        segments=(),
        denials=denials,
        settings_sha256=settings.sha256,
    )
    return lock, named


def locked_tokenizer(name: str, tokenizer: Any, *, allow_ambiguous_pad: bool) -> LockedTokenizer:
    fingerprint, vocab_size = fingerprint_of(tokenizer), optional_number(tokenizer, "vocab_size")
    if fingerprint is None or vocab_size is None:
        raise TokenizerError(f"tokenizer `{name}` has no `sha256` or no `vocab_size`", hint="set another `tokenizer`")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AmbiguousPadWarning)  # the dataset gives this warning
        pad = pad_token_id(tokenizer, allow_ambiguous=allow_ambiguous_pad)
    eod = optional_token_id(tokenizer, "eod")
    return LockedTokenizer(
        name=name,
        fingerprint=fingerprint,
        eod=None if eod == NO_TOKEN else eod,
        pad=None if pad == NO_TOKEN else pad,
        vocab_size=vocab_size,
    )


def _denied(
    settings: RunSettings, sources: Sequence[LockedSource], reading: Reading
) -> tuple[tuple[LockedDenial, ...], list[NamedDocuments]]:
    denials, named = [], []
    for denial in settings.denied:
        found = resolve_names(_listed(denial, settings), sources, object_storage=reading.object_storage)
        named.append(found)
        by_start: dict[int, dict[int, list[int]]] = {denial.start: {}}
        for source, documents in found.by_source:
            for document, pair in zip(documents, sources[source].locate(documents)[0].tolist(), strict=True):
                # Documents named by record are denied at `since` of their pair or later, so growth changes no past.
                since = sources[source].pairs[pair].since if (source, document) in found.of_records else 0
                by_start.setdefault(max(denial.start, since), {}).setdefault(source, []).append(document)
        for start, by_source in by_start.items():
            chosen = tuple((source, tuple(documents)) for source, documents in sorted(by_source.items()))
            denials.append(LockedDenial(start=start, documents=chosen))
    return tuple(sorted(denials, key=attrgetter("start"))), named


def _listed(denial: DenialSettings, settings: RunSettings) -> Iterator[DocumentName]:
    yield from denial.documents
    if denial.file is None:
        return
    path = join_path(denial.file, settings.folder)
    names = [source.name for source in settings.sources]
    lines = read_text(path, missing="create it: one document per line, such as `web:12345`").splitlines()
    for number, line in enumerate(lines, start=1):
        if line.strip() and not line.lstrip().startswith("#"):
            try:
                yield parse_name(line, names)
            except ConfigError as error:
                error.message = f"`{path}`, line {number}: {error.message}"
                raise


def write_both(path: str, text: str, lock: RunLock) -> None:
    """Publishes `run.toml` and `run.lock`, both or neither. The caller holds the `OutputLock` of `run.lock`."""
    key = lock_path(path)
    files = [PendingFile(path), PendingFile(key)]
    try:
        files[0].write(text.encode())
        files[1].write(lock_bytes(lock, path=key))
        publish_together([FileGroup(key=key, files=files, names=[path, key])], replace=True, locked=[key])
    finally:
        for file in files:
            file.discard()


Weights = tuple[tuple[int, int], ...]  # (index of the source, weight above 0), ascending


@dataclass(frozen=True, slots=True, kw_only=True)
class Exhausted:
    """The position and stage where a source reaches `max_passes`, and the stage's `on_exhausted`."""

    source: str
    stage: str
    position: int
    on_exhausted: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    segments: tuple[LockedSegment, ...]
    exhausted: tuple[Exhausted, ...] = ()
    stopped: bool = False
    cut_short: str | None = None


def resolve(
    settings: RunSettings, sources: Sequence[LockedSource], old: RunLock | None = None, consumed: int = 0
) -> Resolved:
    consumed = 0 if old is None else consumed
    if old is not None and consumed > old.end:
        message = f"number of consumed positions must be at most {old.end}, the length of the run, got {consumed}"
        raise ConfigError(message, hint="check that this is the lock of the run that was trained")
    resolving = _Resolving(settings, sources, old, consumed)
    if settings.order == "megatron":
        [stage] = settings.stages
        numbers = {source.name: number for number, source in enumerate(sources)}
        weights = tuple(whole_weights(sorted((numbers[name], share) for name, share in stage.weights or ())))
        return Resolved(segments=(replace(resolving.endless_segment(stage, weights), num_samples=stage.num_samples),))
    stopped = next((stage for stage in settings.stages if not resolving.add_stage(stage)), None)
    is_meant = stopped is None or (stopped is settings.stages[-1] and stopped.is_endless)
    return Resolved(
        segments=tuple(resolving.segments),
        exhausted=tuple(resolving.exhausted.values()),
        stopped=stopped is not None,
        cut_short=None if is_meant else list(resolving.exhausted)[-1][0],
    )


class _Resolving:
    """Builds the segments of a run one by one; tracks the progress of all sources up to the last built segment."""

    def __init__(
        self, settings: RunSettings, sources: Sequence[LockedSource], old: RunLock | None, consumed: int
    ) -> None:
        self.segments: list[LockedSegment] = []
        self.exhausted: dict[tuple[str, str], Exhausted] = {}
        self._sources = sources
        self._numbers = {source.name: number for number, source in enumerate(sources)}
        self._block = settings.mixing_block
        self._progress = Progress(sources, settings)
        self._stretches = _stretch_lengths(settings)
        self._consumed = consumed
        self._has_caps = any(source.max_passes is not None for source in sources)
        self._num_old = 0 if old is None else len(old.sources)
        begun = [segment for segment in old.segments if segment.start < consumed] if old is not None else []
        self._history = {(segment.start, segment.stage): segment for segment in begun}
        self._current = begun[-1].start if begun else -1

    @property
    def position(self) -> int:
        stop = self.segments[-1].stop if self.segments else 0
        assert stop is not None  # no stage follows an endless stage
        return stop

    def add_stage(self, stage: StageSettings) -> bool:
        """Adds the segments of a stage; returns False if `max_passes` of a source ends the run in the stage."""
        weights, size = self.weights_and_size(stage)
        stop = None if size is None else self.position + size
        if stop is not None and stop > MOST_SAMPLES:
            raise ConfigError(f"stage {stage.name!r} ends at position {stop}; the maximum is 2**60")
        while (not self.segments or self.segments[-1].num_samples is not None) and self.position != stop:
            if not self._add_segment(stage, weights, stop):
                return False
        return True

    def _add_segment(self, stage: StageSettings, weights: Weights, stop: int | None) -> bool:
        """Adds one segment at the current position; returns False if the run ends here."""
        start = self.position
        read = self._history.get((start, stage.name))
        skipped = self._skipped_sources(stage, weights, read)
        self._note(stage, skipped, start)
        kept = _smallest({source: weight for source, weight in weights if source not in skipped})
        if not kept or (skipped and read is None and stage.on_exhausted == "stop"):
            return False
        if read is None:
            exhausted = tuple(sorted(skipped)) if self._has_caps else None
            segment = replace(self.endless_segment(stage, kept), exhausted=exhausted)
        else:
            segment = replace(read, sequence_length=stage.sequence_length, weights=kept)
        entered = self._progress.enter(segment)
        if read is None:
            growth = self._progress.sizes.next_growth(entered.sources, start + 1)
            cap = self._cap(stage, entered, segment, stop if growth is None else growth)
            stop = _first(stop, growth, cap)
            segment = replace(segment, num_samples=None if stop is None else stop - start)
        elif start == self._current:
            segment = self._end_current(stage, entered, segment, stop, skipped)
        else:
            segment = _ended(segment, _first(stop, read.stop), self._block, self._consumed)
        self.segments.append(segment)
        if segment.num_samples is not None:
            self._progress.plan(entered, segment)
            self._progress.leave(entered, segment, self._progress.mixed(segment))
        return True

    def weights_and_size(self, stage: StageSettings) -> tuple[Weights, int | None]:
        """Returns a stage's weights and number of samples (None if endless); both follow from `passes` if given."""
        if stage.passes is None:
            assert stage.weights is not None
            whole = whole_weights((self._numbers[name], share) for name, share in stage.weights)
            return _smallest(dict(whole)), stage.num_samples
        passes = sorted((self._numbers[name], share) for name, share in stage.passes)
        numbers = np.array([number for number, _ in passes], dtype=np.int64)
        num_pairs = self._progress.sizes.num_pairs(numbers, self.position)
        sizes = self._progress.sizes.of_sources(numbers, num_pairs, stage.sequence_length).tolist()
        quotas = {number: max(1, int(share * size)) for (number, share), size in zip(passes, sizes, strict=True)}
        return _smallest(quotas), sum(quotas.values())

    def _skipped_sources(self, stage: StageSettings, weights: Weights, read: LockedSegment | None) -> set[int]:
        """Returns the sources that a segment skips: exhausted sources, and sources added after the segment began."""
        sources = {source for source, _ in weights}
        if read is not None:
            lacking = sources - {source for source, _ in read.weights}
            return {each for each in lacking if each in (read.exhausted or ()) or each >= self._num_old}
        return set() if stage.on_exhausted == "repeat" else self._exhausted(stage, sources)

    def _exhausted(self, stage: StageSettings, sources: Collection[int]) -> set[int]:
        caps = {each: cap for each in sorted(sources) if (cap := self._sources[each].max_passes) is not None}
        if not caps:
            return set()
        only = self.endless_segment(stage, tuple((each, 1) for each in caps))
        entered = self._progress.copy().enter(only, checks_sizes=False)
        return {each for leaf, (each, cap) in enumerate(caps.items()) if not entered.takes_within(leaf, cap)}

    def endless_segment(self, stage: StageSettings, weights: Weights) -> LockedSegment:
        return LockedSegment(
            stage=stage.name,
            start=self.position,
            num_samples=None,
            sequence_length=stage.sequence_length,
            weights=weights,
            stretch_length=self._stretches[stage.name],
        )

    def _end_current(
        self, stage: StageSettings, entered: Entered, read: LockedSegment, stop: int | None, skipped: set[int]
    ) -> LockedSegment:
        """Moves the end of the segment that training is in, at most to `consumed` if skipped sources return."""
        size, consumed = mixed_size(read), self._consumed
        blocks = -(-(consumed - read.start) // self._block)
        touched = read.start + min(blocks * self._block, size)
        growth = self._progress.sizes.next_growth(entered.sources, consumed)
        cap = self._cap(stage, entered, read, stop)
        if cap is not None and cap < touched and cap != read.stop:
            cap = consumed  # windows beyond the cap were already read within a mixing block
        returns = stage.on_exhausted == "repeat" or self._exhausted(stage, skipped) != skipped
        ends = [stop, growth, cap, consumed if skipped and returns else None]
        if size % self._block and read.start + size // self._block * self._block < consumed:
            ends.append(read.start + size)
        if read.stretch_length is not None and (planned := planned_size(read)) < MOST_SAMPLES:
            ends.append(read.start + planned)
        return _ended(read, _first(*ends), self._block, consumed)

    def _cap(self, stage: StageSettings, entered: Entered, segment: LockedSegment, stop: int | None) -> int | None:
        """Returns the first position where a source exceeds `max_passes`; None if none does, or if sources repeat."""
        caps = [(leaf, self._sources[source].max_passes) for leaf, source in enumerate(entered.sources.tolist())]
        takes = {leaf: entered.takes_within(leaf, cap) for leaf, cap in caps if cap is not None}
        mixture = Mixture([weight for _, weight in segment.weights])
        ks = mixture.positions(np.array([*takes], dtype=np.int32), np.array([*takes.values()], dtype=np.int64))
        end = MOST_SAMPLES if stop is None else stop
        found = sorted(zip((ks + segment.start).tolist(), takes, strict=True))
        reached = [(position, leaf) for position, leaf in found if segment.start <= position < end]
        if stage.on_exhausted == "repeat":
            for position, leaf in reached:
                self._note(stage, {int(entered.sources[leaf])}, position)
            return None
        return reached[0][0] if reached else None

    def _note(self, stage: StageSettings, sources: set[int], position: int) -> None:
        for name in (self._sources[source].name for source in sorted(sources)):
            found = Exhausted(source=name, stage=stage.name, position=position, on_exhausted=stage.on_exhausted)
            self.exhausted.setdefault((name, stage.name), found)


def _first(*ends: int | None) -> int | None:
    return min((end for end in ends if end is not None), default=None)


def _smallest(weights: dict[int, int]) -> Weights:
    numbers = sorted(weights)
    return tuple(zip(numbers, smallest_weights(map(weights.__getitem__, numbers)), strict=True)) if weights else ()


def _ended(read: LockedSegment, stop: int | None, block: int, consumed: int) -> LockedSegment:
    """Moves the end of a segment to `stop`; the last mixing block before `stop` keeps its size if it has begun."""
    if stop == read.stop:
        return read
    if stop is None:
        return replace(read, num_samples=None, mixed_as=None)
    size = stop - read.start
    begin = (size - 1) // block * block
    mixed_as = min(mixed_size(read), begin + block) if read.start + begin < consumed else size
    planned = None if read.stretch_length is None or planned_size(read) == size else planned_size(read)
    return replace(read, num_samples=size, mixed_as=mixed_as if mixed_as > size else None, planned=planned)


def _stretch_lengths(settings: RunSettings) -> dict[str, int | None]:
    """Returns, by stage, the longest sequence length of the stage and later stages that continue its passes, or None.

    A later stage continues passes if its length divides the longest one before, or is a multiple. None: all are equal.
    """
    found: dict[str, int | None] = {}
    for number, stage in enumerate(settings.stages):
        longest, is_alone = stage.sequence_length, True
        for later in settings.stages[number + 1 :] if not are_packs(settings) else ():
            lengths = sorted((longest, later.sequence_length))
            if lengths[1] % lengths[0]:
                break
            longest, is_alone = lengths[1], is_alone and lengths[0] == lengths[1]
        found[stage.name] = None if is_alone else longest
    return found
