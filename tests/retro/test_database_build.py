"""Chunk databases: literal tables, and a build that goes on, is refused, or has nothing to do."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
from tests.retro.making import letters, maker, project_of
from tests.retro.projects import chunks_of

from tokenloom.errors import ConfigError, OutputExistsError
from tokenloom.indexed.writing.builder import IndexedDatasetBuilder
from tokenloom.jobs.running import local_runner
from tokenloom.retro.block_job import differing_blocks
from tokenloom.retro.database_build import DatabaseSettings, build_database, chunk_task

BOOKS = [letters("abcdefghi"), letters("zzzzab"), letters("", ends=True), letters("hello", ends=False)]
WEB = [letters("web"), [], letters("zz"), letters("abcd")]
SETTINGS = DatabaseSettings(data=((2.0, "books"), (1.0, "web")), split="75,25,0", num_index_chunks=4, block_size=3)


def tables(path: Path | str) -> dict[str, list[list[int]]]:
    with h5py.File(path) as file:
        return {name: file[name][()].tolist() for name in file}


def test_chunks_of_two_data_sets(tmp_path: Path):
    project = project_of(tmp_path, books=BOOKS, web=WEB)
    manifest = build_database(project, maker(), SETTINGS)
    first = tables(Path(project.individual_folder("books")) / "00-03.hdf5")
    assert first == {
        "chunks_valid": [[0, 0, 4, 4], [0, 4, 8, 4], [0, 8, 9, 1], [1, 4, 6, 2]],
        "chunks_invalid": [[1, 0, 4, 0]],
        "doc_offsets": [[0, 3], [1, 4], [2, 4]],
    }
    assert tables(Path(project.individual_folder("books")) / "03-04.hdf5")["chunks_valid"] == [
        [3, 0, 4, 4],
        [3, 4, 5, 1],
    ]
    train = tables(project.merged_path("train"))
    assert train["chunks"] == [[0, 0, 0, 4, 4], [0, 0, 4, 8, 4], [0, 0, 8, 9, 1], [0, 1, 4, 6, 2], [1, 0, 0, 3, 3]]
    assert train["doc_offsets"] == [[0, 0, 3], [0, 1, 4], [0, 2, 4], [1, 0, 5], [1, 1, 5], [1, 2, 5]]
    assert train["n_written"] == [5]
    valid = tables(project.merged_path("valid"))
    assert valid == {"chunks": [[0, 3, 0, 4, 4], [0, 3, 4, 5, 1], [1, 3, 0, 4, 4]], "n_written": [3]}
    assert tables(project.merged_path("sampled"))["chunks"] == [*train["chunks"][:2], train["chunks"][4]]
    infos = json.loads(Path(project.infos_path).read_text())
    assert infos[0] == {
        "ratio": 2.0,
        "prefix": "books",
        "n_docs": 4,
        "n_docs_train": 3,
        "n_chunks": 6,
        "n_chunks_train": 4,
        "n_chunks_invalid": 1,
        "n_chunks_sampled": 2,
    }
    assert manifest.counts == {
        "num_docs": 8,
        "num_chunks": 8,
        "num_chunks_train": 5,
        "num_chunks_invalid": 2,
        "num_chunks_sampled": 3,
    }
    database = project.database("train", chunk_length=4, eod_token_id=0)
    assert database.gather([3, 4]).tolist() == [[1, 2, 0, 0], [23, 5, 2, 0]]


def test_chunks_are_those_that_are_worked_out_one_by_one(tmp_path: Path, rng: np.random.Generator):
    corpora = {
        name: [rng.integers(1, 26, rng.integers(0, 30)).tolist() + [0] * int(rng.integers(2)) for _ in range(40)]
        for name in ("a", "deep/b")
    }
    project = project_of(tmp_path, **corpora)
    chunk_length, block_size = int(rng.integers(1, 9)), int(rng.integers(1, 50))
    data = tuple((1.0, name) for name in corpora)
    settings = DatabaseSettings(data=data, split="100,0,0", num_index_chunks=0, block_size=block_size)
    build_database(project, maker(chunk_length), settings)
    expected = [
        row
        for number, documents in enumerate(corpora.values())
        for row in chunks_of(documents, dataset=number, chunk_length=chunk_length, eod=0)
    ]
    assert tables(project.merged_path("train"))["chunks"] == list(map(list, expected))


def test_a_build_that_is_done_does_nothing_and_several_processes_make_the_same(tmp_path: Path):
    projects = [project_of(tmp_path / name, books=BOOKS, web=WEB) for name in ("one", "two")]
    for project, num_processes in zip(projects, (1, 2), strict=True):
        runner = local_runner(most_processes=2, num_processes=num_processes, num_workers=1)
        build_database(project, maker(), SETTINGS, runner=runner)
    paths = [sorted(path for path in Path(project.folder).rglob("*") if path.is_file()) for project in projects]
    assert [path.relative_to(projects[0].folder) for path in paths[0]] == [
        path.relative_to(projects[1].folder) for path in paths[1]
    ]
    for one, two in zip(*paths, strict=True):
        assert one.read_bytes() == two.read_bytes(), one
    times = {path: os.stat(path).st_mtime_ns for path in paths[0]}
    build_database(projects[0], maker(), SETTINGS)
    assert times == {path: os.stat(path).st_mtime_ns for path in Path(projects[0].folder).rglob("*") if path.is_file()}


def test_another_database_is_refused_unless_it_is_to_be_replaced(tmp_path: Path):
    project = project_of(tmp_path, books=BOOKS, web=WEB)
    build_database(project, maker(), SETTINGS)
    with pytest.raises(OutputExistsError, match="was made with other settings, of other data, or by something else"):
        build_database(project, maker(2), SETTINGS)
    assert tables(project.merged_path("train"))["n_written"] == [5]
    build_database(project, maker(2), SETTINGS, overwrite=True)
    assert tables(project.merged_path("train"))["n_written"] == [8]


def test_fewer_chunks_than_the_index_trains_on(tmp_path: Path):
    project = project_of(tmp_path, books=BOOKS, web=WEB)
    settings = DatabaseSettings(data=SETTINGS.data, split="75,25,0", num_index_chunks=90)
    with pytest.raises(
        ConfigError, match="`books`: expected 60 chunks in the train split to train the index on, found 4"
    ):
        build_database(project, maker(), settings)


def test_blocks_made_again_are_the_same_and_a_difference_is_found(tmp_path: Path):
    project = project_of(tmp_path, books=BOOKS, web=WEB)
    build_database(project, maker(), SETTINGS)
    task = chunk_task(project, maker(), SETTINGS, "books")
    recorded = list(json.loads((Path(project.individual_folder("books")) / "manifest.json").read_text())["blocks"])
    checksums = [int(each, 16) for each in recorded]
    assert differing_blocks(task, checksums, fraction=1.0) == []
    [block] = differing_blocks(task, [checksums[0], checksums[1] ^ 1], fraction=1.0)
    assert (block.start, block.stop) == (3, 4)
    with pytest.raises(ConfigError, match="expected checksums of 2 blocks of chunks of books, found 1"):
        differing_blocks(task, checksums[:1], fraction=0.5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": ((1.0, "/abs/books"),)}, "expected prefixes relative to the folder `data` of the project"),
        ({"data": ((1.0, "../books"),)}, "expected prefixes relative to the folder `data` of the project"),
        ({"data": ((1.0, "books"), (1.0, "./books"))}, "expected each data set once, found 'books' 2 times"),
        ({"data": ((0.0, "books"),)}, "expected weights above 0"),
        ({"num_index_chunks": -1}, "expected num_index_chunks of at least 0"),
        ({"split": "0,100,0"}, "expected a percentage above 0 and at most 100 for train"),
    ],
)
def test_settings_that_cannot_be_are_refused_before_anything_is_read(changes: dict[str, object], message: str):
    with pytest.raises(ConfigError, match=message):
        replace(SETTINGS, **changes)


def test_a_data_set_without_documents_has_empty_tables(tmp_path: Path):
    project = project_of(tmp_path, books=[], web=WEB)
    manifest = build_database(project, maker(), replace(SETTINGS, num_index_chunks=0))
    assert manifest.counts["num_docs"] == 4
    assert tables(project.merged_path("train"))["chunks"] == [[1, 0, 0, 3, 3]]
    assert [info.n_chunks for info in project.infos] == [0, 2]
    assert os.listdir(project.individual_folder("books")) == ["manifest.json"]


def test_documents_of_several_sequences_are_refused(tmp_path: Path):
    project = project_of(tmp_path, books=BOOKS)
    with IndexedDatasetBuilder(f"{project.data_prefix('web')}.bin", dtype=np.uint16) as builder:
        builder.add_document(np.arange(1, 6, dtype=np.uint16), [2, 3])
        builder.finalize(f"{project.data_prefix('web')}.idx")
    with pytest.raises(ConfigError, match="expected documents of one sequence each, found 2 sequences in document 0"):
        build_database(project, maker(), SETTINGS)
