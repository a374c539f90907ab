"""An index of vectors: trained, filled, searched."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from retro_making import LetterEmbedder, letters, maker, project_of

from tokenloom.storage.atomic import PendingFile
from tokenloom_retro.database_build import build_database
from tokenloom_retro.embedders import ChunkMaker
from tokenloom_retro.index_build import build_index, filled_path
from tokenloom_retro.settings import RetroBuildSettings
from tokenloom_retro.vector_index import VectorIndex

STRINGS = ["Flat", "IVF16,Flat", "OPQ4_16,IVF16_HNSW8,PQ4x4", "HNSW8"]


@pytest.fixture(scope="module")
def vectors():
    """Vectors in clusters, some of them equal."""
    rng = np.random.default_rng(7)
    centres = rng.standard_normal((40, 32))
    found = (centres[rng.integers(0, 40, 3000)] + 0.3 * rng.standard_normal((3000, 32))).astype(np.float32)
    found[100:150] = found[:50]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("string", STRINGS)
def test_the_same_blocks_give_the_same_bits_on_any_number_of_threads(string, vectors, tmp_path):
    index = VectorIndex.train(string, vectors[:300])
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
    def embed(self, texts, /):
        raise AssertionError


@pytest.mark.slow
def test_an_index_holds_the_vectors_of_all_chunks_in_order(tmp_path: Path):
    project = project_of(tmp_path, books=BOOKS)
    database = build_database(project, maker(), SETTINGS, num_processes=1)
    manifest = build_index(project, maker(), SETTINGS, database, num_processes=1)
    texts = ["abcd", "efgh", "i", "ab", "hell", "o"]
    index = VectorIndex.open(filled_path(project, "Flat"), string="Flat", dimension=16, num_vectors=len(texts))
    found = index.search(LetterEmbedder().embed(texts), 1)
    assert found.ids[:, 0].tolist() == list(range(6))
    assert manifest.counts == {"vectors": 6}
    assert len(manifest.blocks) == 2
    names = ["added.json", "added_1.000_1.000.faissindex", "empty.json", "empty_1.000.faissindex"]
    assert sorted(os.listdir(project.index_folder("faiss-par-add", "Flat"))) == names
    again = ChunkMaker(maker().tokenizer, Forbidden(), 0, 4)
    assert build_index(project, again, SETTINGS, database, num_processes=1) == manifest
