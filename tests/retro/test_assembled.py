"""All splits of a run with their neighbors, and everything that must be told before the first sample."""

from __future__ import annotations

import os
from pathlib import Path

import h5py
import numpy as np
import pytest
from tests.retro.projects import CHUNK_LENGTH, chunks_of, split_datasets, write_chunks, write_neighbors, write_project
from tests.support import EOD, StandInTokenizer, random_documents

from tokenloom.errors import ConfigError, DatasetFormatError, StorageError, TokenizerError, TokenizerMismatchWarning
from tokenloom.retro.assembled import RetroSettings, get_retro_datasets
from tokenloom.retro.project import RetroProject

SIZES = (12, 4, 0)
BLOCK_SIZE = 5
DOCUMENTS = [[token % 90 + 10 for token in range(number, number + 9)] + [EOD] for number in range(40)]


class Prepared:
    """A project with neighbors of its train and valid samples, and what is read of it."""

    def __init__(self, folder, *, corpora=None, **changes):
        corpora = corpora or {"books": DOCUMENTS, "web": DOCUMENTS[:9]}
        self.folder = write_project(folder / "project", corpora)
        self.samples = split_datasets(self.folder, list(corpora), SIZES, **({"split": "3,1,0"} | changes))
        self.num_chunks = sum(info.n_chunks_train for info in RetroProject(self.folder).infos)
        rng = np.random.default_rng(5)
        self.neighbors = {}
        for key in ("train", "valid"):
            _, count = self.samples[key]
            self.neighbors[key] = rng.integers(-1, self.num_chunks, size=(2 * count, 3))
            write_neighbors(Path(self.neighbor_folder(key)), self.neighbors[key], block_size=BLOCK_SIZE)

    def neighbor_folder(self, key):
        return RetroProject(self.folder).neighbor_folder(key, self.samples[key][0])

    def settings(self, **changes):
        given = {
            "retro_project_dir": self.folder,
            "retro_chunk_length": CHUNK_LENGTH,
            "retro_block_size": BLOCK_SIZE,
        }
        return RetroSettings(**(given | changes))

    def read(self, *, samples=None, eod=EOD, **changes):
        return get_retro_datasets(self.settings(**changes), samples or self.samples, 2 * CHUNK_LENGTH, eod)

    def block(self, key="train", number=1):
        return sorted(Path(self.neighbor_folder(key)).iterdir())[number]


@pytest.fixture
def prepared(tmp_path):
    return Prepared(tmp_path)


def test_each_split_has_its_own_neighbors(prepared):
    train, valid, test = prepared.read()
    assert test is None
    assert train.num_queried_samples == 12
    for key, dataset in (("train", train), ("valid", valid)):
        found = dataset.batch(range(4))["neighbor_chunks"][..., 0]
        assert found.reshape(-1, 2).tolist() == prepared.neighbors[key][:8, :2].tolist()


def test_folders_may_be_named(prepared):
    names = {key: os.path.basename(prepared.neighbor_folder(key)) for key in ("train", "valid")}
    assert prepared.read(retro_neighbor_dirs=names)[1].neighbors.name == prepared.neighbor_folder("valid")
    with pytest.raises(ConfigError, match="expected a folder of neighbors of valid in `retro_neighbor_dirs`, found"):
        prepared.read(retro_neighbor_dirs={**names, "valid": None})
    with pytest.raises(ConfigError, match="expected a folder `valid_…`, found `train_"):
        prepared.read(retro_neighbor_dirs={**names, "valid": names["train"]})


def test_splits_that_are_left_out_need_no_neighbors(prepared):
    train, valid, test = prepared.read(samples={"train": prepared.samples["train"], "valid": None})
    assert train is not None
    assert (valid, test) == (None, None)


def test_neighbors_of_another_seed_are_told(prepared):
    others = split_datasets(prepared.folder, ["books", "web"], SIZES, split="3,1,0", random_seed=8)
    with pytest.raises(
        ConfigError, match=r"expected neighbors of train in `.*`, found no such folder\nhint: folders of"
    ):
        prepared.read(samples=others)
    names = {key: os.path.basename(prepared.neighbor_folder(key)) for key in ("train", "valid")}
    with pytest.raises(ConfigError, match="has no neighbors of these samples of train"):
        prepared.read(samples=others, retro_neighbor_dirs=names)


def test_fewer_neighbors_than_samples_are_told(prepared):
    more = {**prepared.samples, "train": (prepared.samples["train"][0], 11)}
    with pytest.raises(StorageError, match="expected blocks of 22 items, found those of 24"):
        prepared.read(samples=more)
    train, _, _ = prepared.read(samples=more, retro_verify_neighbor_count=False)
    assert train[10]["neighbor_chunks"].shape == (2, 2, 2)


