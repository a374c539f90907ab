"""Folders of neighbors are those of the samples, or it is said why not."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from tests.retro.projects import CHUNK_LENGTH, split_datasets, write_project
from tests.support import EOD

from tokenloom.errors import ConfigError, DataMismatchWarning
from tokenloom.retro.neighbor_match import check_neighbor_folder
from tokenloom.retro.project import RetroProject

DOCUMENTS = [[1, 2, 3, 4, 5, 6, EOD]] * 40
SPLIT = "8,2,0"


@pytest.fixture
def folder(tmp_path):
    return write_project(tmp_path / "project", {"books": DOCUMENTS, "web": DOCUMENTS})


def samples(folder, key="train", *, prefixes=("books", "web"), sizes=(20, 5, 0), **changes):
    settings = {"split": SPLIT, "split_preprocessing": SPLIT} | changes
    return split_datasets(folder, list(prefixes), sizes, **settings)[key][0]


def made_for(folder, dataset, key="train"):
    """Makes the folder of the neighbors of some samples, and notes the settings as the reference does."""
    path = RetroProject(folder).neighbor_folder(key, dataset)
    os.makedirs(path, exist_ok=True)
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


@pytest.mark.parametrize("prefixes", [("books",), ("books", "web")])
@pytest.mark.parametrize("key", ["train", "valid"])
def test_neighbors_of_these_samples_are_taken(folder, prefixes, key):
    dataset = samples(folder, key, prefixes=prefixes)
    check(folder, made_for(folder, dataset, key), dataset, key)
    check(folder, made_for(folder, dataset, key) + "/", dataset, key)
    finding = samples(folder, key, prefixes=prefixes, return_document_ids=True)
    check(folder, made_for(folder, finding, key), dataset, key)


@pytest.mark.parametrize("prefixes", [("books",), ("books", "web")])
def test_another_split_with_the_same_documents_is_taken(folder, prefixes):
    prepared = samples(folder, prefixes=prefixes)
    dataset = samples(folder, prefixes=prefixes, split="9,1,0")
    assert dataset.unique_description_hash != prepared.unique_description_hash
    check(folder, made_for(folder, prepared), dataset)


def test_a_split_with_other_documents_is_refused(folder):
    path = made_for(folder, samples(folder, "valid"), "valid")
    dataset = samples(folder, "valid", split="9,1,0")
    expected = r"expected documents \[0.8, 1\) of the data, found \[0.9, 1\): `split` is another one"
    with pytest.raises(ConfigError, match=rf"has no neighbors of these samples of valid: {expected}\nhint: "):
        check(folder, path, dataset, "valid")
    write_config(folder, path, "valid")
    with pytest.raises(ConfigError, match=expected):
        check(folder, path, dataset, "valid")
    check(folder, made_for(folder, dataset, "valid"), dataset, "valid")


@pytest.mark.parametrize(
    "changes",
    [
        {"random_seed": 8},
        {"sequence_length": CHUNK_LENGTH},
        {"split": "7,3,0", "split_preprocessing": "7,3,0"},
        {"sizes": (21, 5, 0)},
        {"weights": [1.0, 2.0]},
        {"prefixes": ("web", "books")},
    ],
    ids=str,
)
def test_neighbors_of_other_samples_are_refused(folder, changes):
    path, dataset = made_for(folder, samples(folder, **changes)), samples(folder)
    with pytest.raises(ConfigError, match=rf"expected `train_{dataset.unique_description_hash}`, found `train_"):
        check(folder, path, dataset)
    allowed = samples(folder, allow_data_mismatch=True)
    with pytest.warns(DataMismatchWarning, match="has no neighbors of these samples of train"):
        check(folder, path, allowed)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"retro_gpt_seed": 8}, "`retro_gpt_seed` was 8, and `random_seed` is 7"),
        ({"retro_gpt_seq_length": 16}, "`retro_gpt_seq_length` was 16, and `sequence_length` is 8"),
        ({"retro_gpt_split": "9,1,0"}, "`retro_gpt_split` was '9,1,0', and `split_preprocessing` is '8,2,0'"),
        ({"retro_gpt_train_samples": 21}, "`retro_gpt_train_samples` was 21, and `the samples of train` is 20"),
        ({"retro_gpt_chunk_length": 8}, "`retro_gpt_chunk_length` was 8, and `retro_chunk_length` is 4"),
        ({"retro_neighbor_dirs": {"train": "train_x"}}, "its neighbors of train are in `train_x`"),
        ({"retro_neighbor_dirs": None}, "its neighbors of train are in `None`"),
    ],
)
def test_a_moved_project_is_told_by_its_settings(folder, tmp_path, changes, said):
    path = made_for(folder, samples(folder))
    write_config(folder, path)
    moved = os.fspath(tmp_path / "moved")
    shutil.move(folder, moved)
    path = os.path.join(moved, "query", os.path.basename(path))
    dataset = samples(moved)
    assert dataset.unique_description_hash not in path
    check(moved, path, dataset)
    write_config(moved, path, **changes)
    with pytest.raises(ConfigError, match=f"config.json` says that {said}\nhint: "):
        check(moved, path, dataset)


def test_neighbors_of_another_part_are_refused(folder):
    dataset = samples(folder, "valid")
    path = made_for(folder, dataset)
    with pytest.raises(ConfigError, match="samples of valid: expected a folder `valid_…`, found `train_"):
        check(folder, path, dataset, "valid")
    with pytest.raises(ConfigError, match="expected a folder `valid_…`"):
        check(folder, path, [{"text": np.zeros(9)}], "valid")


def test_a_folder_that_is_missing_is_told_with_those_that_are_there(folder):
    dataset = samples(folder)
    with pytest.raises(ConfigError, match=r"expected neighbors of train in `absent`, found .*\nhint: .* are: none"):
        check(folder, "absent", dataset)
    made_for(folder, dataset)
    with pytest.raises(ConfigError, match=f"hint: .* are: `train_{dataset.unique_description_hash}`; compare sizes"):
        check(folder, "absent", dataset)


def test_samples_of_another_class_are_known_by_their_part_only(folder):
    check(folder, made_for(folder, samples(folder)), [{"text": np.zeros(9)}])
