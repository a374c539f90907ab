"""Texts of samples, splits restricted to those of preprocessing, and the names of Megatron."""

import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from retro_projects import CHUNK_LENGTH, write_neighbors, write_project
from tests.support import EOD, StandInTokenizer, make_config, make_dataset, random_documents, write_corpus

from tokenloom.datasets.splits import Split
from tokenloom.errors import ConfigError
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from tokenloom_retro import megatron
from tokenloom_retro.megatron.query import RetroDataset, get_neighbor_dir
from tokenloom_retro.multi_split import MultiSplitGPTDataset, MultiSplitGPTDatasetConfig

DOCUMENTS = [[1, 2, 3, EOD], [4, 5, EOD], [], [6, 7, 8, 10, 11, EOD]]


def make_settings(prefix=None, **changes):
    settings = {"kind": MultiSplitGPTDatasetConfig, "return_document_ids": False, "split_preprocessing": "1,0,0"}
    return make_config(prefix, **(settings | changes))


def make_texts(prefix, *, num_samples=None, split=Split.train, documents=None, **changes):
    pair = IndexedDataset(prefix)
    indices = np.arange(len(pair)) if documents is None else np.array(documents)
    return MultiSplitGPTDataset(pair, prefix, indices, num_samples, split, make_settings(prefix, **changes))


@pytest.fixture
def prefix(tmp_path):
    return write_corpus(tmp_path / "corpus", DOCUMENTS)


def test_a_text_is_a_sample_and_the_token_after_it(prefix):
    texts = make_texts(prefix, documents=[0, 1])
    sample = texts[0]
    assert (list(sample), sample["text"].dtype, sample["text"].tolist()) == (["text"], np.int64, [1, 2, 3, EOD, 4])
    assert texts.batch([0, 0])["text"].tolist() == [[1, 2, 3, EOD, 4]] * 2


def test_documents_are_named_with_empty_ones(prefix):
    texts = make_texts(prefix, sequence_length=11, num_samples=1, return_document_ids=True)
    sample = texts[0]
    order = texts.document_index.tolist()
    assert sample["text"].tolist() == [token for document in order for token in DOCUMENTS[document]][:12]
    assert sample["document_ids"].dtype == np.int64
    assert sample["document_ids"].tolist() == order


def test_texts_are_those_of_gpt_samples(tmp_path, rng):
    documents = random_documents(rng, count=30, longest=15, vocab_size=90)
    prefix = write_corpus(tmp_path / "corpus", documents)
    length, extra = int(rng.integers(1, 12)), bool(rng.integers(2))
    changes = {"sequence_length": length, "add_extra_token_to_sequence": extra, "random_seed": int(rng.integers(99))}
    texts, samples = make_texts(prefix, num_samples=50, **changes), make_dataset(prefix, num_samples=50, **changes)
    assert len(texts) == len(samples)
    found, expected = texts.batch(range(len(texts)))["text"], samples.batch(range(len(texts)))
    assert found.shape == (len(texts), length + extra)
    assert (found[:, :length] == expected["tokens"]).all()
    if extra:
        assert (found[:, 1:] == expected["labels"]).all()
    position = int(rng.integers(len(texts)))
    assert (found[position] == texts[position]["text"]).all()


@pytest.mark.parametrize(("pad", "filler"), [(None, -1), (3, 3), (EOD, EOD)])
@pytest.mark.filterwarnings("ignore:pad id 9 is also another special token")
def test_short_texts_are_padded(prefix, pad, filler):
    changes = {"drop_last_partial_validation_sequence": False, "tokenizer": StandInTokenizer(pad=pad)}
    texts = make_texts(prefix, split=Split.valid, sequence_length=30, **changes)
    assert texts[0]["text"][-18:].tolist() == [filler] * 18
    assert texts.batch([0])["text"].tolist() == [texts[0]["text"].tolist()]
    named = make_texts(prefix, split=Split.valid, sequence_length=30, return_document_ids=True, **changes)
    assert named[0]["text"].tolist() == texts[0]["text"].tolist()


