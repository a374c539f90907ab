import dataclasses
import itertools
import os
import pickle
import shutil
import zlib
from pathlib import Path

import numpy as np
import pytest
from tests.faults import dies_at
from tests.indexed.manifest.manifests import make_manifest, make_tokenizer_identity, write_manifest, write_recorded
from tests.indexed.pairs import read_pair, write_pair
from tests.support import contents

from tokenloom.errors import ConfigError, DatasetFormatError
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.manifests import DocumentLedger, manifest_head_of, manifest_of, manifest_path, read_manifest
from tokenloom.indexed.verify import verify_dataset
from tokenloom.indexed.writing.builder import IndexedDatasetBuilder

CORPUS = [[[10, 11, 12], [13]], [[14]]]
OTHER = [[[20, 21, 22], [23]], [[24]]]
"""The same lengths as `CORPUS`, so that only the order of writing keeps the manifests apart."""

OTHER_TOKENIZER = make_tokenizer_identity(sha256="cd" * 32)


def test_the_manifest_says_what_the_files_hold(tmp_path):
    prefix = write_recorded(tmp_path / "corpus", CORPUS)
    pair = read_manifest(prefix).pair
    tokens, index = (Path(f"{prefix}.{end}").read_bytes() for end in ("bin", "idx"))
    assert (pair.dtype, pair.num_documents, pair.num_sequences, pair.num_tokens) == ("uint16", 2, 3, 5)
    assert pair.largest_token == 14
    assert (pair.tokens.num_bytes, pair.tokens.crc32) == (len(tokens), zlib.crc32(tokens))
    assert (pair.index.num_bytes, pair.index.crc32) == (len(index), zlib.crc32(index))
    assert pair.index_start_crc32 == zlib.crc32(index[: 34 + 4 * 3])
    assert (tokens, index) == tuple(
        Path(f"{write_pair(tmp_path / 'plain', CORPUS, dtype=np.uint16)}.{end}").read_bytes() for end in ("bin", "idx")
    )


@pytest.mark.parametrize(
    ("dtype", "num_documents"), [(np.uint8, 2500), (np.int32, 0), (np.int64, 999), (np.int64, 1), (np.float32, 1001)]
)
def test_every_way_of_adding_is_counted(tmp_path, dtype, num_documents):
    rng = np.random.default_rng(num_documents)
    lengths = rng.integers(0, 4, size=num_documents).astype(np.int32)
    with IndexedDatasetBuilder(f"{tmp_path}/corpus.bin", dtype=dtype, checksums=True) as builder:
        builder.append_block(rng.integers(0, 100, size=int(lengths.sum())).astype(dtype), lengths)
        builder.add_documents([[1, 2], [3]])
        builder.add_index(write_pair(tmp_path / "plain", [[[5, 120], []], []], dtype=dtype))
        ledger = DocumentLedger(num_read=builder.num_documents, num_kept=builder.num_documents)
        builder.finalize(f"{tmp_path}/corpus.idx", manifest=lambda pair: make_manifest(pair=pair, ledger=ledger))
    report = verify_dataset(f"{tmp_path}/corpus")
    assert report.problems == (
        f"`{tmp_path}/corpus.bin`: expected tokens below 100 (the vocabulary), found {report.largest_token}",
    )
    largest = manifest_of(IndexedDataset(f"{tmp_path}/corpus")).pair.largest_token
    assert largest == (None if dtype is np.float32 else 120)


def test_a_manifest_needs_checksums(tmp_path):
    builder = IndexedDatasetBuilder(f"{tmp_path}/corpus.bin")
    with pytest.raises(ConfigError, match="`manifest`: needs a builder with `checksums=True`"):
        builder.finalize(f"{tmp_path}/corpus.idx", manifest=lambda pair: make_manifest(pair=pair))
    assert os.listdir(tmp_path) == []


def test_a_manifest_that_does_not_balance_leaves_the_old_pair_alone(tmp_path):
    prefix = write_recorded(tmp_path / "corpus", CORPUS)
    before = contents(tmp_path)
    with pytest.raises(ConfigError, match="expected 2 documents kept"):
        write_recorded(tmp_path / "corpus", OTHER, ledger=DocumentLedger(num_read=7, num_kept=7))
    assert contents(tmp_path) == before
    assert read_manifest(prefix).pair.num_documents == 2