def test_files_of_neighbors_that_are_missing_are_told(prepared):
    os.remove(prepared.block())
    with pytest.raises(StorageError, match=r"expected a block from 5 on \(a block is missing\), found `00010-00015"):
        prepared.read()
    for path in Path(prepared.neighbor_folder("train")).iterdir():
        path.unlink()
    with pytest.raises(StorageError, match="expected neighbors of 24 chunks, found none"):
        prepared.read()


def test_files_of_neighbors_that_overlap_are_told(prepared):
    path = prepared.block()
    path.with_name("00003-00010.hdf5").write_bytes(path.read_bytes())
    with pytest.raises(StorageError, match=r"expected a block from 5 on \(blocks overlap\), found `00003-00010.hdf5`"):
        prepared.read()


def test_files_of_neighbors_that_are_truncated_are_told(prepared):
    os.truncate(prepared.block(), 1000)
    with pytest.raises(StorageError, match=r"cannot read `neighbors` of `.*00005-00010.hdf5`: .*truncated file"):
        prepared.read()


def test_another_block_size_is_told(prepared):
    with pytest.raises(StorageError, match=r"expected blocks of 6 items, found `00000-00005.hdf5`"):
        prepared.read(retro_block_size=6)


def test_neighbors_beyond_the_database_are_told(prepared):
    with h5py.File(prepared.block(), "r+") as file:
        file["neighbors"][2, 1] = prepared.num_chunks
    train, _, _ = prepared.read()
    with pytest.raises(DatasetFormatError, match=f"expected neighbors below {prepared.num_chunks}, .* of chunk 7\n"):
        train[3]


def test_a_tokenizer_with_fewer_ids_is_told(tmp_path):
    prepared = Prepared(tmp_path, tokenizer=StandInTokenizer(vocab_size=40))
    with pytest.raises(
        TokenizerError, match=r"expected tokens in \[0, 40\), found \d+\nhint: the database was built wi"
    ):
        prepared.read()


def test_another_token_that_ends_documents_is_told(prepared):
    with pytest.raises(ConfigError, match="token of the tokenizer, 9, as `eod_token_id`, found 8"):
        prepared.read(eod=8)
    rows = [*chunks_of(DOCUMENTS, eod=8), *chunks_of(DOCUMENTS[:9], dataset=1, eod=8)]
    write_chunks(Path(RetroProject(prepared.folder).merged_path("train")), rows)
    with pytest.raises(TokenizerError, match="expected it to end before the end-of-document token 9"):
        prepared.read()


def test_another_tokenizer_may_be_allowed(tmp_path):
    changes = {"allow_tokenizer_mismatch": True}
    prepared = Prepared(tmp_path, tokenizer=StandInTokenizer(vocab_size=40), **changes)
    assert prepared.read()[0].batch([0, 1])["neighbor_tokens"].max() >= 40
    rows = [*chunks_of(DOCUMENTS, eod=8), *chunks_of(DOCUMENTS[:9], dataset=1, eod=8)]
    write_chunks(Path(RetroProject(prepared.folder).merged_path("train")), rows)
    with pytest.warns(TokenizerMismatchWarning, match="expected it to end before the end-of-document token 9"):
        prepared.read()


def test_a_database_of_another_chunk_length_is_told(prepared):
    long = chunks_of(DOCUMENTS, chunk_length=5)
    rows = (long * 3)[: prepared.num_chunks]
    write_chunks(Path(RetroProject(prepared.folder).merged_path("train")), rows)
    with pytest.raises(DatasetFormatError, match="expected 1 to 4 tokens, found tokens"):
        prepared.read()


def test_short_empty_and_ended_documents_have_few_chunks_or_none(tmp_path, rng):
    short = [[EOD], [], [1], [2, EOD], [EOD, EOD], [3, 4, 5, EOD], [6, 7, 8, 10, 11, EOD]] * 6
    drawn = random_documents(rng, count=30, longest=3, vocab_size=9)
    # One at either end, so that no split is without tokens: that is refused before anything is read.
    corpora = {"short": short, "drawn": [[1], *drawn, [2]]}
    prepared = Prepared(tmp_path, corpora=corpora)
    train, _, _ = prepared.read()
    batch = train.batch(range(12))
    assert ((batch["neighbor_tokens"] >= 0) & (batch["neighbor_tokens"] < 100)).all()
    missing = np.repeat(batch["neighbor_chunks"] == -1, CHUNK_LENGTH, axis=-1)
    assert (batch["neighbor_tokens"][missing] == EOD).all()


def test_a_project_that_is_not_there_is_told(prepared):
    with pytest.raises(StorageError, match=r"cannot open `absent/db/merged/train.hdf5`|cannot read `absent/db"):
        prepared.read(retro_project_dir="absent")


def test_a_sample_must_be_whole_chunks(prepared):
    with pytest.raises(ConfigError, match="expected a sample length that is a multiple of the chunk length 3, found 8"):
        prepared.read(retro_chunk_length=3)
