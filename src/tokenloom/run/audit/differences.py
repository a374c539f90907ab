"""How two runs differ: from which position on, in which settings, and what of their data they have in common.

Nothing but the locks is read. What two runs have in common is counted twice over. *Samples in common* are those that
both read before a position, wherever in the run: one window of one walk, cut alike out of data of the same content. Of
runs with different seeds, samples or names of a source there are none. *Data in common* are pairs of the same content
under any name, however they are cut.
"""

from __future__ import annotations

import zlib
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

from tokenloom.errors import ConfigError
from tokenloom.run.audit.occurrences import common, num_tokens_of, windows_read
from tokenloom.run.changes import MAKE_SAMPLES, first_moved
from tokenloom.run.dataset import Place, place_at
from tokenloom.run.digest import content_of, order_digest, ratio_of, run_identity
from tokenloom.run.lock import MOST_SAMPLES, LockedPair, LockedSource, RunLock
from tokenloom.run.progress import mixed_size
from tokenloom.run.timeline import Timeline

_SETTINGS = (*MAKE_SAMPLES, "mixing_block", "tokenizer")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedSetting:
    """A setting of a run that two runs have otherwise.

    Attributes:
        name: its name; of what is no single value "sources", "data of NAME", "stages" or "denied".
        before, after: what it is, in words.
    """

    name: str
    before: str
    after: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedSource:
    """What two runs have in common of the source of one name. Tokens are of whole samples, each time they are read.

    Attributes:
        tokens_before, tokens_after: tokens that each reads of it.
        common_tokens: those of samples that both read.
        data_before, data_after: tokens of its pairs in each lock.
        common_data: those of pairs of the first run that the second has, too, under any name.
        names_after: sources of the second run that have these pairs.
    """

    name: str
    tokens_before: int
    tokens_after: int
    common_tokens: int
    data_before: int
    data_after: int
    common_data: int
    names_after: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDifferences:
    """How a run differs from another.

    Attributes:
        runs: identities of both.
        ends: one past the last position of each; None for a run without an end.
        stop: the position before which they were compared; None if neither has an end and none was asked for.
        position: the first position that differs, or at which one of them ends; None if they are equal.
        before, after: what stands there; None behind the end of a run, and where the order is not computed.
        reason: what differs there, in words, where it is not the place.
        settings: what they have otherwise, wherever that shows.
        sources: what they have in common of each source before `stop`; None without one, or of an order that is not
            computed.
    """

    runs: tuple[str, str]
    ends: tuple[int | None, int | None]
    stop: int | None
    position: int | None
    before: Place | None
    after: Place | None
    reason: str | None
    settings: tuple[ChangedSetting, ...]
    sources: tuple[SharedSource, ...] | None

    @property
    def are_equal(self) -> bool:
        """Whether nothing differs at the positions that were compared."""
        return self.position is None

    def as_json(self) -> dict[str, Any]:
        """Returns all of it as `json` writes it."""
        return asdict(self)


def differences(old: RunLock, new: RunLock, *, until: int | None = None) -> RunDifferences:
    """Returns how a run differs from another."""
    ends = old.num_samples, new.num_samples
    longest = max(MOST_SAMPLES if end is None else end for end in ends)
    if until is not None and until > longest:
        message = f"expected a position up to {longest}, where the longer run ends, found {until}"
        raise ConfigError(message)
    limit = MOST_SAMPLES if until is None else until
    stops = [limit if end is None else min(limit, end) for end in ends]
    before = after = reason = sources = None
    shared_stop: int | None = min(stops) if until is None else until
    if old.is_megatron or new.is_megatron:
        are_equal = ends[0] == ends[1] and order_digest(old, stops[0]) == order_digest(new, stops[1])
        position, shared_stop = None if are_equal else 0, min(stops)
        reason = None if are_equal else 'with `order = "megatron"` any difference shuffles all samples anew'
    else:
        moved = first_moved(old, new, min(stops))
        position = min(stops) if moved is None and stops[0] != stops[1] else None if moved is None else moved.position
        timelines = Timeline(old), Timeline(new)
        before, after = (
            None
            if position is None or position >= (timeline.num_samples or MOST_SAMPLES)
            else place_at(timeline, position)
            for timeline in timelines
        )
        reason = None if moved is None else f"{moved.before} → {moved.after}"
        shared_stop = None if shared_stop == MOST_SAMPLES else shared_stop
        sources = None if shared_stop is None else _shared(*timelines, shared_stop)
    return RunDifferences(
        runs=(run_identity(old), run_identity(new)),
        ends=ends,
        stop=shared_stop,
        position=position,
        before=before,
        after=after,
        reason=reason,
        settings=tuple(_changed(old, new)),
        sources=sources,
    )


