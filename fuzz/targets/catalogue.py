"""Catalogues: parsed, and then opened beside the index of a good one."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from tests.indexed.pairs import write_two_pairs

from fuzz.inputs import Scratch
from tokenloom.errors import TokenloomError
from tokenloom.indexed.catalogue import parse_catalogue
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.verify import verify_dataset
from tokenloom.indexed.writing.concatenate import build_catalogue
from tokenloom.storage.addresses import is_remote

_SCRATCH = Scratch()
_PREFIX = str(_SCRATCH.path / "both")
build_catalogue(write_two_pairs(_SCRATCH.path), _PREFIX)
_GOOD = (_SCRATCH.path / "both.catalogue").read_bytes()


def check(data: bytes) -> None:
    catalogue = None
    with suppress(TokenloomError):
        catalogue = parse_catalogue(data, prefix=_PREFIX)
    if catalogue is not None:
        with suppress(TokenloomError):
            again = parse_catalogue(catalogue.pack(_PREFIX), prefix=_PREFIX)
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