@pytest.mark.parametrize(
    ("split", "preprocessing", "matrix"),
    [
        ("8,2,0", "8,2,0", [(0, 0.8), (0.8, 1.0), None]),
        ("9,1,0", "8,2,0", [(0, 0.8), (0.9, 1.0), None]),
        ((8, 2), "9,1,0", [(0, 0.8), (0.9, 1.0), None]),
        ("1,0,0", "0,1,0", [None, None, None]),
    ],
)
def test_a_split_has_the_documents_of_both_splits(split, preprocessing, matrix):
    settings = make_settings("corpus", split=split, split_preprocessing=preprocessing)
    assert settings.split_matrix == matrix


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"return_document_ids": None}, "`return_document_ids` is required, got None"),
        ({"blend_per_split": [None, None, ["a"]]}, "`blend_per_split` is not supported: neighbors need `split`"),
    ],
)
def test_wrong_settings_are_errors(changes, message):
    with pytest.raises(ConfigError, match=message):
        make_settings(**{"blend": None, "split": None, **changes})


def test_the_preparing_split_is_part_of_the_key(prefix):
    texts = make_texts(prefix, split_preprocessing=(1, 0, 0))
    assert list(texts.unique_identifiers)[-1] == "split_preprocessing"
    assert texts.unique_identifiers["split_preprocessing"] == "1,0,0"
    assert texts.config.preprocessing_matrix == [(0, 1.0), None, None]
    assert make_texts(prefix, return_document_ids=True).unique_description == texts.unique_description


THEIRS = {"kind": megatron.MultiSplitGPTDatasetConfig, "sequence_length": 3, "return_document_ids": True}


def build(prefix, kind=megatron.MultiSplitGPTDataset, **changes):
    config = make_settings(prefix, **(THEIRS | changes))
    return BlendedMegatronDatasetBuilder(kind, [6, 0, 0], lambda: True, config).build()[0]


def test_a_custom_query_is_called(prefix):
    class Marked(megatron.MultiSplitGPTDataset):
        def _query_document_sample_shuffle_indices(self, idx):
            text, documents, *_ = super()._query_document_sample_shuffle_indices(idx)
            return text + 100, documents

    marked, plain = build(prefix, Marked), build(prefix)
    assert marked[1]["text"].tolist() == (plain[1]["text"] + 100).tolist()
    assert build(prefix, Marked, return_document_ids=False)[1]["text"].tolist() == marked[1]["text"].tolist()


def test_hooks_of_the_reference_are_called(prefix):
    class Counted(megatron.MultiSplitGPTDataset):
        def _get_num_epochs(self, num_tokens_per_epoch):
            asked.append(num_tokens_per_epoch)
            return super()._get_num_epochs(num_tokens_per_epoch)

    asked = []
    assert len(build(prefix, Counted).document_index) == 2 * len(DOCUMENTS)
    assert set(asked) == {13}


def test_a_program_written_for_the_reference_runs(tmp_path):
    documents = [[number, 2, 3, 4, 5, 6, EOD] for number in range(10, 40)]
    project = write_project(tmp_path / "project", {"corpus": documents, "more": documents})
    blend = [os.path.join(project, "data", prefix) for prefix in ("corpus", "more")], [2.0, 1.0]
    changes = {"blend": blend, "split": "1,0,0", "sequence_length": 2 * CHUNK_LENGTH, "return_document_ids": False}
    config = make_settings(**(THEIRS | changes))
    builder = BlendedMegatronDatasetBuilder(megatron.MultiSplitGPTDataset, [10, 0, 0], lambda: True, config)
    train, valid, test = builder.build()
    folder = get_neighbor_dir(project, "train", train)
    write_neighbors(Path(folder), np.arange(60).reshape(20, 3), block_size=7)
    retro = SimpleNamespace(
        retro_project_dir=project,
        retro_chunk_length=CHUNK_LENGTH,
        retro_block_size=7,
        retro_neighbor_dirs={"train": os.path.basename(folder)},
        retro_num_neighbors=2,
        retro_num_retrieved_chunks=2,
        retro_verify_neighbor_count=True,
    )
    samples = {"train": (train, 10), "valid": (valid, 0), "test": (test, 0)}
    lengths = {"sample_length": 2 * CHUNK_LENGTH, "eod_token_id": EOD}
    dataset, *others = megatron.get_retro_datasets(config=retro, gpt_datasets=samples, **lengths)
    assert isinstance(dataset, RetroDataset)
    assert others == [None, None]
    batch = next(iter(torch.utils.data.DataLoader(dataset, batch_size=5)))
    assert list(batch) == ["dataset_id", "text", "neighbor_chunks", "neighbor_tokens"]
    assert batch["neighbor_chunks"][1].tolist() == [[[6, 7], [7, -1]], [[9, -1], [10, 11]]]
    assert batch["neighbor_tokens"].shape == (5, 2, 2, 2 * CHUNK_LENGTH)
