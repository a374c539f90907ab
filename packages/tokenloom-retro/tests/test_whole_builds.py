"""Whole projects: neighbors are the nearest chunks, builds are reproducible, and changes are found."""

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
        others = [number for number in range(len(database)) if documents[number] not in own]
        for text, near in zip(sample["text"][:8].reshape(2, 1, 4), sample["neighbor_chunks"][:, :, 0], strict=True):
            found = near.tolist()
            if not chunks.texts(text)[0]:
                assert found == [-1, -1]
                continue
            distances = ((vectors - chunks.embed(chunks.texts(text))) ** 2).sum(axis=1)
            assert not set(found) - set(others)
            np.testing.assert_allclose(distances[found], np.sort(distances[others])[:2], rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_builds_are_equal_and_resumed(tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch):
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
    """Returns other vectors under the same name."""

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
def test_a_changed_byte_is_found_anywhere(made: RetroProject, rng: np.random.Generator):
    assert verify(made) == verify(made, fraction=0.01) == []
    paths = [path for path in Path(made.folder).rglob("*") if path.suffix in (".hdf5", ".faissindex")]
    assert len(paths) > 10
    for path in paths:
        data = path.read_bytes()
        place = int(rng.integers(len(data)))
        path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        [problem] = damaged_files(made)
        assert problem.startswith(f"`{path}`: expected checksum ")
        path.write_bytes(data)


@pytest.mark.slow
def test_a_changed_embedder_of_the_same_name_is_found(made: RetroProject):
    problems = verify(made, embedder=ShiftedEmbedder())
    assert any(each.endswith("chunks 0 to 9 differ when recomputed") for each in problems)
    assert any("`" + made.index_folder("faiss-par-add", "Flat") in each for each in problems)
    assert not any(made.database_folder in each for each in problems)  # has no vectors


ONE = replace(SETTINGS, data=((1.0, "books"),), split="100,0,0", sizes=(2, None, None), num_index_chunks=0)


def neighbors_of(made: RetroProject) -> list[list[int]]:
    paths = sorted(Path(made.query_folder).glob("train_*/*.hdf5"))
    return [row for path in paths for row in open_array(str(path), NAME, shape=(None, None)).tolist()]


@pytest.mark.slow
@pytest.mark.parametrize("documents", [["zzzzzzz"] * 20, ["abcdefghijklmnopqrstuvwxy" * 3]])
def test_empty_chunks_and_single_documents_have_no_neighbors(tmp_path: Path, documents: list[str]):
    made = project_of(tmp_path, books=map(letters, documents))
    build(made, ONE)
    assert neighbors_of(made) == [[-1, -1]] * 4


@pytest.mark.slow
def test_replaced_data_are_noticed_and_rebuilt(tmp_path: Path, rng: np.random.Generator):
    made, fresh = project(tmp_path / "old", rng), project(tmp_path / "new", rng)
    build(made)
    copy_of(fresh, tmp_path / "old")
    for tasks in (["db-build"], ["index-build"], ["query-neighbors"]):
        with pytest.raises(OutputExistsError, match="was made with other settings or data"):
            build(made, tasks=tasks)
    build(made, overwrite=True)
    build(fresh)
    assert outputs_of(made) == outputs_of(fresh)
