"""Cached index arrays: a damaged file is refused, or samples are read from it as from the one that was built."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from contextlib import suppress

import numpy as np
from tests.support import make_dataset, write_corpus

from fuzz.inputs import Bytes, Scratch
from tokenloom.errors import IndexCacheError, TokenloomError
from tokenloom.order.cache import ArraySpec, IndexCache

_SCRATCH = Scratch()
_NAMES = ("document_index.npy", "sample_index.npy", "shuffle_index.npy", "identity.json")
_PREFIX = write_corpus(_SCRATCH.path / "corpus", [[1, 2, 3, 4, 5], [], [6, 7, 8, 9], [10, 11, 12]])
_SETTINGS = {"num_samples": 5, "path_to_cache": str(_SCRATCH.path / "cache")}
_DATASET = make_dataset(_PREFIX, **_SETTINGS)
_SAMPLES = [_DATASET.sample(k)["tokens"].tolist() for k in range(len(_DATASET))]
_FILES = {name: next((_SCRATCH.path / "cache").glob(f"*-{name}")) for name in _NAMES}
_GOOD = {name: path.read_bytes() for name, path in _FILES.items()}


def check(data: bytes) -> None:
    """Data: which file it is, whether the record of hashes stays, the file."""
    source = Bytes(data)
    name = _NAMES[source.integer(0, 255) % len(_NAMES)]
    is_recorded = source.flag()
    content = source.rest()
    _check_array(content)
    for other, path in _FILES.items():
        path.unlink(missing_ok=True)
        if other == name:
            path.write_bytes(content)
        elif other != "identity.json" or is_recorded:
            path.write_bytes(_GOOD[other])
    with suppress(TokenloomError):
        dataset = make_dataset(_PREFIX, **_SETTINGS, defer_npy_index_mmap=True)
        for k in range(len(dataset)):
            with suppress(TokenloomError):
                found = dataset.sample(k)["tokens"].tolist()
                assert found == _SAMPLES[k] or not is_recorded or name == "identity.json", "another sample than built"


def _check_array(content: bytes) -> None:
    cache = IndexCache(str(_SCRATCH.path), "alone")
    _SCRATCH.write("alone-any.npy", content)
    for spec in (ArraySpec(np.dtype(np.int32), (None, 2)), ArraySpec(np.dtype(np.int64), (None,))):
        with suppress(IndexCacheError):
            array = cache.load({"any": spec}, lambda arrays: None)["any"]
            assert array.dtype == spec.dtype
            assert not array.flags.writeable
            array.sum()


def seeds() -> Iterable[bytes]:
    with warnings.catch_warnings():
        for number, name in enumerate(_NAMES):
            yield bytes([number, 0]) + _GOOD[name]
            yield bytes([number, 1]) + _GOOD[name]
