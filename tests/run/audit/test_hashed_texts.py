"""Documents that are found by their text, with the hashes beside their pairs."""

from __future__ import annotations

import os

import pytest
from tests.support import write_corpus

from tokenloom.errors import ConfigError
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.document_hashes import write_document_hashes
from tokenloom.indexed.manifest.contents import index_start_crc32
from tokenloom.inputs.parsing import Texts
from tokenloom.preprocess.selection import hash_documents
from tokenloom.run.audit.hashed_texts import find_whole_texts
from tokenloom.run.locking import lock_run


def hash_pair(prefix: str, texts: list[str]) -> None:
    """Writes the hashes of the texts of a pair beside it."""
    pair = IndexedDataset(prefix)
    start = index_start_crc32(pair.index.header, pair.index.arrays.lengths)
    hashes = hash_documents([Texts(texts=texts)], len(texts))
    write_document_hashes(prefix, [hashes], index_start_crc32=start)[0].publish()


@pytest.fixture
def lock(tmp_path):
    for name, count in (("web0", 3), ("web1", 2), ("code", 2)):
        write_corpus(tmp_path / name, [[1, 2, 3]] * count)
    (tmp_path / "run.toml").write_text(
        'order = 1\nseed = 1\n[sources]\nweb = "web*"\ncode = "code"\n[[stages]]\nsequence_length = 2\nsamples = 9\n'
        "weights = { web = 1, code = 1 }\n"
    )
    return lock_run(tmp_path / "run.toml").lock


def test_texts_are_found_in_all_sources(lock, tmp_path):
    hash_pair(str(tmp_path / "web0"), ["a", "b", "a"])
    hash_pair(str(tmp_path / "web1"), ["b\n", "a"])
    hash_pair(str(tmp_path / "code"), ["x", "a"])
    assert find_whole_texts(lock, ["a"]) == ([(0, 0), (0, 2), (0, 4), (1, 1)], [])
    assert find_whole_texts(lock, ["b", "b\n", "b"]) == ([(0, 1), (0, 3)], [])
    assert find_whole_texts(lock, ["nothing of all"]) == ([], [])


def test_pairs_without_hashes_are_told(lock, tmp_path):
    with pytest.raises(ConfigError, match=r"(?s)found none among 3.*--document-hashes"):
        find_whole_texts(lock, ["a"])
    hash_pair(str(tmp_path / "web1"), ["c", "d"])
    found, missing = find_whole_texts(lock, ["d"])
    assert found == [(0, 4)]
    assert [os.path.basename(name) for name in missing] == ["web0", "code"]
