"""Finds, locks and checks the data of a run's sources.

Locking reads no tokens: headers, manifests and, for holdouts and packs, document lengths and roles are enough.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any

import numpy as np

from tokenloom.datasets.data_match import Kind, kind_mismatch, mismatch
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
from tokenloom.run.settings import RunSettings, SourceSettings, class_of, config_of, data_kind, join_path, most_in_pack
from tokenloom.run.source_progress import are_packs, extra_tokens
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
    """Locks all sources of a run and returns them in the order of their indices.

    Sources and pairs of the old lock keep their indices and their held-out documents. A source that is no longer in the
    settings stays in the lock, but is not read. New pairs are appended in the order found, and read from `at` on.
    """
    sources = {source.name: source for source in ([] if old is None else old.sources)}
    prefixes = {each.name: find_pairs(each, settings.folder) for each in settings.sources}
    known = {name: [pair.prefix for pair in source.pairs] for name, source in sources.items()}
    owners: dict[str, str] = {}
    for name, prefix in ((name, prefix) for name, found in (known | prefixes).items() for prefix in found):
        if (owner := owners.setdefault(place_of(prefix), name)) != name:
            raise ConfigError(f"`{prefix}` is in two sources, {owner!r} and {name!r}", hint="remove it from one source")
    accepts_any = allow_data_mismatch or settings.samples.get("allow_data_mismatch")
    reads = None if accepts_any else data_kind(settings.dataset)
    everything = list(chain.from_iterable(prefixes.values()))
    with task("lock", unit="pairs", total=len(everything)) as advance, ThreadPoolExecutor(NUM_THREADS) as executor:

        def lock(prefix: str) -> LockedPair:
            found = lock_pair(prefix, tokenizer=tokenizer, reads=reads, object_storage=object_storage)
            advance()
            return found

        locked = dict(zip(everything, executor.map(lock, everything), strict=True))
    is_computed, opens = settings.order != "megatron", partial(IndexedDataset, object_storage=object_storage)
    for each in settings.sources:
        name, found = each.name, [locked[prefix] for prefix in prefixes[each.name]]
        source = _lock_source(each, found, sources.get(name), seed=settings.seed, at=at, opens=opens)
        if is_computed and are_packs(settings):
            source = _with_packs(source, settings, old, opens)
        sources[name] = source  # a known source keeps its index, a new source is appended
    for source in sources.values() if is_computed else ():
        if len(dtypes := {pair.dtype: pair.prefix for pair in source.pairs}) > 1:
            message = f"source {source.name!r} mixes two token dtypes: {_two(dtypes)}"
            raise ConfigError(message, hint="move one pair to another source, or tokenize it again")
    tokenizers = {pair.fingerprint: pair.prefix for source in sources.values() for pair in source.pairs}
    tokenizers.pop(None, None)
    if len(tokenizers) > 1:
        raise TokenizerError(f"sources mix two tokenizers (sha256): {_two(tokenizers)}", hint="tokenize one pair again")
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
    """Locks a pair without a holdout; raises an error if the pair does not match `tokenizer` or the kind `reads`."""
    pair = IndexedDataset(prefix, object_storage=object_storage)
    prefix = pair.path_prefix
    if pair.dtype.kind not in "iu":
        raise ConfigError(f"`{bin_path(prefix)}`: token ids of a run must be integers, got {pair.dtype.name}")
    if pair.index.has_modes:
        message = f"`{idx_path(prefix)}`: a run cannot read multimodal pairs"
        raise ConfigError(message, hint="read the pair with `IndexedDataset(prefix, multimodal=True)`")
    if reads is not None and (wrong := kind_mismatch(pair, reads, reads_roles=True)) is not None:
        hint = "put the pair into another run with a matching `dataset`, or set `allow_data_mismatch` in [samples]"
        raise ConfigError(f"`{prefix}`: {wrong[1]}", hint=hint)
    head = None if tokenizer is None else manifest_head_of(pair)
    if head is not None and (other := mismatch(head, tokenizer)) is not None:
        message = f"`{prefix}`: expected tokenizer {other}, found {head.tokenizer.describe()}"
        raise TokenizerError(message, hint="set `tokenizer` to that of the data, or tokenize the data again")
    locked = facts_of(pair)
    try:
        manifest = manifest_of(pair)
    except AccessDeniedError:  # stores report a missing object in this way if the user may not list objects
        manifest = None
    if manifest is None:
        return locked
    if (facts := manifest.pair) is not None:
        known, found = (locked.num_tokens, locked.idx_bytes), (facts.num_tokens, facts.index.num_bytes)
        if known != found:
            sizes = f"expected {known[0]} tokens and {known[1]} bytes of index, found {found[0]} and {found[1]}"
            hint = "remove the manifest if you replaced the data; else write the data again"
            raise DatasetFormatError(f"`{manifest_path(prefix)}` belongs to another pair: {sizes}", hint=hint)
        locked = replace(locked, tokens_crc32=facts.tokens.crc32, index_crc32=facts.index.crc32)
    return replace(locked, fingerprint=manifest.tokenizer.sha256)


def facts_of(pair: IndexedDataset) -> LockedPair:
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
    hint = "restore the data; or, before training begins, remove the lock and run `tokenloom run lock`"
    return DatasetFormatError(f"`{path}` changed after it was locked: expected {expected}, found {found}", hint=hint)


def difference(locked: LockedPair, found: LockedPair) -> tuple[str, DatasetFormatError] | None:
    """Compares a locked pair with the pair as it is now; returns the changed file and an error; None if unchanged."""
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
"""Members of `LockedPair` to compare: name, function that returns the path of their file, and words for the error."""


Opens = Callable[[str], IndexedDataset]  # opens the pair of a prefix


def _lock_source(
    settings: SourceSettings, found: Sequence[LockedPair], old: LockedSource | None, *, seed: int, at: int, opens: Opens
) -> LockedSource:
    kept, new = _match_pairs(settings.name, found, () if old is None else old.pairs)
    if new and kept and kept[-1].since > at:
        since, prefix = kept[-1].since, new[0].prefix
        message = f"source {settings.name!r}: start position of `{prefix}` must be at least {since}, got {at}"
        raise ConfigError(message, hint=f"add the pair at position {since} or later, with `tokenloom run amend --grow`")
    by_blocks = any(pair.held_blocks for pair in kept)
    if settings.holdout is not None and not kept:
        by_blocks = holds_blocks(new, settings.holdout)
    _check_holdout(settings, kept, by_blocks=by_blocks)
    pairs = list(kept)
    for pair in with_holdout(new, settings.holdout, by_blocks=by_blocks, after=kept):
        tokens = 0
        if pair.held_blocks or pair.held_documents:
            lengths = opens(pair.prefix).index.sequence_lengths
            tokens = held_tokens(pair, lengths, key=source_key(seed, settings.name), number=len(pairs))
        pairs.append(replace(pair, held_tokens=tokens, since=at))
    if not sum(pair.num_tokens for pair in pairs):
        raise ConfigError(f"source {settings.name!r} has no tokens in {len(pairs)} pairs", hint="remove it or add data")
    return LockedSource(name=settings.name, pairs=tuple(pairs), max_passes=settings.max_passes)


def _with_packs(source: LockedSource, settings: RunSettings, old: RunLock | None, opens: Opens) -> LockedSource:
    """Returns the source with `packs` of each pair set for all sequence lengths; conversations count as packs."""
    lengths = {stage.sequence_length for stage in settings.stages}
    lengths |= set() if old is None else {segment.sequence_length for segment in old.segments}
    decide = ("seed", "dataset", "windows", "samples")
    is_known = old is not None and all(getattr(old, name) == getattr(settings, name) for name in decide)
    kind = class_of(settings.dataset) if data_kind(settings.dataset) == "conversations" else None

    def count(opened: IndexedDataset, number: int, length: int) -> int:
        documents, capacity, extra = opened.sequence_lengths, length, extra_tokens(settings)
        if kind is not None:
            documents = kind.count_slots(opened, config_of(settings.dataset, settings.samples, length))
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
            most_pieces=most_in_pack(settings),
        )

    pairs = []
    for number, pair in enumerate(source.pairs):
        known = dict(pair.packs) if is_known else {}
        if missing := lengths - known.keys():
            opened = opens(pair.prefix)
            known |= {length: count(opened, number, length) for length in missing}
        pairs.append(replace(pair, packs=tuple(sorted(known.items()))))
    return replace(source, pairs=tuple(pairs))


def _match_pairs(
    source: str, found: Sequence[LockedPair], old: Sequence[LockedPair]
) -> tuple[list[LockedPair], list[LockedPair]]:
    """Splits `found` into pairs of the old lock and new pairs; a moved pair is recognized by name and content."""
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
                message = f"source {source!r}: `{locked.prefix}` is in the lock but not in `data`"
                raise ConfigError(message, hint="keep the pair in `data`; to stop reading a source, remove its weight")
            pair = left.pop(alike[0])
        kept.append(replace(locked, prefix=pair.prefix))
    return kept, list(left.values())


def _check_holdout(settings: SourceSettings, kept: Sequence[LockedPair], *, by_blocks: bool) -> None:
    plain = [replace(pair, held_blocks=0, held_documents=0) for pair in kept]
    again = with_holdout(plain, settings.holdout, by_blocks=by_blocks)
    for locked, pair in zip(kept, again, strict=True):
        held, share = locked.held_blocks or locked.held_documents, pair.held_blocks or pair.held_documents
        if held != share:
            where = f"source {settings.name!r}: {'blocks' if by_blocks else 'documents'} held out of `{locked.prefix}`"
            raise ConfigError(f"{where}: number must stay {held}, got {share}", hint="restore the locked `holdout`")


NUM_THREADS = 16  # threads that open pairs in parallel: remote pairs cost a few round trips each


def find_pairs(source: SourceSettings, folder: str) -> list[str]:
    """Returns the prefixes of a source's pairs. Entries of `data` keep their order; matches of a glob are sorted."""
    found = [prefix for entry in source.data for prefix in _datasets_of(join_path(entry, folder), source.name)]
    with ThreadPoolExecutor(NUM_THREADS) as executor:
        are_far = any(map(is_remote, found))  # local pairs open faster than threads start
        pairs = list(chain.from_iterable((executor.map if are_far else map)(_pairs_of, found)))
    seen: dict[str, str] = {}
    for prefix in pairs:
        if (other := seen.setdefault(place_of(prefix), prefix)) is not prefix:
            also = "" if other == prefix else f", also as `{other}`"
            message = f"source {source.name!r} has `{prefix}` twice{also}"
            raise ConfigError(message, hint="remove one entry; to read data several times, set `passes` or `weights`")
    return pairs


