"""Columns beside a pair: described, opened, verified, and used as roles and origins."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable
from contextlib import suppress

import numpy as np
from tests.datasets.conversations import ANSWER, PROMPT, TEXT, conversation, write_conversations
from tests.indexed.origins import add_origins, all_records

from fuzz.inputs import Bytes, Scratch
from tokenloom.errors import TokenloomError
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.origins import read_origins
from tokenloom.indexed.roles import read_roles
from tokenloom.indexed.verify import verify_dataset

_SCRATCH = Scratch()
_TALKS = [conversation((PROMPT, [1]), (ANSWER, [2, 3])), conversation((TEXT, [4, 5])), conversation((ANSWER, [6]))]
_PREFIX = write_conversations(_SCRATCH.path / "pair", _TALKS)
add_origins(_PREFIX)
_DATASET = IndexedDataset(_PREFIX)
_NAMES = ("pair.columns.json", "pair.roles.npy", "pair.origins.npy")
_GOOD = [(_SCRATCH.path / name).read_bytes() for name in _NAMES]


def check(data: bytes) -> None:
    """Data: which file, whether its checksum is put right, its content."""
    source = Bytes(data)
    number, is_right, content = source.integer(0, 2), source.flag(), source.rest()
    files = [*_GOOD]
    files[number] = content
    if number and is_right:
        record = json.loads(_GOOD[0])
        name = _NAMES[number].split(".")[1]
        record["columns"][name] |= {"num_bytes": len(content), "crc32": f"{zlib.crc32(content):08x}"}
        files[0] = json.dumps(record).encode()
    for name, each in zip(_NAMES, files, strict=True):
        _SCRATCH.write(name, each)
    is_sound = verify_dataset(_PREFIX).ok
    with suppress(TokenloomError):
        _use_origins(is_sound=is_sound)
    with suppress(TokenloomError):
        _use_roles()


def _use_origins(*, is_sound: bool) -> None:
    origins = read_origins(_DATASET)
    assert origins is not None or not is_sound
    if origins is not None:
        try:
            records = all_records(origins)
        except TokenloomError:
            assert not is_sound
            raise
        assert len(records) == _DATASET.num_documents


def _use_roles() -> None:
    roles = read_roles(_DATASET)
    sequences = np.arange(len(_DATASET))
    lengths = _DATASET.sequence_lengths.astype(np.int64)
    for sequence in sequences.tolist():
        with suppress(ValueError):  # kinds that do not exist
            roles.of(sequence)
    counts = np.zeros(len(sequences), dtype=np.int64)
    length = int(lengths.sum()) + 3
    segments = np.column_stack([sequences, lengths - 1, lengths, lengths])
    matrices = [np.zeros((1, length), dtype=dtype) for dtype in (np.int64, np.int64, np.float32, np.int64)]
    for train_on in range(3):
        roles.parts.count_trained(sequences, lengths, train_on, counts)
        text, offsets = np.arange(length, dtype=np.int32), np.array([0, len(sequences)])
        roles.parts.fill(text, 4, segments, offsets, train_on, 0, *matrices, None, None)
        assert int(matrices[2].sum()) == int(counts.sum()), "counted and filled differ"


def seeds() -> Iterable[bytes]:
    for number, content in enumerate(_GOOD):
        yield bytes([number, 1]) + content
