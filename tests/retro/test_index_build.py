"""Indices: which vectors they hold, what is refused before a text is embedded, and what they must be made again for."""

from __future__ import annotations

import os
import resource
import signal
from pathlib import Path

import numpy as np
import pytest
from tests.retro.making import LetterEmbedder, letters, maker, project_of

from tokenloom.errors import ConfigError, OutputExistsError, StorageError
from tokenloom.retro.block_job import differing_blocks, local_blocks
from tokenloom.retro.chunk_maker import ChunkMaker
from tokenloom.retro.database_build import DatabaseSettings, build_database
from tokenloom.retro.index_build import (
    IndexSettings,
    build_index,
    code_task,
    filled_path,
    sample_task,
    trained_path,
)
from tokenloom.retro.output import OutputManifest
from tokenloom.retro.project import RetroProject
from tokenloom.retro.vector_index import VectorIndex

BOOKS = [letters("abcdefghi"), letters("zzzzab"), letters("hello")]
DATABASE = DatabaseSettings(data=((1.0, "books"),), split="100,0,0", num_index_chunks=3, block_size=2)
SETTINGS = IndexSettings(string="Flat", block_size=4, num_train_threads=1)
RUN = local_blocks(num_processes=1)


class Wrong(LetterEmbedder):
    """Counts as it should, and answers with something else."""

    def __init__(self, found: np.ndarray) -> None:
        self._found = found

    def embed(self, texts, /):
        return np.repeat(self._found, len(texts), axis=0)


class Forbidden(LetterEmbedder):
    """Is never to be asked."""

    def embed(self, texts, /):
        raise AssertionError


def made(folder: Path, documents: list[list[int]] = BOOKS, **options) -> tuple[RetroProject, OutputManifest]:
    project = project_of(folder, books=documents)
    return project, build_database(project, maker(), DATABASE, runner=RUN, **options)


def build(project: RetroProject, database: OutputManifest, settings: IndexSettings = SETTINGS, **options):
    chunks = ChunkMaker(maker().tokenizer, options.pop("embedder", LetterEmbedder()), 0, 4)
    return build_index(project, chunks, settings, database, runner=RUN, **options)


def vectors_in(project: RetroProject) -> np.ndarray:
    index = VectorIndex.open(filled_path(project, "Flat"), string="Flat", dimension=16)
    return index.search(np.zeros((1, 16), dtype=np.float32), len(index)).distances


def test_an_index_holds_the_vectors_of_all_chunks_in_order(tmp_path: Path):
    project, database = made(tmp_path)
    manifest = build(project, database)
    texts = ["abcd", "efgh", "i", "ab", "hell", "o"]
    index = VectorIndex.open(filled_path(project, "Flat"), string="Flat", dimension=16, num_vectors=len(texts))
    found = index.search(LetterEmbedder().embed(texts), 1)
    assert found.ids[:, 0].tolist() == list(range(6))
    assert manifest.counts == {"vectors": 6}
    assert len(manifest.blocks) == 2
    assert len(VectorIndex.open(trained_path(project, "Flat"), string="Flat", dimension=16)) == 0
    assert sorted(os.listdir(project.index_folder("faiss-par-add", "Flat"))) == [
        "added.json",
        "added_1.000_1.000.faissindex",
        "empty.json",
        "empty_1.000.faissindex",
    ]
    assert build(project, database, embedder=Forbidden()) == manifest


def test_vectors_and_codes_come_out_the_same_again(tmp_path: Path):
    project, database = made(tmp_path)
    filled = build(project, database)
    folder = project.index_folder("faiss-par-add", "Flat")
    trained = OutputManifest.read(folder, "empty.json")
    assert trained is not None
    assert differing_blocks(sample_task(project, maker(), SETTINGS, database), trained.blocks, fraction=1.0) == []
    codes = code_task(project, maker(), SETTINGS, database, trained)
    assert differing_blocks(codes, filled.blocks, fraction=1.0) == []
    [other] = differing_blocks(codes, [filled.blocks[0], filled.blocks[1] ^ 1], fraction=1.0)
    assert (other.start, other.stop) == (4, 6)


@pytest.mark.parametrize(
    ("string", "message"),
    [
        ("Nonsense", "expected a string of `faiss.index_factory` for vectors of 16, found 'Nonsense'"),
        ("../Flat", "expected a string of `faiss.index_factory`"),
        ("PQ7", "expected a string of `faiss.index_factory`"),
        ("IVF64,Flat", "expected at least 64 vectors to train the index 'IVF64,Flat' on, found 3"),
    ],
)
def test_a_string_that_cannot_be_is_refused_before_a_text_is_embedded(tmp_path: Path, string: str, message: str):
    project, database = made(tmp_path)
    with pytest.raises(ConfigError, match=message):
        build(project, database, IndexSettings(string=string), embedder=Forbidden())
    assert not os.path.exists(project.index_folder("", ""))


@pytest.mark.parametrize(
    ("vector", "message"),
    [
        (np.full((1, 16), np.nan, dtype=np.float32), "expected finite numbers, found nan in vector 0 of 3"),
        (np.zeros((1, 8), dtype=np.float32), r"expected float32 of shape \[3, 16\], found shape \[3, 8\]"),
    ],
)
def test_an_embedder_that_answers_wrongly_ends_the_job_and_leaves_nothing(
    tmp_path: Path, vector: np.ndarray, message: str
):
    project, database = made(tmp_path)
    with pytest.raises(ConfigError, match=message):
        build(project, database, embedder=Wrong(vector))
    assert [path.name for path in Path(project.index_folder("", "")).rglob("*") if path.is_file()] == []
    build(project, database)


def test_an_index_of_texts_that_are_others_now_is_not_taken_for_theirs(tmp_path: Path):
    project, database = made(tmp_path)
    build(project, database)
    before = vectors_in(project)
    others = [[27 - token if token else 0 for token in document] for document in BOOKS]  # of the same lengths
    others[1] = letters("yyyyab")
    with pytest.raises(OutputExistsError, match="was made with other settings, of other data"):
        made(tmp_path, others)
    project, replaced = made(tmp_path, others, overwrite=True)
    with pytest.raises(OutputExistsError):
        build(project, replaced)
    build(project, replaced, overwrite=True)
    assert (np.sort(vectors_in(project)[0])[: before.shape[1]] != np.sort(before[0])).any()


def test_a_disk_that_is_full_leaves_no_index_and_what_is_made_goes_on(tmp_path: Path):
    project, database = made(tmp_path)
    build(project, database)
    size = os.path.getsize(filled_path(project, "Flat"))
    (project_at, database) = made(tmp_path / "full")
    limits, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    index = VectorIndex.open(filled_path(project, "Flat"), string="Flat", dimension=16)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size - 1, limits[1]))
        with pytest.raises(StorageError, match=r"cannot write .*: File too large"):
            index.save(tmp_path / "saved")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert not (tmp_path / "saved").exists()
    index.save(tmp_path / "saved")
    assert (tmp_path / "saved").read_bytes() == Path(filled_path(project, "Flat")).read_bytes()
    assert build(project_at, database).counts == {"vectors": 6}
