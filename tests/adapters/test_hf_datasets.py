"""Hugging Face datasets of documents and samples, and as input."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.adapters.frameworks import samples_of
from tests.adapters.libraries import library
from tests.indexed.pairs import pair_bytes, write_pair

from tokenloom import preprocess_corpus
from tokenloom.adapters import documents_dataset, samples_dataset, save_for_preprocessing
from tokenloom.errors import ConfigError, OutputExistsError
from tokenloom.preprocess.settings import CorpusSettings
from tokenloom.tokenizers.plain import ByteTokenizer

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def datasets() -> Any:
    return library("datasets")  # not at the top: the import takes seconds


TEXTS = ["one", "two words", "", "four"]


def preprocess(source: str | Path, output: Path) -> tuple[bytes, bytes]:
    preprocess_corpus([source], output, ByteTokenizer(), CorpusSettings(), num_processes=1)
    return pair_bytes(f"{output}_text_document")


def as_lines(datasets: Any, folder: Path) -> tuple[bytes, bytes]:
    datasets.Dataset.from_dict({"text": TEXTS}).to_json(folder / "lines.jsonl")
    return preprocess(folder / "lines.jsonl", folder / "lines")


def test_documents(datasets: Any, tmp_path: Path):
    prefix = write_pair(tmp_path / "a", [[list(range(number))] for number in range(5)], dtype=np.uint16)
    view = documents_dataset(prefix, tokenizer="null:1000")
    assert view[3] == {"document": 3, "tokens": [0, 1, 2], "text": "0 1 2"}
    assert view.features["tokens"].feature.dtype == "uint16"
    assert view.filter(lambda row: len(row["tokens"]) > 2)["document"][:] == [3, 4]
    assert not view.data.column("tokens").chunk(0).values.buffers()[1].is_mutable


def test_samples(datasets: Any, tmp_path: Path, rng: np.random.Generator):
    dataset = samples_of(tmp_path, rng)
    view = samples_dataset(dataset)
    batch = dataset.batch(range(len(dataset)))
    assert (len(view), view[5]["sample"], view[0]["input_ids"].dtype) == (len(dataset), 5, np.int32)
    chosen = [7, 3, 3]
    for rows in (view[chosen], pickle.loads(pickle.dumps(view))[chosen]):
        assert np.array_equal(rows["input_ids"], batch["tokens"][chosen])
        assert np.array_equal(rows["labels"], batch["labels"][chosen])
    shuffled = view.shuffle(seed=1)
    assert np.array_equal(shuffled[0]["input_ids"], batch["tokens"][shuffled[0]["sample"]])
    assert len(samples_dataset(dataset, num_samples=3)) == 3


def test_a_dataset_in_memory_is_preprocessed(datasets: Any, tmp_path: Path):
    dataset = datasets.Dataset.from_dict({"text": TEXTS})
    folder = save_for_preprocessing(dataset, tmp_path / "saved")
    assert preprocess(folder, tmp_path / "a") == as_lines(datasets, tmp_path)
    with pytest.raises(OutputExistsError, match="does not contain this dataset"):
        save_for_preprocessing(datasets.Dataset.from_dict({"text": ["other"]}), tmp_path / "saved")


def test_a_dataset_with_several_splits(datasets: Any, tmp_path: Path):
    splits = datasets.DatasetDict({name: datasets.Dataset.from_dict({"text": TEXTS}) for name in ("train", "test")})
    with pytest.raises(ConfigError, match=r"must be a `datasets\.Dataset`, got DatasetDict\nhint: pass one split"):
        save_for_preprocessing(splits, tmp_path / "saved")
    splits.save_to_disk(tmp_path / "all")
    with pytest.raises(ConfigError, match="has several splits: train, test"):
        preprocess(tmp_path / "all", tmp_path / "a")
    assert preprocess(tmp_path / "all" / "test", tmp_path / "b") == as_lines(datasets, tmp_path)
