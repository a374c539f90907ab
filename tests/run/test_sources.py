"""Sources are locked as they are, and what was locked stays what and where it was."""

from __future__ import annotations

import dataclasses
import os
import shutil

import numpy as np
import pytest
from tests.datasets.conversations import ANSWER, PROMPT, conversation, write_conversations
from tests.indexed.manifest.manifests import SHA256, write_recorded
from tests.indexed.pairs import write_pair
from tests.run.data import settings_of, write_source, write_with_manifest
from tests.run.locks import make_lock
from tests.support import StandInTokenizer

from tokenloom import IndexedDataset
from tokenloom.errors import ConfigError, DatasetFormatError, TokenizerError
from tokenloom.indexed.layout import column_path
from tokenloom.indexed.manifests import index_start_crc32, read_manifest
from tokenloom.indexed.writing.builder import IndexedDatasetBuilder
from tokenloom.order.walk_order import source_key
from tokenloom.run.held_out import held_numbers
from tokenloom.run.lock import BLOCK_DOCUMENTS, LockedPair
from tokenloom.run.sources import lock_pair, lock_sources


def locked(folder, *sources, old=None, at=0, **options):
    return lock_sources(settings_of(folder, *sources), old=old, at=at, **options)


def prefixes_of(source):
    return [os.path.basename(pair.prefix) for pair in source.pairs]


def test_a_pair_without_manifest(tmp_path):
    prefix = write_source(tmp_path / "web", 3, 0, 4)
    index = IndexedDataset(prefix).index
    assert lock_pair(prefix) == LockedPair(
        prefix=prefix,
        num_documents=3,
        num_tokens=7,
        dtype="uint16",
        idx_bytes=34 + 3 * 12 + 4 * 8,
        index_start_crc32=index_start_crc32(index.header, index.sequence_lengths),
    )


def test_a_pair_with_manifest(tmp_path):
    prefix = write_with_manifest(tmp_path / "web", 3, 4)
    facts, pair = read_manifest(prefix).pair, lock_pair(prefix)
    assert (pair.tokens_crc32, pair.index_crc32, pair.fingerprint) == (facts.tokens.crc32, facts.index.crc32, SHA256)
    assert pair.index_start_crc32 == facts.index_start_crc32


def test_what_a_run_cannot_read(tmp_path):
    write_source(tmp_path / "float", 3, dtype=np.float32)
    with pytest.raises(ConfigError, match=r"`.*float\.bin`: expected tokens of an integer dtype, found float32"):
        lock_pair(f"{tmp_path}/float")
    write_pair(tmp_path / "images", [[[1], [2]]], multimodal=True)
    with pytest.raises(ConfigError, match=r"`.*images\.idx`: expected text alone, found a multimodal pair"):
        lock_pair(f"{tmp_path}/images")


def test_a_source_without_tokens(tmp_path):
    write_source(tmp_path / "a", 0, 0)
    write_source(tmp_path / "b")
    with pytest.raises(ConfigError, match=r"source 'web': expected tokens, found none in 2 pairs"):
        locked(tmp_path, 'web = ["a", "b"]')


def test_growth_keeps_numbers_and_places(tmp_path):
    for name in "bd":
        write_source(tmp_path / "web" / name, 3)
    write_source(tmp_path / "code", 3)
    sources = 'web = { data = "web/*", holdout = "20%" }', 'code = "code"'
    old = make_lock(*locked(tmp_path, *sources))
    for name in "ac":
        write_source(tmp_path / "web" / name, 3)
    write_source(tmp_path / "books", 5)
    new = locked(tmp_path, 'books = "books"', sources[0], old=old, at=90)
    assert [(source.name, prefixes_of(source)) for source in new] == [
        ("web", ["b", "d", "a", "c"]),
        ("code", ["code"]),
        ("books", ["books"]),
    ]
    assert [pair.since for pair in new[0].pairs] == [0, 0, 90, 90]
    assert new[0].pairs[:2] == old.sources[0].pairs
    assert new[1] == old.sources[1]
    assert new[2].pairs[0].since == 90


