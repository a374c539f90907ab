"""The pairs that `data` of a source stands for: prefixes, globs, folders and catalogues."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

from tokenloom.errors import ConfigError, DatasetNotFoundError
from tokenloom.indexed.catalogue import catalogue_path, read_catalogue
from tokenloom.indexed.layout import bin_path, idx_path, prefix_of
from tokenloom.indexed.prefixes import prefixes_in
from tokenloom.inputs.patterns import is_pattern, literal_folder, matches
from tokenloom.run.settings import RunSettings, SourceSettings
from tokenloom.storage.addresses import is_remote
from tokenloom.storage.resolve import exists, objects_below

NUM_THREADS = 16
"""Threads that look at pairs at the same time: each costs a few round trips where files are far away."""


def find_pairs(source: SourceSettings, settings: RunSettings) -> list[str]:
    """Returns the prefixes of the pairs of a source: in the order of `data`, of a catalogue in its order, else by name.

    Args:
        source: the source.
        settings: the run, which says where paths begin.

    Raises:
        DatasetNotFoundError: something is not there, or half of it.
        ConfigError: a pair is named twice.
        StorageError: something cannot be listed.
    """
    found: list[str] = []
    for entry in map(settings.located, source.data):
        found += _datasets_of(entry, source.name)
    if any(map(is_remote, found)):
        with ThreadPoolExecutor(min(NUM_THREADS, len(found))) as executor:
            datasets = list(executor.map(_pairs_of, found))
    else:  # starting threads takes longer than looking
        datasets = list(map(_pairs_of, found))
    pairs = [prefix for prefixes in datasets for prefix in prefixes]
    seen: dict[str, str] = {}
    for prefix in pairs:
        if (other := seen.setdefault(place_of(prefix), prefix)) is not prefix:
            also = "" if other == prefix else f", as `{other}` too"
            message = f"source {source.name!r}: expected each pair once, found `{prefix}` twice{also}"
            raise ConfigError(message, hint="a source is read several times by `passes` or `weights` of a stage")
    return pairs


def place_of(prefix: str) -> str:
    """Returns what is equal for two names of one pair: through links, and by relative paths."""
    return prefix if is_remote(prefix) else os.path.realpath(idx_path(prefix))


def _datasets_of(entry: str, source: str) -> list[str]:
    """Returns the prefixes of pairs and catalogues that an entry of `data` stands for."""
    prefix = prefix_of(entry)
    if not is_remote(entry) and os.path.lexists(idx_path(prefix)):  # before a folder of that name, such as of a cache
        return [prefix]
    if entry.endswith("/") if is_remote(entry) else os.path.isdir(entry):
        return prefixes_in(entry.rstrip("/") if is_remote(entry) else entry)
    if not is_pattern(entry):
        return [prefix]
    files = set(_files_matching(prefix))
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


def _files_matching(prefix: str) -> Iterator[str]:
    """Yields the files of pairs and catalogues whose prefix matches a glob."""
    patterns = [path(prefix) for path in (idx_path, bin_path, catalogue_path)]
    if not is_remote(prefix):
        for pattern in patterns:
            yield from glob.glob(pattern, recursive=True)
        return
    for address in objects_below(literal_folder(prefix)):
        if address.endswith((".idx", ".bin", ".catalogue")) and any(matches(address, each) for each in patterns):
            yield address


def _pairs_of(prefix: str) -> Iterable[str]:
    """Returns the pairs that a catalogue names; a pair alone."""
    if exists(bin_path(prefix)) or (catalogue := read_catalogue(prefix)) is None:
        return (prefix,)
    return [part.prefix for part in catalogue.parts]
