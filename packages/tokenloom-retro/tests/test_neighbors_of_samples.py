"""Checks that neighbors belong to the samples."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from retro_projects import CHUNK_LENGTH, split_datasets, write_neighbors, write_project
from tests.support import EOD, StandInTokenizer

from tokenloom.errors import ConfigError, DataMismatchWarning, StorageError, TokenizerError
from tokenloom_retro.assembled import RetroSettings, get_retro_datasets
from tokenloom_retro.neighbor_match import check_neighbor_folder
from tokenloom_retro.project import RetroProject

SIZES = (12, 4, 0)
BLOCK_SIZE = 5
DOCUMENTS = [[token % 90 + 10 for token in range(number, number + 9)] + [EOD] for number in range(40)]


class Prepared:
    """A project with neighbors of its train and valid samples."""

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

    def read(self, *, samples=None, **changes):
        given = {"retro_project_dir": self.folder, "retro_chunk_length": CHUNK_LENGTH, "retro_block_size": BLOCK_SIZE}
        return get_retro_datasets(RetroSettings(**given, **changes), samples or self.samples, 2 * CHUNK_LENGTH, EOD)


@pytest.fixture
def prepared(tmp_path):
    return Prepared(tmp_path)


def test_each_split_has_its_own_neighbors(prepared):
    train, valid, test = prepared.read()
    assert (test, train.num_queried_samples) == (None, 12)
    for key, dataset in (("train", train), ("valid", valid)):
        found = dataset.batch(range(4))["neighbor_chunks"][..., 0]
        assert found.reshape(-1, 2).tolist() == prepared.neighbors[key][:8, :2].tolist()


def test_neighbors_of_another_seed_are_errors(prepared):
    others = split_datasets(prepared.folder, ["books", "web"], SIZES, split="3,1,0", random_seed=8)
    with pytest.raises(ConfigError, match=r"no folder `.*` with neighbors of train\nhint: use the sizes, "):
        prepared.read(samples=others)
    names = {key: os.path.basename(prepared.neighbor_folder(key)) for key in ("train", "valid")}
    with pytest.raises(ConfigError, match="does not have the neighbors of these train samples"):
        prepared.read(samples=others, retro_neighbor_dirs=names)


def test_fewer_neighbors_than_samples_are_errors(prepared):
    more = {**prepared.samples, "train": (prepared.samples["train"][0], 11)}
    with pytest.raises(StorageError, match="expected blocks with 22 items in all, found 24"):
        prepared.read(samples=more)
    train, _, _ = prepared.read(samples=more, retro_verify_neighbor_count=False)
    assert train[10]["neighbor_chunks"].shape == (2, 2, 2)


def test_a_tokenizer_with_fewer_ids_is_an_error(tmp_path):
    prepared = Prepared(tmp_path, tokenizer=StandInTokenizer(vocab_size=40))
    with pytest.raises(TokenizerError, match=r"out of range: the tokenizer has 40 ids\nhint: use the tokenizer that"):
        prepared.read()


SAME_DOCUMENTS = [[1, 2, 3, 4, 5, 6, EOD]] * 40
SPLIT = "8,2,0"


@pytest.fixture
def folder(tmp_path):
    return write_project(tmp_path / "project", {"books": SAME_DOCUMENTS, "web": SAME_DOCUMENTS})


def samples(folder, key="train", *, prefixes=("books", "web"), sizes=(20, 5, 0), **changes):
    settings = {"split": SPLIT, "split_preprocessing": SPLIT} | changes
    return split_datasets(folder, list(prefixes), sizes, **settings)[key][0]


def made_for(folder, dataset, key="train"):
    os.makedirs(path := RetroProject(folder).neighbor_folder(key, dataset), exist_ok=True)
    return path


def write_config(folder, path, key="train", **changes):
    made_with = {
        "retro_gpt_seed": 7,
        "retro_gpt_seq_length": 2 * CHUNK_LENGTH,
        "retro_gpt_split": SPLIT,
        "retro_gpt_train_samples": 20,
        "retro_gpt_chunk_length": CHUNK_LENGTH,
        "retro_neighbor_dirs": {key: os.path.basename(path)},
    }
    Path(folder, "config.json").write_text(json.dumps(made_with | changes))


def check(folder, path, dataset, key="train", num_samples=20):
    check_neighbor_folder(RetroProject(folder), path, key, dataset, num_samples=num_samples, chunk_length=CHUNK_LENGTH)


def test_a_split_with_other_documents_is_an_error(folder):
    path = made_for(folder, samples(folder, "valid"), "valid")
    dataset = samples(folder, "valid", split="9,1,0")
    expected = r"expected documents \[0.8, 1\) of the data, found \[0.9, 1\): `split` differs"
    with pytest.raises(ConfigError, match=rf"does not have the neighbors of these valid samples: {expected}\nhint: "):
        check(folder, path, dataset, "valid")
    check(folder, made_for(folder, dataset, "valid"), dataset, "valid")


@pytest.mark.parametrize("changes", [{"sizes": (21, 5, 0)}, {"prefixes": ("web", "books")}], ids=str)
def test_neighbors_of_other_samples_are_errors(folder, changes):
    path, dataset = made_for(folder, samples(folder, **changes)), samples(folder)
    with pytest.raises(ConfigError, match=rf"expected `train_{dataset.unique_description_hash}`, found `train_"):
        check(folder, path, dataset)
    allowed = samples(folder, allow_data_mismatch=True)
    with pytest.warns(DataMismatchWarning, match="does not have the neighbors of these train samples"):
        check(folder, path, allowed)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"retro_gpt_seed": 8}, "`retro_gpt_seed` was 8, but `random_seed` is 7"),
        ({"retro_neighbor_dirs": {"train": "train_x"}}, "the recorded neighbor folder of train is `train_x`"),
    ],
)
def test_a_moved_project_is_recognised_by_its_settings(folder, tmp_path, changes, problem):
    path = made_for(folder, samples(folder))
    write_config(folder, path)
    moved = os.fspath(tmp_path / "moved")
    shutil.move(folder, moved)
    path = os.path.join(moved, "query", os.path.basename(path))
    dataset = samples(moved)
    assert dataset.unique_description_hash not in path
    check(moved, path, dataset)
    write_config(moved, path, **changes)
    with pytest.raises(ConfigError, match=f"config.json`, {problem}\nhint: "):
        check(moved, path, dataset)
