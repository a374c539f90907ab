"""The sources of a run: found for `run.toml`, locked, and compared with a lock, at a glance or byte by byte.

To lock them no token is read: headers, manifests and, for what is held out, lengths of documents say all.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np

from tokenloom.datasets.data_match import Kind, mismatch, misread
from tokenloom.errors import (
    AccessDeniedError,
    ConfigError,
    DatasetFormatError,
    DatasetNotFoundError,
    TokenizerError,
    TokenloomError,
)
from tokenloom.indexed.catalogue import catalogue_path, read_catalogue
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.layout import bin_path, idx_path, prefix_of
from tokenloom.indexed.manifests import index_start_crc32, manifest_head_of, manifest_of, manifest_path, source_checksum
from tokenloom.indexed.prefixes import expand_prefixes
from tokenloom.inputs.find import is_pattern, literal_folder, matches
from tokenloom.kernels.walks import count_packs_of
from tokenloom.order.walk_order import source_key
from tokenloom.progress import task
from tokenloom.run.held_out import held_tokens, holds_blocks, with_holdout
from tokenloom.run.lock import LockedPair, LockedSource, RunLock
from tokenloom.run.progress import are_packs, extra_tokens
from tokenloom.run.settings import (
    CONVERSATIONS,
    RunSettings,
    SourceSettings,
    class_of,
    config_of,
    located,
    most_in_pack,
)
from tokenloom.storage.addresses import is_remote
from tokenloom.storage.resolve import exists, objects_below
from tokenloom.storage.settings import ObjectStorageSettings


def lock_sources(
    settings: RunSettings,
    *,
    old: RunLock | None,
    at: int,
    tokenizer: Any = None,
    allow_data_mismatch: bool = False,
    object_storage: ObjectStorageSettings | None = None,
) -> tuple[LockedSource, ...]:
    """Returns the sources of a run, by number.

    Sources and pairs of an older lock keep their numbers, places and held-out documents; a source that the settings
    name no more stays as it is, unread. New pairs follow, in the order in which they are found, from position `at` on.
    """
    sources = {source.name: source for source in ([] if old is None else old.sources)}
    prefixes = {asked.name: find_pairs(asked, settings) for asked in settings.sources}
    known = {name: [pair.prefix for pair in source.pairs] for name, source in sources.items()}
    owners: dict[str, str] = {}
    for name, prefix in ((name, prefix) for name, found in (known | prefixes).items() for prefix in found):
        if (owner := owners.setdefault(place_of(prefix), name)) != name:
            message = f"`{prefix}` is in two sources, {owner!r} and {name!r}"
            raise ConfigError(message, hint="a pair stays in its source; change the weights of stages instead")
    reads: Kind | None = "conversations" if settings.dataset in CONVERSATIONS else "documents"
    if allow_data_mismatch or settings.samples.get("allow_data_mismatch"):
        reads = None
    everything = list(chain.from_iterable(prefixes.values()))
    with task("lock", unit="pairs", total=len(everything)) as advance, ThreadPoolExecutor(NUM_THREADS) as executor:

        def look(prefix: str) -> LockedPair:
            found = lock_pair(prefix, tokenizer=tokenizer, reads=reads, object_storage=object_storage)
            advance()
            return found

        seen = dict(zip(everything, executor.map(look, everything), strict=True))
    is_computed = settings.order != "megatron"
    for asked in settings.sources:
        name, found = asked.name, [seen[prefix] for prefix in prefixes[asked.name]]
        source = _lock_source(asked, found, sources.get(name), seed=settings.seed, at=at, object_storage=object_storage)
        if is_computed and are_packs(settings):
            source = _with_packs(source, settings, old, object_storage)
        sources[name] = source  # which keeps its number, or is appended
    for source in sources.values() if is_computed else ():
        if len(dtypes := {pair.dtype: pair.prefix for pair in source.pairs}) > 1:
            message = f"source {source.name!r} has tokens of two dtypes: {_two(dtypes)}"
            raise ConfigError(message, hint="make a source of its own of one, or tokenize it again")
    tokenizers = {pair.fingerprint: pair.prefix for source in sources.values() for pair in source.pairs}
    tokenizers.pop(None, None)
    if len(tokenizers) > 1:
        message = f"the data have two tokenizers, by sha256: {_two(tokenizers)}"
        raise TokenizerError(message, hint="tokenize one of them again")
    return tuple(sources.values())


def _two(prefixes: Mapping[Any, str]) -> str:
    return " and ".join(f"{key} in `{prefix}`" for key, prefix in list(prefixes.items())[:2])


def lock_pair(
    prefix: str,
    *,
    tokenizer: Any = None,
    reads: Kind | None = None,
    object_storage: ObjectStorageSettings | None = None,
) -> LockedPair:
    """Returns the facts of a pair with nothing held out; None takes any tokenizer, or any kind of data."""
    pair = IndexedDataset(prefix, object_storage=object_storage)
    prefix = pair.path_prefix
    if pair.dtype.kind not in "iu":
        raise ConfigError(f"`{bin_path(prefix)}`: a run reads integers as token ids, got {pair.dtype.name}")
    if pair.index.has_modes:
        message = f"`{idx_path(prefix)}`: a run reads text, got a multimodal pair"
        raise ConfigError(message, hint="read it with `IndexedDataset(prefix, multimodal=True)`")
    if reads is not None and (wrong := misread(pair, reads, reads_roles=True)) is not None:
        message = f"`{prefix}`: {wrong[1]}"
        hint = "a run has samples of one kind: make another run for these data (with its `dataset`), or read "
        raise ConfigError(message, hint=f"{hint}them with `allow_data_mismatch = true` in [samples]")
    head = None if tokenizer is None else manifest_head_of(pair)
    if head is not None and (other := mismatch(head, tokenizer)) is not None:
        message = f"`{prefix}`: made by the tokenizer {head.tokenizer.describe()}, not by {other}"
        raise TokenizerError(message, hint="name that one as `tokenizer`, or tokenize the data again")
    locked = facts_of(pair)
    try:
        manifest = manifest_of(pair)
    except AccessDeniedError:  # what stores say of a missing object to those who may not list
        manifest = None
    if manifest is None:
        return locked
    if (facts := manifest.pair) is not None:
        known, found = (locked.num_tokens, locked.idx_bytes), (facts.num_tokens, facts.index.num_bytes)
        if known != found:
            sizes = f"expected {known[0]} tokens and {known[1]} bytes of index, found {found[0]} and {found[1]}"
            hint = "if the data were replaced on purpose, remove it; else write them again"
            raise DatasetFormatError(f"`{manifest_path(prefix)}` is of another pair: {sizes}", hint=hint)
        locked = replace(locked, tokens_crc32=facts.tokens.crc32, index_crc32=facts.index.crc32)
    return replace(locked, fingerprint=manifest.tokenizer.sha256)


def facts_of(pair: IndexedDataset) -> LockedPair:
    """Returns the facts of an opened pair."""
    header = pair.index.header
    return LockedPair(
        prefix=pair.path_prefix,
        num_documents=header.num_sequences,
        num_tokens=pair.num_tokens,
        dtype=pair.dtype.name,
        idx_bytes=pair.index_source().num_bytes,
        index_start_crc32=index_start_crc32(header, pair.index.sequence_lengths),
    )


def changed_pair(path: str, expected: str, found: str) -> DatasetFormatError:
    """Returns the error of a file that changed since it was locked."""
    hint = "restore the data; before training, remove the lock and run `tokenloom run lock`"
    return DatasetFormatError(f"`{path}` changed after it was locked: expected {expected}, found {found}", hint=hint)


def difference(locked: LockedPair, found: LockedPair) -> tuple[str, DatasetFormatError] | None:
    """Returns file and error of a pair that changed since it was locked; None if no difference is known."""
    for name, path, what in _FACTS:
        expected, value = getattr(locked, name), getattr(found, name)
        if None not in (expected, value) and expected != value:
            shown = "{:08x}" if name.endswith("crc32") else "{}"
            file = path(found.prefix)
            return file, changed_pair(file, f"{what} {shown.format(expected)}", shown.format(value))
    return None


_FACTS = (
    ("dtype", idx_path, "the dtype"),
    ("num_documents", idx_path, "documents:"),
    ("idx_bytes", idx_path, "bytes:"),
    ("index_start_crc32", idx_path, "an index whose start has CRC-32"),
    ("num_tokens", bin_path, "tokens:"),
    ("index_crc32", idx_path, "an index with CRC-32"),
    ("tokens_crc32", bin_path, "tokens with CRC-32"),
)
"""Members of a pair by which it is compared, their file, and their name in a message."""


def _lock_source(
    settings: SourceSettings,
    found: Sequence[LockedPair],
    old: LockedSource | None,
    *,
    seed: int,
    at: int,
    object_storage: ObjectStorageSettings | None,
) -> LockedSource:
    """Returns a source: pairs of the lock, then new ones."""
    kept, new = _told_apart(settings.name, found, () if old is None else old.pairs)
    if new and kept and kept[-1].since > at:
        since, prefix = kept[-1].since, new[0].prefix
        message = f"source {settings.name!r} took up pairs at position {since}, so `{prefix}` cannot come at {at}"
        raise ConfigError(message, hint=f"take it up from position {since} on, or later")
    by_blocks = any(pair.held_blocks for pair in kept)
    if settings.holdout is not None and not kept:
        by_blocks = holds_blocks(new, settings.holdout)
    _check_holdout(settings, kept, by_blocks=by_blocks)
    pairs = list(kept)
    for pair in with_holdout(new, settings.holdout, by_blocks=by_blocks, after=kept):
        tokens = 0
        if pair.held_blocks or pair.held_documents:
            lengths = IndexedDataset(pair.prefix, object_storage=object_storage).index.sequence_lengths
            tokens = held_tokens(pair, lengths, key=source_key(seed, settings.name), number=len(pairs))
        pairs.append(replace(pair, held_tokens=tokens, since=at))
    if not sum(pair.num_tokens for pair in pairs):
        message = f"source {settings.name!r} has no tokens in {len(pairs)} pairs"
        raise ConfigError(message, hint="remove the source, or write its data again")
    return LockedSource(name=settings.name, pairs=tuple(pairs), max_passes=settings.max_passes)


def _with_packs(
    source: LockedSource, settings: RunSettings, old: RunLock | None, object_storage: ObjectStorageSettings | None
) -> LockedSource:
    """Returns a source whose pairs know their packs in a walk, by length; those of conversations are samples."""
    lengths = {stage.sequence_length for stage in settings.stages}
    lengths |= set() if old is None else {segment.sequence_length for segment in old.segments}
    decide = ("seed", "dataset", "windows", "samples")
    is_known = old is not None and all(getattr(old, name) == getattr(settings, name) for name in decide)
    kind = class_of(settings.dataset) if settings.dataset in CONVERSATIONS else None

    def count(opened: IndexedDataset, number: int, length: int) -> int:
        documents, capacity, extra = opened.sequence_lengths, length, extra_tokens(settings)
        if kind is not None:
            documents = kind.count_places(opened, config_of(settings.dataset, settings.samples, length))
            capacity, extra = (length if kind.shares_samples else 1), 0
        return count_packs_of(
            documents,
            sequence_length=capacity,
            extra=extra,
            key=source_key(settings.seed, source.name),
            pair=number,
            held_blocks=source.pairs[number].held_blocks,
            held_documents=source.pairs[number].held_documents,
            reads_held=False,
            most_pieces=most_in_pack(settings.dataset, settings.samples),
        )

    pairs = []
    for number, pair in enumerate(source.pairs):
        known = dict(pair.packs) if is_known else {}
        if missing := lengths - known.keys():
            opened = IndexedDataset(pair.prefix, object_storage=object_storage)
            known |= {length: count(opened, number, length) for length in missing}
        pairs.append(replace(pair, packs=tuple(sorted(known.items()))))
    return replace(source, pairs=tuple(pairs))


def _told_apart(
    source: str, found: Sequence[LockedPair], old: Sequence[LockedPair]
) -> tuple[list[LockedPair], list[LockedPair]]:
    """Returns the pairs of the lock, where they are now, and new ones; a moved pair is found by name and content."""
    left = {place_of(pair.prefix): pair for pair in found}
    there = {place: left.pop(place) for place in map(place_of, (pair.prefix for pair in old)) if place in left}
    kept = []
    for locked in old:
        if (pair := there.get(place_of(locked.prefix))) is not None:
            if (changed := difference(locked, pair)) is not None:
                raise changed[1]
        else:
            name = os.path.basename(locked.prefix)
            named = [place for place, each in left.items() if os.path.basename(each.prefix) == name]
            alike = [place for place in named if difference(locked, left[place]) is None]
            if len(alike) != 1:
                message = f"source {source!r}: `{locked.prefix}` is in the lock, but no more in `data`"
                raise ConfigError(message, hint="leave it there; give the source no weight to read no more of it")
            pair = left.pop(alike[0])
        kept.append(replace(locked, prefix=pair.prefix))
    return kept, list(left.values())


def _check_holdout(settings: SourceSettings, kept: Sequence[LockedPair], *, by_blocks: bool) -> None:
    plain = [replace(pair, held_blocks=0, held_documents=0) for pair in kept]
    again = with_holdout(plain, settings.holdout, by_blocks=by_blocks)
    for locked, pair in zip(kept, again, strict=True):
        held, share = locked.held_blocks or locked.held_documents, pair.held_blocks or pair.held_documents
        if held != share:
            what = f"{held} to {share} {'blocks' if by_blocks else 'documents'} of `{locked.prefix}`"
            message = f"source {settings.name!r}: `holdout` cannot change, here from {what}"
            raise ConfigError(message, hint="a holdout is chosen before training; set it as it was")


NUM_THREADS = 16
"""Threads that look at pairs at the same time: each costs a few round trips where files are far away."""


def find_pairs(source: SourceSettings, settings: RunSettings) -> list[str]:
    """Returns prefixes of the pairs of a source in the order of `data`; of a catalogue in its order, else by name."""
    entries = [located(entry, settings.folder) for entry in source.data]
    found = [prefix for entry in entries for prefix in _datasets_of(entry, source.name)]
    with ThreadPoolExecutor(NUM_THREADS) as executor:
        are_far = any(map(is_remote, found))  # else starting threads takes longer than looking
        pairs = list(chain.from_iterable((executor.map if are_far else map)(_pairs_of, found)))
    seen: dict[str, str] = {}
    for prefix in pairs:
        if (other := seen.setdefault(place_of(prefix), prefix)) is not prefix:
            also = "" if other == prefix else f", as `{other}` too"
            message = f"source {source.name!r} has `{prefix}` twice{also}"
            raise ConfigError(message, hint="a source is read several times by `passes` or `weights` of a stage")
    return pairs


def place_of(prefix: str) -> str:
    """Returns the same for all names of one pair: links, and relative paths."""
    return prefix if is_remote(prefix) else os.path.realpath(idx_path(prefix))


def _datasets_of(entry: str, source: str) -> list[str]:
    """Returns the prefixes of pairs and catalogues of an entry of `data`."""
    prefix = prefix_of(entry)
    if not is_pattern(entry) or (not is_remote(entry) and os.path.lexists(idx_path(prefix))):
        return expand_prefixes([entry])
    patterns = [path(prefix) for path in (idx_path, bin_path, catalogue_path)]
    if is_remote(prefix):
        below = objects_below(literal_folder(prefix))
        files = {address for address in below if any(matches(address, pattern) for pattern in patterns)}
    else:
        files = {path for pattern in patterns for path in glob.glob(pattern, recursive=True)}
    if not files:
        message = f"source {source!r}: {entry!r} matches no pair"
        raise DatasetNotFoundError(message, hint="a pair is two files, PREFIX.bin and PREFIX.idx")
    prefixes = sorted(set(map(prefix_of, files)))
    for each in prefixes:
        tokens = bin_path(each) if bin_path(each) in files else catalogue_path(each)
        missing = [path for path in (idx_path(each), tokens) if path not in files]
        if missing:
            path = bin_path(each) if missing[0] == catalogue_path(each) else missing[0]
            message = f"source {source!r}: {entry!r} matches half of the pair `{each}`: `{path}` is missing"
            raise DatasetNotFoundError(message, hint="remove the half, or finish writing the pair")
    return prefixes


def _pairs_of(prefix: str) -> Iterable[str]:
    catalogue = None if exists(bin_path(prefix)) else read_catalogue(prefix)
    return (prefix,) if catalogue is None else [part.prefix for part in catalogue.parts]


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A fault of a pair of a source, as a sentence about a file, or the pair (`path`).

    With `is_unknown` no fault is known: the lock has no checksum to compare with.
    """

    source: str
    path: str
    message: str
    is_unknown: bool = False


