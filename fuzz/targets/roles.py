"""Roles beside a pair: read, verified, counted, and filled into rows."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from contextlib import suppress

import numpy as np
from tests.indexed.pairs import write_pair

from fuzz.inputs import Bytes, Scratch
from tokenloom.errors import TokenloomError
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.roles import RolesWriter, SequenceRoles, read_roles, role_problems
from tokenloom.indexed.sidecars import HEADER_BYTES

_SCRATCH = Scratch()
_PREFIX = write_pair(_SCRATCH.path / "pair", [[[1, 2, 3]], [[4, 5]], [[6, 7, 8, 9]]])
_DATASET = IndexedDataset(_PREFIX)
_LENGTHS = _DATASET.sequence_lengths.astype(np.int64)


def _written() -> bytes:
    writer = RolesWriter(_PREFIX, tokenizer_sha256="ab" * 32)
    stops, kinds = np.array([1, 3, 2, 1, 3, 4], dtype=np.int32), np.array([0, 1, 2, 0, 1, 0], dtype=np.uint8)
    writer.append(np.array([2, 1, 3]), stops, kinds)
    pair = IndexedDataset(_PREFIX)
    writer.write(len(pair), pair.byte_source, pair.index_source())[0].publish()
    return (_SCRATCH.path / "pair.roles").read_bytes()


_GOOD = _written()
(_TABLE_BYTES,) = struct.unpack_from("<Q", _GOOD, 40)


def check(data: bytes) -> None:
    """Data: whether checksums and the hash of the pair are put right, the file."""
    source = Bytes(data)
    is_right = source.flag()
    content = bytearray(source.rest())
    if is_right and len(content) >= HEADER_BYTES:
        columns = content[HEADER_BYTES : len(content) - _TABLE_BYTES]
        content = bytearray(content[:HEADER_BYTES] + columns + _GOOD[-_TABLE_BYTES:])
        content[16:20] = _GOOD[16:20]
        content[20:24] = struct.pack("<I", zlib.crc32(columns))
        content[40:48] = struct.pack("<Q", _TABLE_BYTES)
        content[12:16] = bytes(4)
        content[12:16] = struct.pack("<I", zlib.crc32(content[:HEADER_BYTES] + _GOOD[-_TABLE_BYTES:]))
    _SCRATCH.write("pair.roles", bytes(content))
    problems: list[str] | None = None
    with suppress(TokenloomError):
        problems = list(role_problems(_DATASET))
    with suppress(TokenloomError):
        roles = read_roles(_DATASET)
        _use(roles, are_sound=problems == [])


def _use(roles: SequenceRoles, *, are_sound: bool) -> None:
    kinds = ValueError if not are_sound else ()  # kinds that do not exist
    for sequence in range(len(roles)):
        with suppress(*([kinds] if kinds else [])):
            parts = roles.of(sequence)
            assert not are_sound or parts[-1][1] == _LENGTHS[sequence]
    sequences = np.arange(len(roles))
    counts = np.zeros(len(roles), dtype=np.int64)
    length = int(_LENGTHS.sum()) + 3
    segments = np.column_stack([sequences, _LENGTHS - 1, _LENGTHS, _LENGTHS])
    matrices = [np.zeros((1, length), dtype=dtype) for dtype in (np.int64, np.int64, np.float32, np.int64)]
    for train_on in range(3):
        refused = () if are_sound else (IndexError,)
        with suppress(*refused):
            roles.parts.count_trained(sequences, _LENGTHS, train_on, counts)
            roles.parts.fill(
                np.arange(length, dtype=np.int32),
                4,
                segments,
                np.array([0, len(roles)]),
                train_on,
                0,
                *matrices,
                np.zeros((1, length + 1), dtype=np.int32),
                np.zeros(1, dtype=np.int32),
            )
            assert int(matrices[2].sum()) == int(counts.sum()), "counted and filled differ"


def seeds() -> Iterable[bytes]:
    yield b"\0" + _GOOD
    yield b"\1" + _GOOD
