"""A project folder: where things are, and what does not belong together."""

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
    ("text", "said"),
    [
        ("", "Expecting value"),
        ("{}", "must be a list of data sets, got {}"),
        ('[{"ratio": 1.0}]', "expected `[0].prefix`, found none"),
        ('[{"ratio": 1.0, "prefix": "a", "n_docs": "3"}]', "expected `[0].n_docs` to be an integer, found '3'"),
    ],
)
def test_a_damaged_list_of_data_sets_is_told(project, text, said):
    with open(project.infos_path, "w") as stream:
        stream.write(text)
    with pytest.raises(DatasetFormatError, match=f"^{re.escape(f'`{project.infos_path}`: {said}')}"):
        _ = project.infos


def test_data_that_were_replaced_are_told(project):
    write_corpus(project.data_prefix("books"), [[1, 2, 3]])
    said = r"data/books`: expected 2 documents, found 1\nhint: .*is of other data"
    with pytest.raises(DatasetFormatError, match=said):
        open_database(project)


def test_a_database_that_was_not_written_to_its_end_is_told(project):
    write_chunks(project.merged_path("train"), chunks_of(CORPORA["books"]), num_written=2)
    with pytest.raises(StorageError, match=r"train.hdf5`: 2 of 3 chunks were written"):
        open_database(project)
