"""What must be the same on all ranks that build datasets together, in words."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Sequence
from functools import cache
from importlib.metadata import version
from typing import Any

import numpy as np

from tokenloom.datasets.base import MegatronDataset
from tokenloom.datasets.config import BlendedMegatronDatasetConfig
from tokenloom.datasets.protocols import pair_of
from tokenloom.errors import ConfigError
from tokenloom.indexed.manifest.contents import index_start_crc32
from tokenloom.order.keys import describe
from tokenloom.storage.addresses import is_remote

_MAY_DIFFER = {
    "allow_ambiguous_pad_tokens",
    "allow_tokenizer_mismatch",
    "defer_npy_index_mmap",
    "fast_cache_load",
    "mmap_bin_files",
    "num_dataset_builder_threads",
    "object_storage",
    "object_storage_cache_path",
    "sequences_per_dataset",
    "split_matrix",  # follows from `split`
    "tokenizer_warnings",
}
"""Settings that say how a rank comes to its samples, not which they are."""

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def describe_settings(
    cls: type[MegatronDataset], sizes: Sequence[int | None], config: BlendedMegatronDatasetConfig
) -> dict[str, str]:
    """Returns the settings that decide which samples there are, by name.

    Settings of a user's own configuration count where the class makes them part of the cache key. Where the data lie
    may differ between hosts: prefixes are told by their last part, and what they hold by `describe_data`.
    """
    ours = {name for base in type(config).__mro__ if base.__module__.startswith("tokenloom.") for name in _names(base)}
    attributes = sorted((ours | set(cls._key_config_attributes())) - _MAY_DIFFER)
    values = {name: getattr(config, name) for name in attributes}
    values["blend"] = None if config.blend is None else _describe_blend(config.blend)
    if config.blend_per_split is not None:
        blends = config.blend_per_split
        values["blend_per_split"] = [None if blend is None else _describe_blend(blend) for blend in blends]
    values["path_to_cache"] = "beside the data" if config.path_to_cache is None else "a folder"
    described = {name: _in_words(value) for name, value in values.items()}
    return described | {"class": cls.__name__, "sizes": str(list(sizes)), "version of tokenloom": _version()}


def describe_data(low_level: Any) -> str:
    """Returns what of a low-level dataset is in memory once it is open, and tells it from others."""
    pair = pair_of(low_level)
    if pair is None:
        return type(low_level).__name__
    header = pair.index.header
    return (
        f"{header.num_sequences} sequences and {header.num_boundaries} boundaries of {_name_of(header.dtype)}, "
        f"{pair.byte_source.num_bytes} bytes, lengths {index_start_crc32(header, pair.index.arrays.lengths):08x}"
    )


def name_of_data(prefix: str | None) -> str:
    """Returns how data are called on all hosts, wherever they lie."""
    if prefix is None:
        return "made-up data"
    return prefix if is_remote(prefix) else os.path.basename(prefix)


def _describe_blend(blend: Any) -> list[str]:
    prefixes, weights = blend  # as settings hold it
    names = [name_of_data(prefix) for prefix in prefixes]
    return names if weights is None else [f"{name} x {weight!r}" for name, weight in zip(names, weights, strict=True)]


def _names(base: type) -> list[str]:
    return [field.name for field in dataclasses.fields(base)] if dataclasses.is_dataclass(base) else []


def _in_words(value: Any) -> str:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = dataclasses.asdict(value)
    try:
        return " ".join(describe({"": value})[0][len('{\n    "": ') : -2].split())
    except ConfigError:
        return _ADDRESS.sub("", repr(value))


@cache
def _name_of(dtype: np.dtype[Any]) -> str:
    return dtype.name  # worked out each time, and asked for thousands of prefixes


@cache
def _version() -> str:
    return version("tokenloom")
