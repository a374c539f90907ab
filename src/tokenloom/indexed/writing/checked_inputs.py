"""Whether datasets can be joined: they are sound, of one dtype, and none of them is the output."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress

import numpy as np

from tokenloom.errors import ConfigError
from tokenloom.indexed.catalogue import catalogue_path
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.layout import bin_path, idx_path, prefix_of
from tokenloom.indexed.verify import check_index, check_sidecars, check_tokens
from tokenloom.storage.addresses import canonical_path, is_remote
from tokenloom.storage.extents import ExtentSource


def check_output(output_prefix: str, prefixes: Sequence[str]) -> None:
    """Checks that there are inputs, and that the output is none of them.

    Raises:
        ConfigError: there are none, or it is.
    """
    if not prefixes:
        message = "expected at least one dataset to merge, got none"
        raise ConfigError(message)
    target = prefix_of(output_prefix)
    owned = _identities(target)
    for prefix in map(prefix_of, prefixes):
        if canonical_path(target) == canonical_path(prefix) or not owned.isdisjoint(_identities(prefix)):
            message = f"the output `{target}` is also an input"
            raise ConfigError(message, hint="choose another output prefix")
    for dataset in (IndexedDataset(prefix) for prefix in dict.fromkeys(prefixes) if owned):
        for section in dataset.sections if dataset.catalogue is not None else ():
            if not owned.isdisjoint(_identities(section.prefix)):
                message = f"the output `{target}` is a pair of the catalogue `{dataset.path_prefix}`, an input"
                raise ConfigError(message, hint="choose another output prefix")


def _identities(prefix: str) -> set[tuple[int, int]]:
    """Returns device and inode of the files of a dataset, however they are named; none of objects."""
    if is_remote(prefix):
        return set()
    found = set()
    for path in (idx_path(prefix), bin_path(prefix), catalogue_path(prefix)):
        with suppress(OSError):
            status = os.stat(path)
            found.add((status.st_dev, status.st_ino))
    return found


def check_inputs(prefixes: Sequence[str], *, multimodal: bool, tokens: bool = False) -> np.dtype[np.generic]:
    """Returns the dtype of all datasets, after checking each of them as `open_checked` does, once.

    Args:
        prefixes: prefixes of the datasets.
        multimodal: whether they hold modes.
        tokens: see `open_checked`.

    Raises:
        ConfigError: their dtypes differ.
        DatasetNotFoundError, DatasetFormatError: of one that is missing or damaged.
    """
    dtypes = {dataset.dtype for dataset in checked_inputs(prefixes, multimodal=multimodal, tokens=tokens)}
    return dtypes.pop()


def checked_inputs(prefixes: Sequence[str], *, multimodal: bool, tokens: bool = False) -> Iterator[IndexedDataset]:
    """Yields each dataset, once, after checking it and that its dtype is that of those before; see `check_inputs`."""
    first, expected = "", None
    for prefix in dict.fromkeys(map(prefix_of, prefixes)):
        dataset = open_checked(prefix, multimodal=multimodal, tokens=tokens)
        if expected is None:
            first, expected = prefix, dataset.dtype
        if dataset.dtype != expected:
            message = f"`{prefix}` holds {dataset.dtype} tokens, but `{first}` holds {expected}"
            raise ConfigError(message, hint="datasets of one dtype only can be merged; tokenize one of them again")
        yield dataset


def open_checked(prefix: str, *, multimodal: bool, tokens: bool = False) -> IndexedDataset:
    """Returns a dataset with a sound index and sound files beside it, every row of them, as its manifest has them.

    Args:
        prefix: prefix of the dataset.
        multimodal: whether it holds modes.
        tokens: whether all tokens are read, too, and compared with the manifest; there may be none.

    Raises:
        DatasetNotFoundError: it is not there.
        DatasetFormatError: something in it is damaged, or its manifest was written for other data.
        StorageError: a pair of a catalogue is missing, or another one took its place.
    """
    dataset = IndexedDataset(prefix, multimodal=multimodal)
    check_index(dataset)
    check_sidecars(dataset)
    if isinstance(dataset.byte_source, ExtentSource):
        dataset.byte_source.check()
    if tokens:
        check_tokens(dataset)
    return dataset
