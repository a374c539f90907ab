"""Roles of pairs that are joined."""

from __future__ import annotations

import os

import numpy as np
import pytest
from tests.indexed.pairs import write_pair
from tests.indexed.writing.concatenated import CORPUS, part

from tokenloom import IndexedDataset, build_catalogue, write_concatenated
from tokenloom.errors import ConfigError
from tokenloom.indexed.roles import RolesWriter, read_roles, roles_path


def add_roles(prefix, *, tokenizer="ab" * 32):
    """Gives each sequence of n tokens n parts, of kinds by turns."""
    lengths = IndexedDataset(prefix).sequence_lengths.astype(np.int64)
    writer = RolesWriter(prefix, tokenizer_sha256=tokenizer)
    stops = np.concatenate([np.arange(1, length + 1) for length in lengths]).astype(np.int32)
    writer.append(lengths, stops, ((stops - 1) % 3).astype(np.uint8))
    writer.publish()


@pytest.mark.parametrize("write", ["merge", "catalogue"])
def test_roles_are_joined(tmp_path, write):
    prefixes = [write_pair(tmp_path / "a", [[[1, 2]], [[3]]]), write_pair(tmp_path / "b", [[[]], [[4, 5, 6]]])]
    for prefix in prefixes:
        add_roles(prefix)
    if write == "catalogue":
        joined = build_catalogue(prefixes, f"{tmp_path}/all")
    else:
        joined = write_concatenated([part(prefix) for prefix in prefixes], f"{tmp_path}/all")
    roles = read_roles(joined)
    assert [[(stop, kind.value) for _, stop, kind in roles.of(row)] for row in range(4)] == [
        [(1, 0), (2, 1)],
        [(1, 0)],
        [],
        [(1, 0), (2, 1), (3, 2)],
    ]
    assert roles.tokenizer_sha256 == "ab" * 32


def test_roles_of_dropped_documents_are_dropped(tmp_path):
    prefix = write_pair(tmp_path / "a", [[[1, 2], [7]], [[3]], [[4, 5, 6]]])
    add_roles(prefix)
    roles = read_roles(write_concatenated([part(prefix, kept=[True, False, True])], f"{tmp_path}/all"))
    assert [len(roles.of(row)) for row in range(3)] == [2, 1, 3]


def test_roles_of_some_inputs_are_never_dropped_silently(tmp_path, prefix):
    other = write_pair(tmp_path / "b", CORPUS)
    add_roles(prefix)
    with pytest.raises(ConfigError, match=rf"there are roles beside `{prefix}`, but none beside `{other}`"):
        write_concatenated([part(prefix), part(other)], f"{tmp_path}/all")
    add_roles(other, tokenizer="cd" * 32)
    with pytest.raises(ConfigError, match=rf"the roles of `{other}` come from the tokenizer cdcd"):
        write_concatenated([part(prefix), part(other)], f"{tmp_path}/all")
    assert not os.path.exists(f"{tmp_path}/all.idx")


def test_old_roles_do_not_stay_beside_a_new_pair(tmp_path, prefix):
    write_pair(tmp_path / "all", CORPUS)
    add_roles(f"{tmp_path}/all")
    write_concatenated([part(prefix)], f"{tmp_path}/all", overwrite=True)
    assert not os.path.exists(roles_path(f"{tmp_path}/all"))
