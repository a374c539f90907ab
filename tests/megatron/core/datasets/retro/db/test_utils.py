"""`tokenloom.megatron.core.datasets.retro.db.utils`."""

from __future__ import annotations

import json
import os
from types import SimpleNamespace

import numpy as np
import pytest
from tests.retro.projects import chunks_of, write_project
from tests.support import EOD

from tokenloom.errors import ConfigError, DatasetFormatError, DatasetNotFoundError, StorageError
from tokenloom.megatron.core.datasets.indexed_dataset import IndexedDataset
from tokenloom.megatron.core.datasets.retro.db import utils
from tokenloom.retro.hdf5 import write_arrays

CORPORA = {"books": [[1, 2, 3, 4, 5, EOD], [6, 7]], "web": [[8, EOD], [10, 11, 12, 13, EOD]]}


@pytest.fixture
def project(tmp_path):
    return write_project(tmp_path / "project", CORPORA, train_share=0.5)


def test_paths_are_those_of_the_project():
    assert utils.get_db_dir("p") == "p/db"
    assert utils.get_indexed_dataset_infos_path("p") == "p/db/indexed_dataset_infos.json"
    assert utils.get_individual_db_dir("p", "web/crawl") == "p/db/individual/web/crawl"
    assert utils.get_merged_db_path_map("p") == {
        kind: f"p/db/merged/{kind}.hdf5" for kind in ("sampled", "train", "valid")
    }


def test_data_sets_are_read_with_their_pairs(project):
    infos = utils.get_indexed_dataset_infos(project)
    assert [info["prefix"] for info in infos] == ["books", "web"]
    assert [info["n_chunks_train"] for info in infos] == [2, 1]
    assert [type(info["dataset"]) for info in infos] == [IndexedDataset] * 2


def test_data_sets_are_written_as_they_are_read(project):
    path = utils.get_indexed_dataset_infos_path(project)
    with open(path) as stream:
        before = json.load(stream)
    infos = utils.get_indexed_dataset_infos(project)
    os.remove(path)
    utils.save_indexed_dataset_infos(project, infos)
    with open(path) as stream:
        assert json.load(stream) == before
    assert "dataset" in infos[0]


def test_a_blend_begins_a_project(project):
    config = SimpleNamespace(retro_project_dir=project, retro_gpt_data_path=["0.5", "web", "2", "books"])
    infos = utils.init_indexed_dataset_infos(config)
    assert [(info["ratio"], info["prefix"], len(info["dataset"])) for info in infos] == [
        (0.5, "web", 2),
        (2.0, "books", 2),
    ]
    config.retro_gpt_data_path = ["1", "absent"]
    with pytest.raises(DatasetNotFoundError, match="absent"):
        utils.init_indexed_dataset_infos(config)
    config.retro_gpt_data_path = ["books"]
    with pytest.raises(ConfigError, match="expected weights and prefixes by turns"):
        utils.init_indexed_dataset_infos(config)


def test_databases_are_opened_by_kind(project):
    found = utils.get_merged_datasets(project, 4, EOD)
    assert {kind: len(database) for kind, database in found.items()} == {"sampled": 0, "train": 3, "valid": 2}
    assert utils.get_merged_train_dataset(project, 4, EOD)[1]["text"].tolist() == [5, EOD, EOD, EOD]
    assert utils.get_merged_valid_dataset(project, 4, EOD)[1]["text"].tolist() == [10, 11, 12, 13]
    assert len(utils.get_merged_sampled_dataset(project, 4, EOD)) == 0
    infos = utils.get_indexed_dataset_infos(project)
    given = utils.get_merged_dataset(project, 4, EOD, "train", infos)
    assert given.indexed_datasets == [info["dataset"] for info in infos]
    assert given[0]["text"].tolist() == [1, 2, 3, 4]
    with pytest.raises(ConfigError, match="expected one of sampled, train, valid as `db_type`, found 'test'"):
        utils.get_merged_dataset(project, 4, EOD, "test")


def test_chunks_of_one_data_set_are_read(project):
    folder = utils.get_individual_db_dir(project, "books")
    os.makedirs(folder)
    rows = [row[1:] for row in chunks_of(CORPORA["books"])]
    path = os.path.join(folder, "00-02.hdf5")
    write_arrays(
        path, {"chunks_valid": np.array(rows, np.uint32), "doc_offsets": np.array([[0, 2], [1, 3]], np.uint64)}
    )
    assert utils.get_individual_db_paths(project, "books") == [path]
    info = utils.get_indexed_dataset_infos(project)[0]
    assert utils.get_individual_chunk_db(project, 0, info).tolist() == [
        list(row) for row in chunks_of(CORPORA["books"])
    ]
    assert utils.get_individual_doc_offsets(project, 0, info).tolist() == [[0, 0, 2], [0, 1, 3]]
    with pytest.raises(DatasetFormatError, match=r"individual/books`: expected 4 chunks, found 3"):
        utils.get_individual_chunk_db(project, 0, {**info, "n_chunks": 4})
    with pytest.raises(StorageError, match="cannot list"):
        utils.get_individual_db_paths(project, "web")
