"""The roles beside a pair: literal bytes, and files that do not belong."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path

import numpy as np
import pytest
from tests.datasets.conversations import ANSWER, PROMPT, conversation, write_conversations
from tests.indexed.pairs import write_pair

from tokenloom.errors import DatasetFormatError, DatasetNotFoundError
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.roles import PartKind, RolesWriter, read_roles
from tokenloom.indexed.verify import verify_dataset

TALKS = [conversation((PROMPT, [1, 2]), (ANSWER, [3])), conversation(), conversation((ANSWER, [4, 5]))]


@pytest.fixture
def prefix(tmp_path):
    return write_conversations(tmp_path / "chat", TALKS, tokenizer_sha256="11" * 32)


def test_the_columns_are_those_of_the_format(prefix):
    data = Path(f"{prefix}.roles").read_bytes()
    assert data[24:40] == struct.pack("<QQ", 3, 3)
    columns = struct.pack("<4q", 0, 2, 2, 3) + struct.pack("<3i", 2, 3, 2) + bytes([0, 1, 1])
    assert data[64 : 64 + len(columns)] == columns
    table = json.loads(data[64 + len(columns) :])
    assert (table.pop("tokenizer"), len(table.pop("pair")), table) == ("11" * 32, 64, {})


def test_roles_are_read_back(prefix):
    roles = read_roles(IndexedDataset(prefix))
    assert len(roles) == 3
    assert [roles.of(sequence) for sequence in range(3)] == [
        [(0, 2, PartKind.prompt), (2, 3, PartKind.answer)],
        [],
        [(0, 2, PartKind.answer)],
    ]
    assert roles.tokenizer_sha256 == "11" * 32


def test_parts_of_other_counts_are_refused(prefix):
    with open(f"{prefix}.roles", "r+b") as stream:
        stream.seek(64)
        stream.write(struct.pack("<q", 1))
    with pytest.raises(DatasetFormatError, match="expected parts from 0 to 3, found 1 to 3"):
        read_roles(IndexedDataset(prefix))


def test_roles_of_a_pair_that_was_replaced_are_refused(prefix):
    write_pair(f"{prefix}-other", [[[1, 2, 4]], [[]], [[4, 5]]])
    for suffix in (".bin", ".idx"):
        os.replace(f"{prefix}-other{suffix}", f"{prefix}{suffix}")
    with pytest.raises(DatasetFormatError, match=r"chat\.roles` was written for another pair"):
        read_roles(IndexedDataset(prefix))


def test_missing_roles_are_named(tmp_path):
    prefix = write_pair(tmp_path / "pair", [[[1]]])
    with pytest.raises(DatasetNotFoundError, match=r"no file `.*pair\.roles`: nothing says which tokens"):
        read_roles(IndexedDataset(prefix))


def test_the_roles_of_another_number_of_sequences_are_not_written(tmp_path):
    prefix = write_pair(tmp_path / "pair", [[[1]]])
    dataset, writer = IndexedDataset(prefix), RolesWriter(str(prefix))
    writer.append(np.array([1, 1]), np.array([1, 1], dtype=np.int32), np.array([0, 1], dtype=np.uint8))
    with pytest.raises(DatasetFormatError, match="expected the parts of 1 sequences, found those of 2"):
        writer.write(1, dataset.byte_source, dataset.index_source())


@pytest.mark.parametrize(
    ("offset", "value", "text"),
    [
        (72, struct.pack("<q", 3), r"expected offsets that do not fall, found sequence 1 with -1 parts"),
        (96, struct.pack("<i", 0), "expected parts of at least one token, found 0 after 0"),
        (104, struct.pack("<i", 1), "expected parts that cover the 2 tokens of sequence 2, found 1"),
        (110, bytes([9]), "expected kinds up to 2, found 9 for part 2"),
    ],
)
def test_verifying_a_pair_looks_at_every_part(prefix, offset, value, text):
    assert verify_dataset(prefix).ok
    with open(f"{prefix}.roles", "r+b") as stream:
        stream.seek(offset)
        stream.write(value)
    problem, of_columns = verify_dataset(prefix).problems
    assert text in problem
    assert "expected columns with CRC-32 " in of_columns


@pytest.mark.parametrize(
    ("counts", "stops", "kinds", "message"),
    [
        ([1, 1], [2, 2], [0, 1], "expected parts that cover the 3 tokens of sequence 1, found 2"),
        ([1, 0], [2], [0], "expected parts that cover the 3 tokens of sequence 1, found 0"),
        ([1, 2], [2, 3, 3], [0, 1, 1], "expected parts of at least one token, found 3 after 3"),
        ([1, 1], [2, 3], [0, 7], "expected kinds up to 2, found 7 for part 1"),
        ([1], [2], [0], "expected 2 sequences and 1 parts, found 1 sequences, 1 stops and 1 kinds"),
    ],
)
def test_parts_that_are_not_those_of_the_sequences_are_never_written(tmp_path, counts, stops, kinds, message):
    writer = RolesWriter(str(tmp_path / "out"))
    parts = np.array(counts), np.array(stops, dtype=np.int32), np.array(kinds, dtype=np.uint8)
    with pytest.raises(DatasetFormatError, match=rf"cannot write the roles of `.*out`, from sequence 0 on: {message}"):
        writer.append(*parts, lengths=np.array([2, 3], dtype=np.int32))