# --- an old manifest beside new data --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("has_manifest", "step"),
    [(True, 3), (False, 4), *(pytest.param(each, 1, marks=pytest.mark.slow) for each in (True, False))],
)
def test_wherever_a_writer_dies_a_pair_that_opens_has_its_own_manifest(tmp_path, has_manifest, step):
    def write():
        if has_manifest:
            write_recorded(tmp_path / "corpus", OTHER, tokenizer=OTHER_TOKENIZER)
        else:
            write_pair(tmp_path / "corpus", OTHER, dtype=np.uint16)

    seen = set()
    for at in itertools.count(0, step):
        shutil.rmtree(tmp_path)
        tmp_path.mkdir()
        prefix = write_recorded(tmp_path / "corpus", CORPUS)
        was_killed = dies_at(tmp_path, at, write)
        pair = IndexedDataset(prefix)
        made_by = None if (manifest := manifest_of(pair)) is None else manifest.tokenizer
        if read_pair(prefix) == CORPUS:
            assert made_by == make_tokenizer_identity()
            seen.add("old")
        else:
            assert made_by == (OTHER_TOKENIZER if has_manifest else None)
            seen.add("new")
        assert verify_dataset(prefix).ok
        if not was_killed:
            break
    assert at > 10
    assert seen == {"old", "new"}


def test_a_manifest_beside_data_that_others_replaced_is_refused(tmp_path):
    prefix = write_recorded(tmp_path / "corpus", CORPUS)
    foreign = write_pair(tmp_path / "foreign", [[[1, 2]], [[3, 4, 5], [6]]], dtype=np.uint16)
    for end in ("bin", "idx"):
        shutil.copy(f"{foreign}.{end}", f"{prefix}.{end}")
    for look in (manifest_of, manifest_head_of):
        with pytest.raises(DatasetFormatError) as caught:
            look(IndexedDataset(prefix))
        assert caught.value.message == (f"`{prefix}.manifest.json`: belongs to another pair than the files beside it")
    problems = verify_dataset(prefix).problems
    assert [problem.split(":")[0] for problem in problems] == [
        *(f"`{prefix}.manifest.json`" for _ in range(2)),
        f"`{prefix}.bin`",
        f"`{prefix}.idx`",
    ]


def test_data_that_moved_keep_their_manifest(tmp_path):
    prefix = write_recorded(tmp_path / "corpus", CORPUS)
    (tmp_path / "elsewhere").mkdir()
    for end in ("bin", "idx", "manifest.json"):
        os.rename(f"{prefix}.{end}", tmp_path / "elsewhere" / f"other.{end}")
    moved = IndexedDataset(tmp_path / "elsewhere" / "other")
    assert manifest_head_of(moved).tokenizer == make_tokenizer_identity()
    assert verify_dataset(moved.path_prefix).ok


def test_the_head_is_read_once_and_travels(tmp_path):
    prefix = write_recorded(tmp_path / "corpus", CORPUS)
    pair = IndexedDataset(prefix)
    head = manifest_head_of(pair)
    os.unlink(manifest_path(prefix))
    assert manifest_head_of(pair) is head
    assert manifest_head_of(pickle.loads(pickle.dumps(pair))) == head
    assert manifest_head_of(IndexedDataset(prefix)) is None


# --- verify -------------------------------------------------------------------------------------------------------


def test_verify_names_each_mismatch(tmp_path):
    prefix = write_recorded(tmp_path / "corpus", CORPUS)
    manifest = read_manifest(prefix)
    write_manifest(
        prefix,
        dataclasses.replace(
            manifest,
            pair=dataclasses.replace(
                manifest.pair,
                num_documents=3,
                num_sequences=4,
                largest_token=15,
                index=dataclasses.replace(manifest.pair.index, crc32=0),
            ),
            ledger=DocumentLedger(num_read=3, num_kept=3),
        ),
    )
    assert verify_dataset(prefix).problems == (
        f"`{prefix}.manifest.json`: expected num_documents of 2, as the pair has, found 3",
        f"`{prefix}.manifest.json`: expected num_sequences of 3, as the pair has, found 4",
        f"`{prefix}.manifest.json`: expected largest_token of 14, as the pair has, found 15",
        f"`{prefix}.idx`: expected 94 bytes with CRC-32 00000000, as the manifest says, "
        f"found 94 with {manifest.pair.index.crc32:08x}",
    )


@pytest.mark.parametrize(("end", "offset"), [("bin", 0), ("bin", 9), ("idx", 60), ("idx", 93)])
def test_verify_finds_any_byte_that_flipped(tmp_path, end, offset):
    prefix = write_recorded(tmp_path / "corpus", CORPUS)
    data = bytearray(Path(f"{prefix}.{end}").read_bytes())
    data[offset] ^= 1
    Path(f"{prefix}.{end}").write_bytes(data)
    try:
        problems = verify_dataset(prefix).problems
    except DatasetFormatError:  # the last boundary is looked at when the pair is opened
        assert (end, offset) == ("idx", 93)
        return
    assert any(problem.startswith(f"`{prefix}.{end}`: expected") and "CRC-32" in problem for problem in problems)


def test_verify_reports_a_damaged_manifest_and_still_checks_the_pair(tmp_path):
    prefix = write_recorded(tmp_path / "corpus", CORPUS)
    Path(manifest_path(prefix)).write_text("{")
    report = verify_dataset(prefix, vocab_size=14)
    assert report.has_manifest is False
    assert [problem.split(":")[0] for problem in report.problems] == [f"`{prefix}.manifest.json`", f"`{prefix}.bin`"]
