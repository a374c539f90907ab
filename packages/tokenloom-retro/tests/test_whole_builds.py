"""Whole projects: the same by any way, never half made, verified."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from retro_making import EOD, LetterEmbedder, LetterTokenizer, letters, maker, project_of
from retro_whole import SETTINGS, build, copy_of, outputs_of, project

from tokenloom.errors import OutputExistsError
from tokenloom.preprocess.processes import local_runner
from tokenloom_retro.assembled import RetroSettings, get_retro_datasets
from tokenloom_retro.build import retro_samples
from tokenloom_retro.dataset import RetroDataset
from tokenloom_retro.hdf5 import open_array
from tokenloom_retro.neighbor_table import NAME
from tokenloom_retro.project import RetroProject
from tokenloom_retro.settings import RetroBuildSettings
from tokenloom_retro.verify import damaged_files, verify_retro


def datasets_of(made: RetroProject, settings: RetroBuildSettings = SETTINGS) -> list[RetroDataset | None]:
    samples = retro_samples(made, settings, LetterTokenizer())
    config = RetroSettings(
        retro_project_dir=made.folder, retro_chunk_length=4, retro_block_size=settings.block_size, retro_num_neighbors=2
    )
    return list(get_retro_datasets(config, samples, settings.sequence_length, EOD))


def test_neighbors_are_the_nearest_chunks_of_other_documents(tmp_path: Path, rng: np.random.Generator):
    made = project(tmp_path, rng)
    build(made)
    train, valid, test = datasets_of(made)
    assert test is None
    assert len(valid) >= 3
    database = made.database("train", chunk_length=4, eod_token_id=EOD)
    chunks = maker()
    vectors = chunks.embed(chunks.texts(database.gather(np.arange(len(database)))))
    documents = database.documents_of(np.arange(len(database))).tolist()
    for position in range(20):
        sample = train[position]
        own = [[int(sample["dataset_id"]), document] for document in sample["document_ids"].tolist()]
        for place in range(2):
            text = sample["text"][4 * place : 4 * place + 4]
            [vector] = chunks.embed(chunks.texts(text[None]))
            distances = ((vectors - vector) ** 2).sum(axis=1)
            others = [number for number in range(len(database)) if documents[number] not in own]
            found = sample["neighbor_chunks"][place, :, 0].tolist()
            if not chunks.texts(text[None])[0]:
                assert found == [-1, -1]
                continue
            assert not set(found) - set(others)
            nearest = np.sort(distances[others])[:2]
            np.testing.assert_allclose(distances[found], nearest, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_two_builds_are_the_same_and_nothing_is_made_twice(
    tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))  # for processes, which import the embedder
    corpora = project(tmp_path / "one", rng)
    other = copy_of(corpora, tmp_path / "two")
    build(corpora)
    # Databases are made by several processes in tests of their own.
    for task, num_processes in (("db-build", 1), ("index-build", 2), ("query-neighbors", 2)):
        build(other, tasks=[task], runner=local_runner(most_processes=2, num_processes=num_processes, num_workers=1))
    assert len(outputs_of(corpora)) > 5
    assert outputs_of(other) == outputs_of(corpora)
    times = {path: os.stat(path).st_mtime_ns for path in Path(corpora.folder).rglob("*.hdf5")}
    build(corpora)
    assert times == {path: os.stat(path).st_mtime_ns for path in Path(corpora.folder).rglob("*.hdf5")}
    assert not list(tmp_path.rglob("*.job"))


class ShiftedEmbedder(LetterEmbedder):
    """Says that it is the same, and is not."""

    def embed(self, texts, /):
        return super().embed(texts) + np.float32(1)


def verify(made: RetroProject, settings: RetroBuildSettings = SETTINGS, **options) -> list[str]:
    who = {"tokenizer": LetterTokenizer(), "embedder": LetterEmbedder(), "fraction": 1.0}
    return verify_retro(made.folder, settings, **(who | options))


@pytest.fixture
def made(tmp_path: Path, rng: np.random.Generator) -> RetroProject:
    found = project(tmp_path, rng)
    build(found)
    return found


@pytest.mark.slow
def test_what_was_made_is_what_comes_out_again(made: RetroProject):
    assert damaged_files(made) == []
    assert verify(made) == []
    assert verify(made, fraction=0.01) == []


@pytest.mark.slow
def test_a_byte_that_changed_anywhere_is_found(made: RetroProject, rng: np.random.Generator):
    paths = [path for path in Path(made.folder).rglob("*") if path.suffix in (".hdf5", ".faissindex")]
    assert len(paths) > 10
    for path in paths:
        data = path.read_bytes()
        place = int(rng.integers(len(data)))
        path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        [problem] = damaged_files(made)
        assert problem.startswith(f"`{path}`: expected the checksum ")
        path.write_bytes(data)
    assert damaged_files(made) == []


@pytest.mark.slow
def test_an_embedder_that_gives_other_vectors_under_the_same_name(made: RetroProject):
    problems = verify(made, embedder=ShiftedEmbedder())
    assert any(each.endswith("chunks 0 to 9 differ when they are made again") for each in problems)
    assert any("`" + made.index_folder("faiss-par-add", "Flat") in each for each in problems)
    assert not any(made.database_folder in each for each in problems)  # which has no vectors


ONE = replace(SETTINGS, data=((1.0, "books"),), split="100,0,0", sizes=(2, None, None), num_index_chunks=0)


def neighbors_of(made: RetroProject, manifest: str = "query-neighbors train") -> list[list[int]]:
    paths = sorted(Path(made.query_folder).glob(f"{manifest.split()[1]}_*/*.hdf5"))
    return [row for path in paths for row in open_array(str(path), NAME, shape=(None, None)).tolist()]


@pytest.mark.slow
def test_chunks_that_say_nothing_and_documents_that_are_alone_have_no_neighbors(tmp_path: Path):
    made = project_of(tmp_path / "silent", books=[letters("zzzzzzz")] * 20)
    build(made, ONE)
    assert neighbors_of(made) == [[-1, -1]] * 4
    made = project_of(tmp_path / "alone", books=[letters("abcdefghijklmnopqrstuvwxy" * 3)])
    build(made, ONE)
    assert neighbors_of(made) == [[-1, -1]] * 4


@pytest.mark.slow
def test_data_that_were_replaced_are_noticed_and_nothing_of_the_old_ones_stays(
    tmp_path: Path, rng: np.random.Generator
):
    made, fresh = project(tmp_path / "old", rng), project(tmp_path / "new", rng)
    build(made)
    copy_of(fresh, tmp_path / "old")
    for tasks in (["db-build"], ["index-build"], ["query-neighbors"]):
        with pytest.raises(OutputExistsError, match="was made with other settings, of other data"):
            build(made, tasks=tasks)
    build(made, overwrite=True)
    build(fresh)
    assert outputs_of(made) == outputs_of(fresh)