def _shared(before: Timeline, after: Timeline, stop: int) -> tuple[SharedSource, ...]:
    """Returns what two runs have in common of each source, in the order of the first run."""
    read, other = windows_read(before, 0, stop), windows_read(after, 0, stop)
    have_samples = all(_setting(before.lock, name) == _setting(after.lock, name) for name in MAKE_SAMPLES)
    owners: dict[tuple[object, ...], list[str]] = {}
    for owner in after.lock.sources:
        for pair in owner.pairs:
            owners.setdefault(_data(pair), []).append(owner.name)
    ones, others = (
        {source.name: (number, source) for number, source in enumerate(timeline.lock.sources)}
        for timeline in (before, after)
    )
    found = []
    for name in {**ones, **others}:
        number, source = ones.get(name, (-1, None))
        twin, its_source = others.get(name, (-1, None))
        mine, its = read.get(number, {}), other.get(twin, {})
        shared = [pair for pair in (() if source is None else source.pairs) if _data(pair) in owners]
        found.append(
            SharedSource(
                name=name,
                tokens_before=num_tokens_of(mine),
                tokens_after=num_tokens_of(its),
                common_tokens=num_tokens_of(common(mine, its)) if have_samples else 0,
                data_before=0 if source is None else _num_tokens(source),
                data_after=0 if its_source is None else _num_tokens(its_source),
                common_data=sum(pair.num_tokens for pair in shared),
                names_after=tuple(sorted({owner for pair in shared for owner in owners[_data(pair)]})),
            )
        )
    return tuple(found)


def _changed(old: RunLock, new: RunLock) -> list[ChangedSetting]:
    changed = [
        ChangedSetting(name=name, before=_words(one), after=_words(other))
        for name in _SETTINGS
        if (one := _setting(old, name)) != (other := _setting(new, name))
    ]
    before, after = ({source.name: source for source in lock.sources} for lock in (old, new))
    if gone_or_new := [name for name in (*before, *after) if (name in before) != (name in after)]:
        has = [_some([name for name in gone_or_new if name in names]) for names in (before, after)]
        changed.append(ChangedSetting(name="sources", before=has[0], after=has[1]))
    for name in before:
        if name in after and _content(before[name]) != _content(after[name]):
            pairs = [_content(source) for source in (before[name], after[name])]
            texts = [_described(source) for source in (before[name], after[name])]
            if texts[0] == texts[1]:
                texts = [_differing(pairs[0], pairs[1]), _differing(pairs[1], pairs[0])]
            changed.append(ChangedSetting(name=f"data of {name}", before=texts[0], after=texts[1]))
    for name, told in (("stages", _stages), ("denied", _denials)):
        if (ones := told(old)) != (others := told(new)):
            first = next((k for k, (a, b) in enumerate(zip(ones, others, strict=False)) if a != b), None)
            first = min(len(ones), len(others)) if first is None else first
            texts = [each[first] if first < len(each) else "none" for each in (ones, others)]
            changed.append(ChangedSetting(name=name, before=texts[0], after=texts[1]))
    return changed


def _setting(lock: RunLock, name: str) -> object:
    return lock.tokenizer and lock.tokenizer.fingerprint if name == "tokenizer" else getattr(lock, name)


def _words(value: object) -> str:
    return "none" if value is None else str(value)


def _some(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "") if names else "none"


def _stages(lock: RunLock) -> list[str]:
    """Returns the segments in words, with all that decides their positions."""
    told = []
    for segment in lock.segments:
        weights = zip(segment.weights, ratio_of(segment), strict=True)
        shares = ", ".join(f"{lock.sources[source].name}: {share}" for (source, _), share in weights)
        size = "without end" if segment.num_samples is None else f"{segment.num_samples} samples"
        mixed = (
            "" if mixed_size(segment) in (segment.num_samples, MOST_SAMPLES) else f", mixed as {mixed_size(segment)}"
        )
        told.append(f"{size} of {segment.sequence_length} tokens from {segment.start} on{mixed}: {shares}")
    return told


def _denials(lock: RunLock) -> list[str]:
    return [
        f"{len(documents)} documents of {lock.sources[source].name} from position {denial.start} on, "
        f"of checksum {zlib.crc32(repr(documents).encode()):08x}"
        for denial in lock.denials
        for source, documents in denial.documents
    ]


def _data(pair: LockedPair) -> tuple[object, ...]:
    """Returns what tells the data of a pair from others, wherever they lie and whatever is held out of them."""
    return tuple(content_of(pair)[:-3])


def _content(source: LockedSource) -> list[tuple[object, ...]]:
    return [(*content_of(pair), pair.since) for pair in source.pairs]


def _described(source: LockedSource) -> str:
    held = sum(pair.held_tokens for pair in source.pairs)
    pairs = f"{len(source.pairs)} pair{'' if len(source.pairs) == 1 else 's'}"
    return f"{pairs}, {_num_tokens(source):,} tokens" + (f", {held:,} held out" if held else "")


def _differing(content: list[tuple[object, ...]], other: list[tuple[object, ...]]) -> str:
    differing = Counter(content) - Counter(other)
    return f"{sum(differing.values())} pairs with other checksums, sizes or positions" if differing else "another order"


def _num_tokens(source: LockedSource) -> int:
    return sum(pair.num_tokens for pair in source.pairs)