def place_of(prefix: str) -> str:
    """Returns a key that is the same for all paths of one pair, such as links and relative paths."""
    return prefix if is_remote(prefix) else os.path.realpath(idx_path(prefix))


def _datasets_of(entry: str, source: str) -> list[str]:
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
        raise DatasetNotFoundError(f"source {source!r}: {entry!r} matches no pair", hint="check the pattern")
    prefixes = sorted(set(map(prefix_of, files)))
    for each in prefixes:
        tokens = bin_path(each) if bin_path(each) in files else catalogue_path(each)
        missing = [path for path in (idx_path(each), tokens) if path not in files]
        if missing:
            path = bin_path(each) if missing[0] == catalogue_path(each) else missing[0]
            message = f"source {source!r}: {entry!r} matches an incomplete pair: `{path}` is missing"
            raise DatasetNotFoundError(message, hint="remove the other file, or finish writing the pair")
    return prefixes


def _pairs_of(prefix: str) -> Iterable[str]:
    catalogue = None if exists(bin_path(prefix)) else read_catalogue(prefix)
    return (prefix,) if catalogue is None else [part.prefix for part in catalogue.parts]


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A difference between a pair and its lock, found by `check_sources`.

    Attributes:
        source: name of the source.
        path: the file, or the prefix of a pair that cannot be read.
        message: the problem as a sentence.
        is_unknown: whether the file could not be checked because the lock has no checksum of it.
    """

    source: str
    path: str
    message: str
    is_unknown: bool = False


def check_sources(lock: RunLock, *, full: bool) -> list[Problem]:
    """Compares all pairs with their lock and returns the differences in the order of the lock.

    Compares sizes, counts, index starts and the checksums in manifests; `full` also compares checksums of all bytes.
    """
    pairs = [(source.name, pair) for source in lock.sources for pair in source.pairs]
    sizes = [pair.num_tokens * np.dtype(pair.dtype).itemsize + pair.idx_bytes if full else 1 for _, pair in pairs]
    unit = "bytes" if full else "pairs"
    with task("check", unit=unit, total=sum(sizes)) as advance, ThreadPoolExecutor(NUM_THREADS) as executor:

        def check(named: tuple[str, LockedPair], size: int) -> list[Problem]:
            problems = list(_problems(*named, full=full))
            advance(size)
            return problems

        return list(chain.from_iterable(executor.map(check, pairs, sizes)))


def check_opened(pair: IndexedDataset, locked: LockedPair) -> None:
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
                message = f"`{path}`: not checked, since the lock has no checksum of it"
                yield Problem(source=source, path=path, message=message, is_unknown=True)
                continue
            if (found := source_checksum(file).crc32) != expected:
                error = changed_pair(path, f"bytes with CRC-32 {expected:08x}", f"{found:08x}")
                yield Problem(source=source, path=path, message=error.message)
    except TokenloomError as error:
        yield Problem(source=source, path=prefix, message=error.message)
