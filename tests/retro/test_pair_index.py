"""What vectors of a pair are searched with: nothing, or an index that is kept and made again with other vectors."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from tests.retro.making import EOD, maker
from tests.support import write_corpus

from tokenloom.retro.pair_index import open_pair_index
from tokenloom.retro.pair_vectors import PairVectors, open_pair_vectors
from tokenloom.retro.search import ExactIndex


def vectors_of(folder: Path, rng: np.random.Generator) -> PairVectors:
    documents = [[*rng.integers(1, 26, 8).tolist(), EOD] for _ in range(60)]
    return open_pair_vectors(write_corpus(folder / "corpus", documents), maker())


def test_few_comparisons_need_no_index_and_many_take_lists(
    tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
):
    vectors, said = vectors_of(tmp_path, rng), []
    exact = open_pair_index(vectors, num_queries=120, notice=said.append)
    assert isinstance(exact, ExactIndex)
    monkeypatch.setattr("tokenloom.retro.pair_index._MOST_COMPARED", 120 * 120 - 1)
    lists = open_pair_index(vectors, num_queries=120, notice=said.append)
    again = open_pair_index(vectors, num_queries=120, notice=said.append)
    queries = np.array(vectors.vectors)
    own = [index.search(queries, 1).distances[:, 0].max() for index in (exact, lists, again)]
    assert own[0] < 1e-6  # each is its own nearest
    assert own[1] == own[2] < 1e-2  # to a byte per number
    path = f"{vectors.folder}/chunks-IVF20,SQ8.faissindex"
    assert said == [
        "comparing with all 120 vectors, without an index",
        f"making `{path}`: index `IVF20,SQ8`, 16 lists of which are searched; it is kept, to be used again",
        f"reading `{path}`: index `IVF20,SQ8`, 16 lists of which are searched",
    ]


def test_an_index_of_other_vectors_is_made_again(tmp_path: Path, rng: np.random.Generator):
    said: list[str] = []
    for _ in range(2):
        index = open_pair_index(vectors_of(tmp_path, rng), num_queries=1, string="Flat", notice=said.append)
        assert len(index) == 120
    assert [words.split()[0] for words in said] == ["making", "making"]


def test_documents_have_an_index_of_their_own(tmp_path: Path, rng: np.random.Generator):
    vectors = vectors_of(tmp_path, rng)
    assert len(open_pair_index(vectors, num_queries=1, string="Flat", of_documents=True)) == 60
    assert len(open_pair_index(vectors, num_queries=1, string="exact", of_documents=True)) == 60
    assert os.path.exists(f"{vectors.folder}/documents-Flat.faissindex")
