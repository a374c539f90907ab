"""Expands folders, globs and lists into dataset prefixes, and counts the sequences of many datasets."""

from __future__ import annotations

import fnmatch
import glob
import os
from collections.abc import Iterable, Sequence

from tokenloom.errors import ConfigError, DatasetNotFoundError
from tokenloom.indexed.catalogue import catalogue_path
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.layout import HEADER_BYTES, bin_path, idx_path, parse_header, prefix_of
from tokenloom.storage.addresses import is_remote
from tokenloom.storage.atomic import storage_errors
from tokenloom.storage.resolve import exists, names_in, read_start
from tokenloom.storage.secrets import admit


def prefixes_in(folder: str) -> list[str]:
    """Returns the prefixes of all datasets in a folder, sorted; `DatasetNotFoundError` if a pair is incomplete."""
    names = {name for name in names_in(folder) if not name.startswith(".")}
    prefixes = sorted({prefix_of(name) for name in names if name.endswith((".bin", ".idx"))})
    for prefix in prefixes:
        tokens = catalogue_path(prefix) if catalogue_path(prefix) in names else bin_path(prefix)
        if missing := [name for name in (tokens, idx_path(prefix)) if name not in names]:
            message = f"`{folder}`: the pair `{prefix}` is incomplete, `{missing[0]}` is missing"
            raise DatasetNotFoundError(message, hint="write the pair again, or remove its other file")
    if not prefixes:
        raise DatasetNotFoundError(f"`{folder}`: contains no .bin/.idx pair")
    check_mixture(f"`{folder}`", prefixes, [name for name in prefixes if bin_path(name) not in names])
    return [os.path.join(folder, prefix) for prefix in prefixes]


def prefixes_matching(pattern: str) -> list[str]:
    """Returns the sorted prefixes that match a glob pattern; in an address, wildcards work only after the last `/`."""
    wanted = idx_path(prefix_of(pattern))
    if is_remote(pattern):
        folder, _, name = wanted.rpartition("/")
        found = [f"{folder}/{prefix_of(name)}" for name in fnmatch.filter(names_in(folder), name)]
    else:
        found = sorted(prefix_of(path) for path in glob.glob(wanted, recursive=True))
    without_tokens = [prefix for prefix in found if not exists(bin_path(prefix))]
    catalogues = [prefix for prefix in without_tokens if exists(catalogue_path(prefix))]
    check_mixture(repr(pattern), found, catalogues)
    return found


def check_mixture(where: str, prefixes: Sequence[str], catalogues: Sequence[str]) -> None:
    """Raises a `ConfigError` for pairs mixed with catalogues: a catalogue may contain the documents of these pairs."""
    if catalogues and len(catalogues) < len(prefixes):
        message = f"{where}: matches pairs and the catalogue `{catalogues[0]}`, which may contain the same documents"
        raise ConfigError(message, hint="pass either the catalogue or the pairs")


def expand_prefixes(entries: Iterable[str]) -> list[str]:
    """Expands folders, prefixes and globs of prefixes into a list of prefixes, in the order of the entries."""
    found: list[str] = []
    for entry in map(admit, entries):
        prefix = prefix_of(entry)
        if (is_remote(entry) and entry.endswith("/")) or (not is_remote(entry) and os.path.isdir(entry)):
            found += [prefix] if IndexedDataset.exists(prefix) else prefixes_in(entry)
        elif glob.has_magic(entry) and (is_remote(entry) or not IndexedDataset.exists(prefix)):
            matching = prefixes_matching(entry)
            if not matching:
                message = f"{entry!r}: matches no pair"
                raise DatasetNotFoundError(message, hint="a pair is two files, PREFIX.bin and PREFIX.idx")
            found += matching
        else:
            found.append(prefix)
    return found


def prefixes_listed(path: str) -> list[str]:
    """Returns the prefixes in a text file, one per line; skips empty lines and lines that start with `#`."""
    with storage_errors("read", path), open(path, encoding="utf-8") as lines:
        return [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]


def sequence_counts(prefixes: Sequence[str]) -> dict[str, list[int]]:
    """Returns `sequences_per_dataset`: {prefix: [sequence count, document boundary count]}. Reads 34 bytes per pair."""
    counts = {}
    for prefix in map(prefix_of, prefixes):
        path = idx_path(prefix)
        header = parse_header(read_start(path, HEADER_BYTES), path=path)
        counts[prefix] = [header.num_sequences, header.num_boundaries]
    return counts
