from pathlib import Path

import numpy as np
import pytest
from tests.datasets.conversations import ANSWER, PROMPT, conversation, write_conversations
from tests.indexed.pairs import write_pair

from tokenloom.errors import DatasetFormatError, DatasetNotFoundError
from tokenloom.indexed.columns import add_column, read_columns
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.roles import PartKind, read_roles

TALKS = [conversation((PROMPT, [1, 2]), (ANSWER, [3])), conversation(), conversation((ANSWER, [4, 5]), (ANSWER, [6]))]


@pytest.fixture
def prefix(tmp_path):
    return write_conversations(tmp_path / "chat", TALKS, tokenizer_sha256="11" * 32)


def test_the_bytes_are_those_of_the_format(prefix):
    assert Path(f"{prefix}.roles.npy").read_bytes()[128:] == bytes([128, 0, 129, 129, 1, 129])
    facts = read_columns(IndexedDataset(prefix))["roles"]
    assert (facts.kind, facts.dtype, facts.about) == ("token", "uint8", {"tokenizer": "11" * 32})


def test_roles_are_read_back(prefix):
    roles = read_roles(IndexedDataset(prefix))
    assert [roles.of(sequence) for sequence in range(3)] == [
        [(0, 2, PartKind.prompt), (2, 3, PartKind.answer)],
        [],
        [(0, 2, PartKind.answer), (2, 3, PartKind.answer)],
    ]


def test_missing_roles_are_named(tmp_path):
    prefix = write_pair(tmp_path / "pair", [[[1]]])
    with pytest.raises(DatasetNotFoundError, match=r"no file `.*pair\.roles\.npy` with the roles of the tokens"):
        read_roles(IndexedDataset(prefix))


def test_another_column_of_that_name_is_refused(tmp_path):
    prefix = write_pair(tmp_path / "pair", [[[1]]])
    add_column(prefix, "roles", [np.zeros(1)], dtype="int16")
    with pytest.raises(DatasetFormatError, match=r"expected one byte per token, found int16\[1\] per token"):
        read_roles(IndexedDataset(prefix))
