"""What is most like a document: literal cases, a slow twin, and the same from the index of a project."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.retro.making import EOD, LetterEmbedder, LetterTokenizer, letters, maker, project_of
from tests.support import write_corpus, write_sentences

from tokenloom.errors import ConfigError
from tokenloom.retro.build import RetroBuildSettings, build_retro
from tokenloom.retro.document_neighbors import neighbors_in_pair, neighbors_in_project
from tokenloom.retro.pair_vectors import open_pair_vectors
from tokenloom.retro.project import RetroProject

SETTINGS = RetroBuildSettings(
    data=((1.0, "books"), (1.0, "web")),
    sequence_length=8,
    sizes=(4, None, None),
    split="100,0,0",
    chunk_length=4,
    index="Flat",
    num_index_chunks=4,
    num_neighbors=2,
    num_searched=20,
)


def test_the_document_that_covers_most_of_it_is_first(tmp_path: Path):
    prefix = write_corpus(tmp_path / "corpus", map(letters, ["abcdefgh", "mmmm", "abcdefgh", "abcdnnnn", "zzzz"]))
    found = neighbors_in_pair(open_pair_vectors(prefix, maker()), 0, k=2)
    assert [(each.document, each.num_chunks) for each in found.documents] == [(2, 2), (3, 2)]
    first = found.documents[0]
    assert first.similarity == pytest.approx(1)
    assert (first.own.start, first.nearest.chunk.start) == (0, 0)
    assert (first.own.text, first.nearest.chunk.text) == ("abcd", "abcd")
    assert found.documents[1].nearest.similarity == pytest.approx(1)
    assert found.documents[1].similarity < 0.9
    assert (found.num_chunks, found.num_searched, found.chunks) == (2, 7, ())


def test_the_last_document_may_be_counted_from_the_end(tmp_path: Path):
    prefix = write_corpus(tmp_path / "corpus", map(letters, ["abcd", "abcd", "mmmm"]))
    vectors = open_pair_vectors(prefix, maker())
    assert neighbors_in_pair(vectors, -1, k=1) == neighbors_in_pair(vectors, 2, k=1)
    with pytest.raises(IndexError, match=r"document 3 of `.*corpus` was asked for, but it has 3"):
        neighbors_in_pair(vectors, 3, k=1)


def test_empty_documents_are_counted(tmp_path: Path):
    prefix = write_sentences(tmp_path / "corpus", [[], [letters("abcd")], [], [letters("abcd")], [letters("mmmm")]])
    vectors = open_pair_vectors(prefix, maker())
    found = neighbors_in_pair(vectors, 1, k=2)
    assert [each.document for each in found.documents] == [3, 4]
    assert found.documents[0].nearest.chunk.document == 3
    assert found.documents[0].own.document == 1
    assert neighbors_in_pair(vectors, 2, k=2).documents == ()


def test_empty_documents_of_a_project_are_counted(tmp_path: Path):
    made = project_of(tmp_path, web=[letters("mmmm"), letters("nnnn")])
    prefix = write_sentences(made.data_prefix("books"), [[], [letters("abcd")], [], [letters("abcd")]])
    build_retro(made.folder, SETTINGS, tokenizer=LetterTokenizer(), embedder=LetterEmbedder())
    found = neighbors_in_project(RetroProject(made.folder), prefix, 1, maker(), k=2)
    assert [(each.prefix, each.document) for each in found.documents] == [(prefix, 3), (made.data_prefix("web"), 0)]
    assert neighbors_in_project(RetroProject(made.folder), prefix, 0, maker(), k=2).documents == ()


@pytest.mark.parametrize("texts", [["zz"], ["ab"], ["ab", "zz"]])
def test_what_is_alone_has_no_neighbors(tmp_path: Path, texts: list[str]):
    vectors = open_pair_vectors(write_corpus(tmp_path / "corpus", map(letters, texts)), maker())
    assert neighbors_in_pair(vectors, 0, k=3).documents == ()
    assert all(not each.neighbors for each in neighbors_in_pair(vectors, 0, k=3, of_chunks=True).chunks)


def test_chunks_are_the_nearest_of_other_documents(tmp_path: Path, rng: np.random.Generator):
    documents = [[*rng.integers(1, 26, rng.integers(1, 25)).tolist(), EOD] for _ in range(30)]
    vectors = open_pair_vectors(write_corpus(tmp_path / "corpus", documents), maker())
    cosines = vectors.vectors.astype(np.float64) @ vectors.vectors.astype(np.float64).T
    for document in (0, 7, 29):
        found = neighbors_in_pair(vectors, document, k=4, of_chunks=True)
        others = np.flatnonzero(vectors.table[:, 1] != document)
        assert len(found.chunks) == len(vectors.rows_of(document))
        for row, of_chunk in zip(vectors.rows_of(document), found.chunks, strict=True):
            nearest = np.sort(cosines[row, others])[::-1][:4]
            assert np.allclose([each.similarity for each in of_chunk.neighbors], nearest, atol=1e-5)
            assert document not in [each.chunk.document for each in of_chunk.neighbors]


def test_a_project_answers_from_its_index_and_leaves_the_document_out(tmp_path: Path):
    books, web = map(letters, ["abcdefgh", "ponm", "bcda"]), map(letters, ["abcdefgh", "dcba"])
    made = project_of(tmp_path, books=list(books), web=list(web))
    build_retro(made.folder, SETTINGS, tokenizer=LetterTokenizer(), embedder=LetterEmbedder())
    prefix, said = made.data_prefix("books"), []
    found = neighbors_in_project(made, prefix, 0, maker(), k=2, notice=said.append)
    [web_prefix] = {each.prefix for each in found.documents[:1]}
    assert web_prefix == made.data_prefix("web")
    assert (found.documents[0].document, found.documents[0].similarity) == (0, pytest.approx(1))
    assert len(said) == 1
    assert "7 chunks" in said[0]
    chunks = neighbors_in_project(made, prefix, 0, maker(), k=7, of_chunks=True).chunks
    places = {(each.chunk.prefix, each.chunk.document) for of_chunk in chunks for each in of_chunk.neighbors}
    assert places == {(prefix, 1), (prefix, 2), (web_prefix, 0), (web_prefix, 1)}
    similar = [[each.similarity for each in of_chunk.neighbors] for of_chunk in chunks]
    assert similar == [sorted(each, reverse=True) for each in similar]


def test_a_pair_outside_a_project_is_compared_with_all_of_it(tmp_path: Path):
    made = project_of(tmp_path, books=[letters("abcdefgh"), letters("ponm")])
    settings = replace(SETTINGS, data=((1.0, "books"),), num_index_chunks=2)
    build_retro(made.folder, settings, tokenizer=LetterTokenizer(), embedder=LetterEmbedder(), tasks=["index-build"])
    other = write_corpus(tmp_path / "other", [letters("abcd")])
    found = neighbors_in_project(made, other, 0, maker(), index="Flat", k=1)
    assert [(each.prefix, each.document) for each in found.documents] == [(made.data_prefix("books"), 0)]
    with pytest.raises(ConfigError, match=r"faissindex` was made with chunk_length 4, and is asked with 8"):
        neighbors_in_project(made, other, 0, maker(8), k=1)
    os.remove(made.config_path)
    with pytest.raises(ConfigError, match=r"expected the index of the project `.*` in its settings, found none"):
        neighbors_in_project(RetroProject(made.folder), other, 0, maker(), k=1)