def check_sources(lock: RunLock, *, full: bool) -> list[Problem]:
    """Returns the pairs that changed since they were locked, in the order of the lock.

    Compares sizes, counts, the start of each index and the checksums in manifests; with `full` also those of all bytes.
    """
    pairs = [(source.name, pair) for source in lock.sources for pair in source.pairs]
    sizes = [pair.num_tokens * np.dtype(pair.dtype).itemsize + pair.idx_bytes if full else 1 for _, pair in pairs]
    unit = "bytes" if full else "pairs"
    with task("check", unit=unit, total=sum(sizes)) as advance, ThreadPoolExecutor(NUM_THREADS) as executor:

        def look(named: tuple[str, LockedPair], size: int) -> list[Problem]:
            problems = list(_problems(*named, full=full))
            advance(size)
            return problems

        return list(chain.from_iterable(executor.map(look, pairs, sizes)))


def check_opened(pair: IndexedDataset, locked: LockedPair) -> None:
    """Checks that an opened pair is as it was locked, as far as can be told without reading; costs some µs."""
    if (changed := difference(locked, facts_of(pair))) is not None:
        raise changed[1]


def _problems(source: str, locked: LockedPair, *, full: bool) -> Iterator[Problem]:
    prefix = locked.prefix
    try:
        if (changed := difference(locked, lock_pair(prefix))) is not None:
            yield Problem(source=source, path=changed[0], message=changed[1].message)
        if changed is not None or not full:
            return
        pair = IndexedDataset(prefix, mmap=False)
        for path, expected, file in (
            (bin_path(prefix), locked.tokens_crc32, pair.byte_source),
            (idx_path(prefix), locked.index_crc32, pair.index_source()),
        ):
            if expected is None:
                message = f"`{path}`: no checksum is known, since it was locked without a manifest"
                yield Problem(source=source, path=path, message=message, is_unknown=True)
                continue
            if (found := source_checksum(file).crc32) != expected:
                error = changed_pair(path, f"bytes with CRC-32 {expected:08x}", f"{found:08x}")
                yield Problem(source=source, path=path, message=error.message)
    except TokenloomError as error:
        yield Problem(source=source, path=prefix, message=error.message)