def test_a_source_that_is_not_named_any_more_is_not_looked_at(tmp_path):
    write_source(tmp_path / "web", 3)
    write_source(tmp_path / "code", 3)
    old = make_lock(*locked(tmp_path, 'web = "web"', 'code = "code"'))
    os.unlink(tmp_path / "web.bin")
    assert locked(tmp_path, 'code = { data = "code", max_passes = 2 }', old=old, at=5) == (
        old.sources[0],
        dataclasses.replace(old.sources[1], max_passes=2),
    )
    with pytest.raises(ConfigError, match=r"in one source, found it in 'code' and 'program'"):
        locked(tmp_path, 'program = "code"', old=old, at=5)


def test_a_pair_that_is_gone(tmp_path):
    for name in "ab":
        write_source(tmp_path / name, 3)
    old = make_lock(*locked(tmp_path, 'web = ["a", "b"]'))
    with pytest.raises(ConfigError, match=r"source 'web': expected the pair `.*b`, as the lock has, found it nowhere"):
        locked(tmp_path, 'web = ["a"]', old=old, at=5)


def test_pairs_that_moved_are_found_by_name_and_content(tmp_path):
    for number, name in enumerate("ab"):
        write_source(tmp_path / "old" / name, 3 + number)
    old = make_lock(*locked(tmp_path, 'web = { data = "old/*", holdout = "20%" }'))
    shutil.move(tmp_path / "old", tmp_path / "new")
    write_source(tmp_path / "new" / "c", 3)
    (new,) = locked(tmp_path, 'web = { data = "new/*", holdout = "20%" }', old=old, at=5)
    assert [os.path.relpath(pair.prefix, tmp_path) for pair in new.pairs] == ["new/a", "new/b", "new/c"]
    assert [pair.since for pair in new.pairs] == [0, 0, 5]
    write_source(tmp_path / "new" / "a", 7)
    with pytest.raises(ConfigError, match=r"expected the pair `.*old/a`, as the lock has, found it nowhere in `data`"):
        locked(tmp_path, 'web = { data = "new/*", holdout = "20%" }', old=old, at=5)


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ((3, 4, 5), r"`.*web\.idx` changed after it was locked: expected documents: 2, found 3"),
        ((4, 3), r"`.*web\.idx` changed after it was locked: expected an index whose start has CRC-32 ........, found"),
    ],
)
def test_a_pair_that_was_rewritten(tmp_path, lengths, message):
    write_source(tmp_path / "web", 3, 4)
    old = make_lock(*locked(tmp_path, 'web = "web"'))
    os.unlink(tmp_path / "web.bin")
    os.unlink(tmp_path / "web.idx")
    write_source(tmp_path / "web", *lengths)
    with pytest.raises(DatasetFormatError, match=message):
        locked(tmp_path, 'web = "web"', old=old, at=5)


def test_a_pair_that_was_rewritten_with_documents_as_long(tmp_path):
    prefix = write_with_manifest(tmp_path / "web", 3, 4)
    old = make_lock(*locked(tmp_path, 'web = "web"'))
    for name in os.listdir(tmp_path):
        os.unlink(tmp_path / name)
    write_with_manifest(prefix, 3, 4, sha256=SHA256)
    assert locked(tmp_path, 'web = "web"', old=old, at=5) == old.sources
    crc32 = old.sources[0].pairs[0].tokens_crc32 ^ 1
    pair = dataclasses.replace(old.sources[0].pairs[0], tokens_crc32=crc32)
    old = make_lock(dataclasses.replace(old.sources[0], pairs=(pair,)))
    with pytest.raises(
        DatasetFormatError, match=rf"`.*web\.bin` changed .*: expected tokens with CRC-32 {crc32:08x}, f"
    ):
        locked(tmp_path, 'web = "web"', old=old, at=5)


def test_pairs_of_two_tokenizers(tmp_path):
    write_with_manifest(tmp_path / "a", 3)
    write_with_manifest(tmp_path / "b", 3, sha256="cd" * 32)
    write_source(tmp_path / "c", 3)
    with pytest.raises(TokenizerError, match=r"expected one tokenizer for all data, found those .* `.*a` and .* `.*b`"):
        locked(tmp_path, 'web = "a"', 'code = ["c", "b"]')


