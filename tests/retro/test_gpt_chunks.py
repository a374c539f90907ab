"""Samples as chunks: one by one as the reference gives them, and many at once."""

from __future__ import annotations

import numpy as np
import pytest
from tests.retro.projects import CHUNK_LENGTH, split_datasets, write_project
from tests.support import EOD, make_config, random_documents, write_corpus

from tokenloom.datasets.multi_split import MultiSplitGPTDataset, MultiSplitGPTDatasetConfig
from tokenloom.datasets.splits import Split
from tokenloom.errors import ConfigError
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.retro.gpt_chunks import (
    GPTChunkDataset,
    build_gpt_chunk_datasets_from_gpt_datasets,
    get_num_chunks_per_sample,
)


@pytest.fixture(params=[1, 3], ids=["one pair", "a blend"])
def samples(request, tmp_path, rng):
    corpora = {
        f"corpus{number}": random_documents(rng, count=20, longest=20, vocab_size=90) for number in range(request.param)
    }
    project = write_project(tmp_path / "project", corpora)
    return split_datasets(project, list(corpora), [30, 0, 0], return_document_ids=True)["train"][0]


def test_chunks_are_pieces_of_samples(samples):
    chunks = GPTChunkDataset(samples, 2 * CHUNK_LENGTH, CHUNK_LENGTH)
    assert (chunks.n_chunks_per_sample, chunks.n_samples) == (2, len(samples))
    assert len(chunks) == chunks.n_chunks == 2 * len(samples)
    for number in range(len(chunks)):
        sample, start = samples[number // 2], number % 2 * CHUNK_LENGTH
        assert chunks[number]["text"].tolist() == sample["text"][start : start + CHUNK_LENGTH].tolist()
        assert chunks[number]["doc_ids"].tolist() == sample["document_ids"].tolist()
    assert chunks[-1]["text"].tolist() == chunks[len(chunks) - 1]["text"].tolist()


def test_many_chunks_are_those_one_by_one(samples, rng):
    chunks = GPTChunkDataset(samples, 2 * CHUNK_LENGTH, CHUNK_LENGTH)
    ids = rng.integers(0, len(chunks), size=25)
    assert chunks.texts(ids).tolist() == [chunks[int(number)]["text"].tolist() for number in ids]
    assert chunks.texts([]).shape == (0, CHUNK_LENGTH)
    positions = ids // 2
    documents, offsets = chunks.documents_of(positions)
    for row, position in enumerate(positions.tolist()):
        sample = samples[position]
        number = int(sample.get("dataset_id", 0))
        expected = [[number, document] for document in sample["document_ids"].tolist()]
        assert documents[offsets[row] : offsets[row + 1]].tolist() == expected


def test_samples_of_another_class_are_asked_one_by_one():
    texts = [{"text": np.arange(9) + 10 * i, "document_ids": [i, i + 1]} for i in range(3)]
    chunks = GPTChunkDataset(texts, 8, 4)
    assert chunks.texts([5, 0]).tolist() == [[24, 25, 26, 27], [0, 1, 2, 3]]
    documents, offsets = chunks.documents_of(np.array([2, 0]))
    assert (documents.tolist(), offsets.tolist()) == ([[0, 2], [0, 3], [0, 0], [0, 1]], [0, 2, 4])


def test_documents_that_a_class_names_itself_are_asked_for(tmp_path):
    class Renamed(MultiSplitGPTDataset):
        def __getitem__(self, idx):
            return {**super().__getitem__(idx), "document_ids": np.array([7])}

    prefix = write_corpus(tmp_path / "corpus", [[1, 2, 3, 4, 5, EOD]])
    settings = make_config(
        prefix, kind=MultiSplitGPTDatasetConfig, return_document_ids=True, split_preprocessing="1,0,0"
    )
    samples = Renamed(IndexedDataset(prefix), prefix, np.arange(1), None, Split.train, settings)
    chunks = GPTChunkDataset(samples, 4, 2)
    assert chunks.documents_of(np.array([0]))[0].tolist() == [[0, 7]]
    assert chunks[1]["doc_ids"].tolist() == [7]


def test_samples_that_do_not_name_documents_are_told():
    chunks = GPTChunkDataset([{"text": np.arange(9)}], 8, 4)
    assert chunks.texts([0]).tolist() == [[0, 1, 2, 3]]
    for ask in (lambda: chunks[0], lambda: chunks.documents_of(np.array([0]))):
        with pytest.raises(ConfigError, match=r"`document_ids`, found .*\nhint: set `return_document_ids=True`"):
            ask()


def test_chunks_that_are_not_there_are_told():
    chunks = GPTChunkDataset([{"text": np.arange(9)}] * 2, 8, 4)
    for ask in (lambda: chunks[4], lambda: chunks[-5], lambda: chunks.texts([0, 4]), lambda: chunks.texts([-1])):
        with pytest.raises(IndexError, match=r"^chunk (4|-5|-1) of 2 samples was asked for, but they have 4$"):
            ask()


@pytest.mark.parametrize("lengths", [(8, 3), (8, 0), (0, 4), (8, -4), (3, 4)])
def test_a_sample_must_be_whole_chunks(lengths):
    with pytest.raises(ConfigError, match=r"chunk_length|sample_length|multiple of the chunk length"):
        get_num_chunks_per_sample(*lengths)
    assert get_num_chunks_per_sample(8, 4) == 2


def test_each_split_has_its_chunks_and_its_folder(tmp_path):
    project = write_project(tmp_path / "project", {"corpus": [[1, 2, 3, EOD]] * 30})
    datasets = split_datasets(project, ["corpus"], [10, 4, 0], split="2,1,0")
    parts = build_gpt_chunk_datasets_from_gpt_datasets(project, datasets, 8, CHUNK_LENGTH)
    assert list(parts) == ["train", "valid", "test"]
    assert parts["test"] is None
    samples = datasets["valid"][0]
    assert parts["valid"]["neighbor_dir"] == f"{project}/query/valid_{samples.unique_description_hash}"
    assert parts["valid"]["num_active_chunks"] == 8
    assert parts["valid"]["dataset"].sample_dataset is samples
    assert build_gpt_chunk_datasets_from_gpt_datasets(project, {"train": (None, 0)}, 8, 4) == {"train": None}
