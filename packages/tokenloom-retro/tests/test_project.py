"""A project folder, and errors for files that do not belong together."""

from __future__ import annotations

import re

import pytest
from retro_projects import CHUNK_LENGTH, chunks_of, write_chunks, write_project
from tests.support import EOD, write_corpus

from tokenloom.errors import DatasetFormatError, StorageError
from tokenloom_retro.project import RetroProject

CORPORA = {"books": [[1, 2, 3, 4, 5, EOD], [6, 7]], "web/crawl": [[8, EOD], [EOD], [], [10, 11, 12, 13, EOD]]}


@pytest.fixture
def project(tmp_path):
    return RetroProject(write_project(tmp_path / "project", CORPORA, train_share=0.5))


def open_database(project, kind="train"):
    return project.database(kind, chunk_length=CHUNK_LENGTH, eod_token_id=EOD)


def test_databases_hold_the_chunks_of_their_documents(project):
    train, valid = open_database(project), open_database(project, "valid")
    assert train.chunks.tolist() == [[0, 0, 0, 4, 4], [0, 0, 4, 5, 1], [1, 0, 0, 1, 1]]
    assert valid.chunks.tolist() == [[0, 1, 0, 2, 2], [1, 3, 0, 4, 4]]
    assert len(open_database(project, "sampled")) == 0
    assert valid[1]["text"].tolist() == [10, 11, 12, 13]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "Expecting value"),
        ("{}", "must be a non-empty list of datasets, got {}"),
        ('[{"ratio": 1.0, "prefix": "a", "n_docs": "3"}]', "expected `[0].n_docs` to be an integer, found '3'"),
    ],
)
def test_a_damaged_list_of_datasets_is_an_error(project, text, problem):
    with open(project.infos_path, "w") as stream:
        stream.write(text)
    with pytest.raises(DatasetFormatError, match=f"^{re.escape(f'`{project.infos_path}`: {problem}')}"):
        _ = project.infos


def test_replaced_data_and_an_incomplete_database_are_errors(project):
    write_chunks(project.merged_path("train"), chunks_of(CORPORA["books"]), num_written=2)
    with pytest.raises(StorageError, match=r"train.hdf5`: only 2 of 3 chunks were written"):
        open_database(project)
    write_corpus(project.data_prefix("books"), [[1, 2, 3]])
    with pytest.raises(DatasetFormatError, match=r"data/books`: expected 2 documents, found 1\nhint: the data changed"):
        open_database(RetroProject(project.folder))
