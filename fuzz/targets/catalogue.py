"""Catalogues: parsed, and then opened beside the index of a good one."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

import numpy as np
from tests.indexed.pairs import write_two_pairs

from fuzz.inputs import Scratch
from tokenloom.errors import TokenloomError
from tokenloom.indexed.catalogue import Catalogue, read_catalogue
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.verify import verify_dataset
from tokenloom.indexed.writing.concatenate import build_catalogue
from tokenloom.storage.addresses import is_remote

_SCRATCH = Scratch()
_PREFIX = str(_SCRATCH.path / "both")
build_catalogue(write_two_pairs(_SCRATCH.path), _PREFIX)
_GOOD = (_SCRATCH.path / "both.catalogue").read_bytes()


def _read(data: bytes) -> Catalogue:
    found = read_catalogue(_PREFIX, read=lambda _: np.frombuffer(data, dtype=np.uint8))
    assert found is not None
    return found


def check(data: bytes) -> None:
    catalogue = None
    with suppress(TokenloomError):
        catalogue = _read(data)
    if catalogue is not None:
        with suppress(TokenloomError):
            again = _read(catalogue.pack(_PREFIX))
            assert again.identity() == catalogue.identity(), "written and read, it is another"
        # Other files of this machine, and other machines, are none of a fuzzer's business.
        if any(is_remote(part.prefix) or not _is_ours(part.prefix) for part in catalogue.parts):
            return
    _SCRATCH.write("both.catalogue", data)
    for mmap in (True, False):
        with suppress(TokenloomError):
            dataset = IndexedDataset(_PREFIX, mmap=mmap)
            for row in range(min(len(dataset), 8)):
                with suppress(TokenloomError, IndexError):
                    dataset[row].tobytes()
            with suppress(TokenloomError, IndexError):
                dataset[:8]
    with suppress(TokenloomError):
        verify_dataset(_PREFIX)


def _is_ours(prefix: str) -> bool:
    inside = prefix.startswith(f"{_SCRATCH.path}/")
    return inside and ".." not in prefix


def seeds() -> Iterable[bytes]:
    yield _GOOD
    yield b'{"format": "tokenloom catalogue", "version": 1, "alignment": 65536, "parts": []}'
