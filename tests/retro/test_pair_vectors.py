"""The vectors of a pair's chunks: what they are of, that they are kept, and when they are made again."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from tests.retro.making import DIMENSION, EOD, LetterEmbedder, letters, maker
from tests.support import random_documents, write_corpus

from tokenloom.errors import ConfigError
from tokenloom.retro.chunk_maker import as_chunk_maker
from tokenloom.retro.pair_vectors import of_length_1, open_pair_vectors

TEXTS = ["abcdef", "", "zzzz", "bc", "zzzzab"]


def pair(folder: Path) -> str:
    return write_corpus(folder / "corpus", [letters(text) for text in TEXTS])


def test_chunks_have_vectors_of_length_1_and_documents_the_direction_of_their_mean(tmp_path: Path):
    found = open_pair_vectors(pair(tmp_path), maker())
    assert found.table.tolist() == [[0, 0, 0, 4, 4], [0, 0, 4, 6, 2], [0, 3, 0, 2, 2], [0, 4, 4, 6, 2]]
    texts = ["abcd", "ef", "bc", "ab"]
    assert found.texts(np.arange(4)) == texts
    assert np.array_equal(found.vectors, of_length_1(LetterEmbedder().embed(texts)))
    assert np.allclose(np.linalg.norm(found.vectors, axis=1), 1)
    mean = 4 * found.vectors[0] + 2 * found.vectors[1]
    assert np.allclose(found.documents[0], mean / np.linalg.norm(mean))
    assert found.documents[[1, 2]].tolist() == [[0] * DIMENSION] * 2
    assert np.allclose(found.documents[3], found.vectors[2])
    assert [found.rows_of(document) for document in range(5)] == [
        range(2),
        range(2, 2),
        range(2, 2),
        range(2, 3),
        range(3, 4),
    ]


def test_what_was_made_is_read_and_what_is_of_other_data_is_made_again(tmp_path: Path):
    said: list[str] = []
    prefix = pair(tmp_path)
    first = open_pair_vectors(prefix, maker(), notice=said.append)
    made = os.stat(os.path.join(first.folder, "vectors.hdf5"))
    open_pair_vectors(prefix, maker(), notice=said.append)
    assert os.stat(os.path.join(first.folder, "vectors.hdf5")).st_ino == made.st_ino
    write_corpus(tmp_path / "corpus", [letters("abcabc")])
    again = open_pair_vectors(prefix, maker(), notice=said.append)
    assert (len(again), len(first)) == (2, 4)
    folder = f"{prefix}.neighbors/letters-4"
    by = "chunks of 4 tokens, embedded by `letters`"
    assert said == [
        f"making `{folder}`: {by}, of 5 documents; it is kept, to be used again",
        f"reading `{folder}`: {by}",
        f"making `{folder}`: {by}, of 1 documents, in place of those of other data or settings; it is kept, to be "
        "used again",
    ]
    assert sorted(os.listdir(f"{prefix}.neighbors")) == ["letters-4"]


def test_blocks_make_what_one_block_makes(tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch):
    documents = random_documents(rng, count=40, longest=30, vocab_size=26)
    prefix = write_corpus(tmp_path / "corpus", [[*(document % 26 + 1), EOD] for document in documents])
    whole = open_pair_vectors(prefix, maker())
    monkeypatch.setattr("tokenloom.retro.pair_vectors._CHUNKS_OF_BLOCK", 20)
    cut = open_pair_vectors(prefix, maker(), cache=str(tmp_path / "cache"))
    assert cut.folder == f"{tmp_path}/cache/corpus.neighbors/letters-4"
    assert np.array_equal(whole.table, cut.table)
    assert np.array_equal(whole.vectors, cut.vectors)
    assert np.array_equal(whole.documents, cut.documents)


def test_what_was_stopped_and_is_of_other_data_is_given_up_on_purpose_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    prefix = pair(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr("tokenloom.retro.pair_vectors._published", stop)
        with pytest.raises(KeyboardInterrupt):
            open_pair_vectors(prefix, maker())
    write_corpus(tmp_path / "corpus", [letters("abc")])
    with pytest.raises(ConfigError, match=r"letters-4.job` belongs to an unfinished job with other settings"):
        open_pair_vectors(prefix, maker())
    assert len(open_pair_vectors(prefix, maker(), restart=True)) == 1
    assert os.listdir(f"{prefix}.neighbors") == ["letters-4"]


@pytest.mark.parametrize("texts", [[], ["", "zz"]])
def test_a_pair_that_says_nothing_has_no_chunks(tmp_path: Path, texts: list[str]):
    prefix = write_corpus(tmp_path / "corpus", [letters(text) for text in texts])
    found = open_pair_vectors(prefix, maker())
    assert (len(found), found.documents.shape) == (0, (len(texts), DIMENSION))


def test_a_pair_in_object_storage_needs_a_folder():
    with pytest.raises(ConfigError, match=r"expected a folder for the vectors of `s3://bucket/corpus`, which is in ob"):
        open_pair_vectors("s3://bucket/corpus", maker())


def test_a_tokenizer_without_an_end_of_documents_is_refused():
    with pytest.raises(ConfigError, match="expected a tokenizer with an end-of-document token and `detokenize`"):
        as_chunk_maker(object(), LetterEmbedder(), chunk_length=4)
