"""A pair in another order: documents, and what lies beside them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.preprocess.corpus import write_lines
from tests.support import random_documents, write_corpus, write_sentences

from tokenloom import CorpusSettings, load_tokenizer, preprocess_corpus
from tokenloom.errors import ConfigError, OutputExistsError
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.document_hashes import read_document_hashes
from tokenloom.indexed.manifest.check import manifest_of
from tokenloom.indexed.origins import read_origins
from tokenloom.indexed.verify import verify_dataset
from tokenloom.indexed.writing.reordered import write_reordered


def test_documents_stand_in_the_order(tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tokenloom.indexed.writing.reordered._TOKENS_AT_ONCE", 20)
    monkeypatch.setattr("tokenloom.indexed.writing.reordered._ROWS_AT_ONCE", 7)
    documents = random_documents(rng, count=30, longest=30, vocab_size=100)
    prefix, order = write_corpus(tmp_path / "corpus", documents), rng.permutation(30)
    made = write_reordered(prefix, order, f"{tmp_path}/new")
    assert made.num_documents == 30
    for place, document in enumerate(order.tolist()):
        assert np.array_equal(made[place], documents[document])
    assert made.dtype == IndexedDataset(prefix).dtype


def test_origins_hashes_and_manifest_go_with_their_documents(tmp_path: Path, rng: np.random.Generator):
    texts = [f"text number {number}" for number in range(40)]
    path = write_lines(tmp_path / "corpus.jsonl", [{"text": text} for text in texts])
    settings = CorpusSettings(append_eod=True, document_hashes=True)
    preprocess_corpus(path, tmp_path / "corpus", load_tokenizer("byte"), settings, num_processes=1, num_workers=1)
    prefix, order = f"{tmp_path}/corpus_text_document", rng.permutation(40)
    made = write_reordered(prefix, order, f"{tmp_path}/new")
    origins = read_origins(made.path_prefix)
    assert origins.locate(np.arange(40))[1].tolist() == (order + 1).tolist()
    assert np.array_equal(read_document_hashes(made.path_prefix, is_checked=True), read_document_hashes(prefix)[order])
    manifest = manifest_of(made)
    assert manifest.tokenizer == manifest_of(IndexedDataset(prefix)).tokenizer
    assert not list(verify_dataset(made.path_prefix).problems)


@pytest.mark.parametrize("order", [[0, 1], [0, 1, 1], [0, 1, 3], [-1, 0, 1], [0, 1, 2, 2]])
def test_each_document_must_come_once(tmp_path: Path, order: list[int]):
    prefix = write_corpus(tmp_path / "corpus", [[1], [2], [3]])
    with pytest.raises(ConfigError, match=r"expected each of the 3 documents of `.*corpus` once in the order"):
        write_reordered(prefix, np.array(order), f"{tmp_path}/new")
    assert not list(tmp_path.glob("new*"))


def test_empty_documents_stay(tmp_path: Path):
    prefix = write_sentences(tmp_path / "corpus", [[[1]], [], [[2, 3]], []])
    made = write_reordered(prefix, np.array([3, 2, 1, 0]), f"{tmp_path}/new")
    assert [tokens.tolist() for tokens in made[:]] == [[2, 3], [1]]
    assert made.document_indices.tolist() == [0, 0, 1, 1, 2]


def test_documents_of_several_sequences_are_refused(tmp_path: Path):
    prefix = write_sentences(tmp_path / "corpus", [[[1], [2]]])
    with pytest.raises(ConfigError, match="expected documents of one sequence each, found one of 2"):
        write_reordered(prefix, np.array([0]), f"{tmp_path}/new")


def test_what_is_there_is_replaced_on_purpose_only(tmp_path: Path):
    prefix = write_corpus(tmp_path / "corpus", [[1], [2]])
    write_reordered(prefix, np.array([1, 0]), f"{tmp_path}/new")
    with pytest.raises(OutputExistsError):
        write_reordered(prefix, np.array([0, 1]), f"{tmp_path}/new")
    made = write_reordered(prefix, np.array([0, 1]), f"{tmp_path}/new", overwrite=True)
    assert made[0].tolist() == [1]
    with pytest.raises(ConfigError):
        write_reordered(prefix, np.array([1, 0]), prefix, overwrite=True)