def test_the_tokenizer_of_the_run(tmp_path):
    write_with_manifest(tmp_path / "a", 3)
    write_source(tmp_path / "b", 3)
    tokenizer = StandInTokenizer(pad=1)
    tokenizer.sha256 = SHA256
    locked(tmp_path, 'web = ["a", "b"]', tokenizer=tokenizer)
    tokenizer.sha256 = "cd" * 32
    with pytest.raises(TokenizerError, match=r"`.*a`: expected the tokenizer that made the data, word-level .*, found"):
        locked(tmp_path, 'web = ["a", "b"]', tokenizer=tokenizer)


def write_blocks(prefix, num_documents):
    with IndexedDatasetBuilder(f"{prefix}.bin", dtype=np.uint16) as builder:
        for number in range(num_documents):
            builder.add_item(np.full(number % 3, 5, dtype=np.uint16))
            builder.end_document()
        builder.finalize(f"{prefix}.idx")


def test_a_holdout_of_blocks_stays_one(tmp_path):
    write_blocks(tmp_path / "a", 64 * BLOCK_DOCUMENTS + 1)
    source = 'web = { data = "*", holdout = "50%" }'
    old = make_lock(*locked(tmp_path, source))
    (pair,) = old.sources[0].pairs
    assert (pair.held_blocks, pair.held_documents) == (33, 0)
    lengths = np.arange(64 * BLOCK_DOCUMENTS + 1) % 3
    blocks = held_numbers(pair, key=source_key(7, "web"), number=0)
    assert pair.held_tokens == sum(
        lengths[block * BLOCK_DOCUMENTS : (block + 1) * BLOCK_DOCUMENTS].sum() for block in blocks
    )
    write_source(tmp_path / "b", *[2] * (BLOCK_DOCUMENTS + 1))
    (new,) = locked(tmp_path, source, old=old, at=9)
    assert new.pairs[0] == pair
    assert (new.pairs[1].held_blocks, new.pairs[1].held_documents) == (1, 0)
    assert new.pairs[1].held_tokens in (2, 2048)


def test_a_holdout_is_not_changed(tmp_path):
    write_source(tmp_path / "a", *[1] * 10)
    old = make_lock(*locked(tmp_path, 'web = { data = "a", holdout = "20%" }'))
    for share, found in (('holdout = "30%"', 3), ("max_passes = 1", 0)):
        message = f"source 'web': expected a `holdout` of 2 documents of `.*a`, as the lock has, found one of {found}"
        with pytest.raises(ConfigError, match=message):
            locked(tmp_path, f'web = {{ data = "a", {share} }}', old=old, at=5)
    assert locked(tmp_path, 'web = { data = "a", holdout = "30%" }')[0].pairs[0].held_documents == 3


def test_pairs_of_two_dtypes_in_one_source(tmp_path):
    write_source(tmp_path / "a", 3, dtype=np.uint16)
    write_source(tmp_path / "b", 3, dtype=np.int32)
    with pytest.raises(ConfigError, match=r"source 'web': expected tokens of one dtype, found uint16 in .* and int32"):
        locked(tmp_path, 'web = ["a", "b"]')
    assert len(locked(tmp_path, 'web = "a"', 'code = "b"')) == 2


@pytest.mark.parametrize("has_manifest", [True, False])
def test_sources_of_two_kinds_are_refused(tmp_path, has_manifest):
    write_source(tmp_path / "web", 30)
    roles = write_conversations(tmp_path / "chat", [conversation((PROMPT, [1, 2]), (ANSWER, [3, 4]))])
    if has_manifest:
        os.unlink(column_path(roles, "roles"))
        write_recorded(roles, [[[1, 2]]], options={"schema": "messages"})
    sources = 'web = "web"', 'chat = "chat"'
    with pytest.raises(
        ConfigError, match=r"chat`: expected whole documents, found conversations\nhint: all samples of"
    ):
        locked(tmp_path, *sources)
    assert len(locked(tmp_path, *sources, allow_data_mismatch=True)) == 2
    settings = settings_of(tmp_path, *sources, dataset='"varlen"')
    assert len(lock_sources(settings, old=None, at=0)) == 2
