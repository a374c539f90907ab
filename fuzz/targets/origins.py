"""Origins beside a pair: read, found forwards and backwards, chosen, and written again as they were."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from contextlib import suppress

import numpy as np
from tests.indexed.origins import add_origins, all_records, files_of, records_of, runs_of
from tests.indexed.pairs import write_pair

from fuzz.inputs import Bytes, Scratch
from tokenloom.errors import TokenloomError
from tokenloom.indexed.origins import Origins, Runs, joined_origins, read_origins
from tokenloom.indexed.sidecars import HEADER_BYTES

_SCRATCH = Scratch()
_RUNS = runs_of([(number % 3 - 1, 1 + 7 * number % 400, 1 + number % 2) for number in range(40)])
_NUM_DOCUMENTS = int(_RUNS["num_documents"].sum())
_PREFIX = write_pair(_SCRATCH.path / "pair", [[[1]]] * _NUM_DOCUMENTS)
_CRC = slice(12, 16)


def _written(runs: Runs) -> bytes:
    add_origins(_PREFIX, Origins.from_runs(files_of("a.jsonl", "b.jsonl"), [runs]))
    return (_SCRATCH.path / "pair.origins").read_bytes()


_GOOD = _written(_RUNS)


def check(data: bytes) -> None:
    """Data: whether checksums are put right, the file."""
    source = Bytes(data)
    is_right = source.flag()
    content = bytearray(source.rest())
    if is_right:
        _put_right(content)
    _SCRATCH.write("pair.origins", bytes(content))
    is_sound = False
    with suppress(TokenloomError):
        is_sound = read_origins(_PREFIX, is_checked=True) is not None
    with suppress(TokenloomError):
        origins = read_origins(_PREFIX)
        assert origins is not None
        _use(origins, is_sound=is_sound)


def _put_right(content: bytearray) -> None:
    """Gives header, runs and table the checksums of what is there, as far as it can be taken apart."""
    if len(content) < HEADER_BYTES:
        return
    (table_bytes,) = struct.unpack_from("<Q", content, 40)
    if (table_at := len(content) - table_bytes) < HEADER_BYTES:
        return
    content[20:24] = struct.pack("<I", zlib.crc32(content[HEADER_BYTES:table_at]))
    content[_CRC] = bytes(4)
    content[_CRC] = struct.pack("<I", zlib.crc32(content[:HEADER_BYTES] + content[table_at:]))


def _use(origins: Origins, *, is_sound: bool) -> None:
    asked = np.arange(0, origins.num_documents, 3)
    try:
        files, records = origins.locate(asked)
    except TokenloomError:
        assert not is_sound
        raise
    assert is_sound or len(asked) < origins.num_documents
    assert ((files >= 0) == (records >= 1)).all()
    for document, file, record in zip(asked[:20].tolist(), files.tolist(), records.tolist(), strict=False):
        if file >= 0:
            found = origins.documents_of(file, record)
            assert not is_sound or document in found
            assert not is_sound or (np.diff(found) > 0).all()
    expected = [record for runs in origins.pieces() for record in records_of(runs)]
    assert len(expected) == origins.num_documents
    again = Origins.from_runs(origins.files, origins.pieces())
    assert all_records(again) == expected, "packed and unpacked, they are others"
    kept = asked % 2 == 0
    mask = np.isin(np.arange(origins.num_documents), asked[kept])
    chosen = Origins.from_runs(*joined_origins([(again, range(origins.num_documents), mask)]))
    assert all_records(chosen) == [expected[document] for document in asked[kept]]


def seeds() -> Iterable[bytes]:
    yield b"\0" + _GOOD
    yield b"\1" + _GOOD
    yield b"\1" + _written(runs_of([(0, 1, _NUM_DOCUMENTS)]))
    yield b"\1" + _written(runs_of([(0, 2, 5), (1, 1 << 40, _NUM_DOCUMENTS - 5)]))
