"""An index of vectors: trained, filled, searched."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from retro_making import LetterEmbedder, letters, maker, project_of

from tokenloom.storage.atomic import PendingFile
from tokenloom_retro.database_build import build_database
from tokenloom_retro.embedders import ChunkMaker
from tokenloom_retro.index_build import build_index, filled_path
from tokenloom_retro.output import OutputManifest
from tokenloom_retro.project import RetroProject
from tokenloom_retro.query_build import without_own_documents
from tokenloom_retro.settings import RetroBuildSettings
from tokenloom_retro.vector_index import VectorIndex, exact_neighbors

STRINGS = ["Flat", "IVF16,Flat", "OPQ4_16,IVF16_HNSW8,PQ4x4", "HNSW8"]


@pytest.fixture(scope="module")
def vectors():
    """Vectors in clusters, of which some are equal; as many as make several pieces."""
    rng = np.random.default_rng(7)
    centres = rng.standard_normal((40, 32))
    found = (centres[rng.integers(0, 40, 3000)] + 0.3 * rng.standard_normal((3000, 32))).astype(np.float32)
    found[100:150] = found[:50]
    return found


@pytest.fixture(scope="module")
def trained(vectors):
    """Empty indices by string."""
    return {string: VectorIndex.train(string, vectors[:300]) for string in STRINGS}


def filled(index, vectors, *, cut=2500):
    return index.assemble(index.encode(part) for part in (vectors[:cut], vectors[cut:]))


@pytest.mark.slow
@pytest.mark.parametrize("string", ["Flat", "IVF16,Flat", "HNSW8"])
def test_the_nearest_vector_of_one_is_itself(string, trained, vectors):
    index = filled(trained[string], vectors)
    index.set_effort(**{"HNSW8": {"ef_search": 500}, "IVF16,Flat": {"nprobe": 16}}.get(string, {}))
    found = index.search(vectors[200:], 3)
    is_itself = found.ids[:, 0] == np.arange(200, 3000)
    assert is_itself.mean() > 0.98 if string == "HNSW8" else is_itself.all()  # a graph may lose a vector
    assert np.allclose(found.distances[is_itself, 0], 0, atol=1e-4)
    assert (len(index), index.dimension) == (3000, 32)
    assert repr(index) == f"VectorIndex({string!r}, dimension=32, num_vectors=3000)"


@pytest.mark.slow
@pytest.mark.parametrize("string", STRINGS)
def test_the_same_blocks_give_the_same_bits_on_any_number_of_threads(string, trained, vectors, tmp_path):
    index = trained[string]
    codes = [index.encode(vectors, num_threads=threads) for threads in (1, 3)]
    assert codes[0].tobytes() == codes[1].tobytes()
    assert codes[0].shape == (3000, index.code_bytes)
    for number in range(2):
        with PendingFile(tmp_path / str(number)) as file:
            index.assemble([codes[number]]).write(file)
    assert (tmp_path / "0").read_bytes() == (tmp_path / "1").read_bytes()
    full = VectorIndex.open(tmp_path / "0", string=string, dimension=32, num_vectors=3000)
    found = [full.search(vectors[:2500], 10, num_threads=threads) for threads in (1, 3)]
    assert found[0].ids.tobytes() == found[1].ids.tobytes()
    assert found[0].distances.tobytes() == found[1].distances.tobytes()


CHUNK_DOCUMENTS = np.array([[0, 7], [0, 7], [0, 8], [1, 7], [1, 9]], dtype=np.uint32)


def left_of(neighbors, own, *, groups=None, num_saved=3, chunk_documents=CHUNK_DOCUMENTS):
    neighbors = np.array(neighbors, dtype=np.int64)
    groups = np.arange(len(neighbors)) if groups is None else np.array(groups)
    own = np.array(own, dtype=np.int64).reshape(-1, 3)
    found = without_own_documents(neighbors, chunk_documents, groups=groups, own_documents=own, num_saved=num_saved)
    assert found.dtype == np.int64
    return found.tolist()


def test_a_sample_may_have_several_documents_and_several_chunks():
    own = [(5, 0, 7), (5, 1, 9), (6, 0, 8), (5, 0, 7)]
    found = left_of([[0, 1, 2, 3, 4]] * 3, own, groups=[5, 6, 5], num_saved=4)
    assert found == [[2, 3, -1, -1], [0, 1, 3, 4], [2, 3, -1, -1]]


def test_missing_neighbors_stay_missing():
    assert left_of([[-1, -1], [-1, 4]], [(0, 1, 9)], num_saved=1) == [[-1], [4]]
    assert left_of([[-1, -1]], [], chunk_documents=CHUNK_DOCUMENTS[:0], num_saved=1) == [[-1]]
    assert left_of(np.empty((0, 3)), [(0, 0, 7)]) == []


@given(st.data(), st.integers(1, 6), st.integers(1, 8))
def test_what_is_left_is_that_of_the_slow_twin(data, num_saved, num_found):
    chunk_documents = data.draw(arrays(np.uint32, (12, 2), elements=st.integers(0, 3)))
    neighbors = data.draw(arrays(np.int64, (7, num_found), elements=st.integers(-1, 11)))
    groups = data.draw(arrays(np.int64, 7, elements=st.integers(0, 3)))
    own = data.draw(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 3)), max_size=9))
    expected = []
    for row, group in zip(neighbors.tolist(), groups.tolist(), strict=True):
        left = [i for i in row if i >= 0 and (group, *chunk_documents[i].tolist()) not in own][:num_saved]
        expected.append(left + [-1] * (num_saved - len(left)))
    found = left_of(neighbors, own, groups=groups, num_saved=num_saved, chunk_documents=chunk_documents)
    assert found == expected


def distances_of(queries, vectors):
    """Returns all squared distances, in double precision."""
    return ((queries[:, None].astype(np.float64) - vectors[None].astype(np.float64)) ** 2).sum(axis=2)


@pytest.mark.slow
def test_exact_neighbors_are_the_nearest(rng):
    vectors = rng.standard_normal((330, 8)).astype(np.float32)
    queries = rng.standard_normal((50, 8)).astype(np.float32)
    found = exact_neighbors(queries, vectors, 5)
    expected = np.sort(distances_of(queries, vectors), axis=1)[:, :5]
    assert np.allclose(found.distances, expected, rtol=1e-5, atol=1e-5)
    assert np.allclose(np.take_along_axis(distances_of(queries, vectors), found.ids, axis=1), expected, atol=1e-4)


BOOKS = [letters("abcdefghi"), letters("zzzzab"), letters("hello")]
SETTINGS = RetroBuildSettings(
    data=((1.0, "books"),),
    sequence_length=8,
    sizes=(None, None, None),
    split="100,0,0",
    index="Flat",
    num_index_chunks=3,
    block_size=4,
    document_block_size=2,
)


class Forbidden(LetterEmbedder):
    """Is never to be asked."""

    def embed(self, texts, /):
        raise AssertionError


def made(folder: Path, documents: list[list[int]] = BOOKS, **options) -> tuple[RetroProject, OutputManifest]:
    project = project_of(folder, books=documents)
    return project, build_database(project, maker(), SETTINGS, num_processes=1, **options)


def build(project: RetroProject, database: OutputManifest, settings: RetroBuildSettings = SETTINGS, **options):
    chunks = ChunkMaker(maker().tokenizer, options.pop("embedder", LetterEmbedder()), 0, 4)
    return build_index(project, chunks, settings, database, num_processes=1, **options)


@pytest.mark.slow
def test_an_index_holds_the_vectors_of_all_chunks_in_order(tmp_path: Path):
    project, database = made(tmp_path)
    manifest = build(project, database)
    texts = ["abcd", "efgh", "i", "ab", "hell", "o"]
    index = VectorIndex.open(filled_path(project, "Flat"), string="Flat", dimension=16, num_vectors=len(texts))
    found = index.search(LetterEmbedder().embed(texts), 1)
    assert found.ids[:, 0].tolist() == list(range(6))
    assert manifest.counts == {"vectors": 6}
    assert len(manifest.blocks) == 2
    assert sorted(os.listdir(project.index_folder("faiss-par-add", "Flat"))) == [
        "added.json",
        "added_1.000_1.000.faissindex",
        "empty.json",
        "empty_1.000.faissindex",
    ]
    assert build(project, database, embedder=Forbidden()) == manifest
