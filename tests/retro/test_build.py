"""Whole projects: what training reads of them, what goes on, what is refused."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.retro.making import EOD, LetterEmbedder, LetterTokenizer, maker
from tests.retro.whole import PREFIXES, SETTINGS, build, copy_of, outputs_of, project
from tests.support import write_sentences

from tokenloom.errors import ConfigError, OutputExistsError
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.jobs.running import local_runner
from tokenloom.retro.assembled import RetroSettings, get_retro_datasets
from tokenloom.retro.block_job import differing_blocks
from tokenloom.retro.build import RetroBuildSettings, chunk_maker, neighbor_tasks, retro_samples
from tokenloom.retro.dataset import RetroDataset
from tokenloom.retro.project import RetroProject


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


def test_two_builds_are_the_same_and_nothing_is_made_twice(tmp_path: Path, rng: np.random.Generator):
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


def test_empty_documents_change_nothing(tmp_path: Path, rng: np.random.Generator):
    plain = project(tmp_path / "plain", rng)
    other = RetroProject(tmp_path / "other")
    Path(other.data_folder).mkdir(parents=True)
    for name in PREFIXES:
        documents = [[tokens] for tokens in IndexedDataset(plain.data_prefix(name))]
        places = np.sort(rng.integers(0, len(documents) + 1, 10)).tolist()
        for place in places[::-1]:
            documents.insert(place, [])
        write_sentences(other.data_prefix(name), documents)
    build(plain)
    build(other)
    assert outputs_of(other) == outputs_of(plain)
    [sample, same] = [datasets_of(made)[0][3] for made in (plain, other)]
    for name, values in sample.items():
        assert np.array_equal(values, same[name])


def test_other_settings_are_refused_and_replace_what_is_there_when_they_may(tmp_path: Path, rng: np.random.Generator):
    made = project(tmp_path, rng)
    build(made)
    with pytest.raises(OutputExistsError, match=r"`.*0.*hdf5` exists, and was made with other settings"):
        build(made, replace(SETTINGS, num_neighbors=1))
    build(made, replace(SETTINGS, num_neighbors=1), overwrite=True)
    with pytest.raises(ConfigError, match="expected tasks of db-build, index-build, query-neighbors, found 'query'"):
        build(made, tasks=["query"])


def test_blocks_made_again_are_the_same(tmp_path: Path, rng: np.random.Generator):
    made = project(tmp_path, rng)
    manifests = build(made)
    chunks = chunk_maker(SETTINGS, LetterTokenizer(), LetterEmbedder())
    for task in neighbor_tasks(made, SETTINGS, chunks, manifests["index-build"]):
        recorded = manifests[f"query-neighbors {task.split}"].blocks
        assert differing_blocks(task, recorded, fraction=1.0) == []


def test_a_project_may_be_moved_and_called_by_any_path(
    tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    made = project(Path("one"), rng)
    build(made)
    expected = [sample["neighbor_tokens"] for sample in map(datasets_of(made)[0].__getitem__, range(20))]
    times = {path.name: os.stat(path).st_mtime_ns for path in Path("one").rglob("*.hdf5")}
    for folder in ("one", "./one", str(tmp_path / "one"), "other/two"):
        if folder == "other/two":
            Path("other").mkdir()
            Path("one").rename(folder)
        again = RetroProject(folder)
        build(again)
        assert times == {path.name: os.stat(path).st_mtime_ns for path in Path(folder).rglob("*.hdf5")}
        found = [sample["neighbor_tokens"] for sample in map(datasets_of(again)[0].__getitem__, range(20))]
        np.testing.assert_array_equal(found, expected)
        with pytest.raises(ConfigError, match="expected neighbors of train in"):
            datasets_of(again, replace(SETTINGS, seed=5))
        with pytest.raises(ConfigError, match="expected neighbors of train in"):
            datasets_of(again, replace(SETTINGS, data=((1.0, "books"), (1.0, "web"))))


def test_the_settings_stand_in_the_project_under_the_reference_names(tmp_path: Path, rng: np.random.Generator):
    made = project(tmp_path, rng)
    build(made)
    config = json.loads(Path(made.config_path).read_text())
    assert config["retro_gpt_seed"] == 1234
    assert config["retro_gpt_data_path"] == ["1.0", "books", "2.0", "web"]
    assert set(os.listdir(made.query_folder)) == {name for name in config["retro_neighbor_dirs"].values() if name}
