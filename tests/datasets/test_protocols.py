"""Dataset protocols: all methods that other modules call are declared, and class hierarchies stay shallow."""

from __future__ import annotations

import numpy as np
from tests.support import make_dataset, write_corpus

import datasets
from tokenloom import BlendedDataset, ThreadLoader, build_dataloader
from tokenloom.datasets import protocols
from tokenloom.datasets.protocols import Announces, FillsBatches, KnowsLengths, KnowsSpans


def test_our_datasets_offer_what_is_written_down(tmp_path):
    dataset = make_dataset(write_corpus(tmp_path / "corpus", [[1, 2, 3, 9]] * 9), num_samples=8)
    blend = BlendedDataset([dataset], [8], None, dataset.config)
    for each in (dataset, blend):
        assert isinstance(each, FillsBatches)
        assert isinstance(each, Announces)
        assert hasattr(each, "verify_indices")
    assert isinstance(dataset, KnowsSpans)
    assert not isinstance(dataset, KnowsLengths)
    assert protocols.pair_of(dataset.dataset) is dataset.dataset
    assert not protocols.is_remote_dataset(dataset)


class Bare:
    """A user's class with only the required methods."""

    def __len__(self):
        return 12

    def __getitem__(self, idx):
        return {"number": np.array([idx])}


def test_a_dataset_of_another_library_is_loaded_whatever_its_batch_means():
    rows = datasets.Dataset.from_dict({"number": [[5], [6], [7], [8]]}).with_format("numpy")
    batches = [[3, 1], [0, 2]]
    for loader in (ThreadLoader(rows, batches), build_dataloader(rows, batches)):
        assert [np.asarray(batch["number"]).ravel().tolist() for batch in loader] == [[8, 6], [5, 7]]


def test_a_class_of_two_methods_is_loaded():
    batches = [[3, 1], [0, 2]]
    for loader in (ThreadLoader(Bare(), batches), build_dataloader(Bare(), batches)):
        assert [batch["number"].ravel().tolist() for batch in loader] == batches
