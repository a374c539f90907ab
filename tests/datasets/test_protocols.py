"""What may be asked of a dataset is written down, nothing else is asked, and the classes are few levels deep."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
from pathlib import Path

import numpy as np
import pytest
from tests.support import make_dataset, write_corpus

import datasets
import tokenloom
from tokenloom import BlendedDataset, MegatronDataset, ThreadLoader, build_dataloader
from tokenloom.datasets import protocols
from tokenloom.datasets.protocols import (
    Announces,
    ArraySamples,
    Batches,
    FillsBatches,
    FillsRows,
    HasItemHook,
    KnowsLengths,
    KnowsSpans,
    Samples,
    Verifiable,
)

ROOT = Path(tokenloom.__file__).parent
FOURTH = {"MockMultimodalDataset"}  # made-up text with images is made-up text, as the reference has it


def levels(cls: type) -> int:
    """Returns how many classes of ours one inherits from in a row, itself included."""
    return 1 + max((levels(base) for base in cls.__bases__ if base.__module__.startswith("tokenloom")), default=0)


def test_dataset_classes_are_three_levels_deep_at_most():
    found = {}
    for module in pkgutil.walk_packages([str(ROOT / "datasets")], "tokenloom.datasets."):
        for name, cls in inspect.getmembers(importlib.import_module(module.name), inspect.isclass):
            if issubclass(cls, MegatronDataset):
                found[name] = levels(cls)
    assert len(found) > 10
    assert {name for name, depth in found.items() if depth > 3} == FOURTH
    assert max(found.values()) == 4
    assert levels(BlendedDataset) == 1


def test_nobody_guesses_what_a_dataset_has():
    guesses = []
    for path in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id in ("getattr", "hasattr")
            ):
                asked = ast.unparse(node.args[0])
                if "dataset" in asked.lower() or asked in ("low_level", "pair"):
                    guesses.append(f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}")
    assert guesses == []


def test_our_datasets_offer_what_is_written_down(tmp_path):
    dataset = make_dataset(write_corpus(tmp_path / "corpus", [[1, 2, 3, 9]] * 9), num_samples=8)
    blend = BlendedDataset([dataset], [8], None, dataset.config)
    offered = (Samples, ArraySamples, Batches, FillsBatches, Announces, Verifiable)
    for each in (dataset, blend):
        assert [protocol.__name__ for protocol in offered if not isinstance(each, protocol)] == []
    assert isinstance(dataset, FillsRows)
    assert isinstance(dataset, KnowsSpans)
    assert not isinstance(dataset, (HasItemHook, KnowsLengths))
    assert protocols.pair_of(dataset.dataset) is dataset.dataset
    assert not protocols.is_remote_dataset(dataset)


class Bare:
    """All that a class of a user's own needs."""

    def __len__(self):
        return 12

    def __getitem__(self, idx):
        return {"number": np.array([idx])}


@pytest.mark.parametrize("protocol", [ArraySamples, Batches, FillsBatches, FillsRows, Announces, KnowsSpans])
def test_a_class_of_two_methods_offers_nothing_else_and_needs_nothing_else(protocol):
    assert isinstance(Bare(), Samples)
    assert not isinstance(Bare(), protocol)


def test_a_dataset_of_another_library_is_loaded_whatever_its_batch_means():
    rows = datasets.Dataset.from_dict({"number": [[5], [6], [7], [8]]}).with_format("numpy")
    batches = [[3, 1], [0, 2]]
    for loader in (ThreadLoader(rows, batches), build_dataloader(rows, batches)):
        assert [np.asarray(batch["number"]).ravel().tolist() for batch in loader] == [[8, 6], [5, 7]]


def test_a_class_of_two_methods_is_loaded():
    batches = [[3, 1], [0, 2]]
    for loader in (ThreadLoader(Bare(), batches), build_dataloader(Bare(), batches)):
        assert [batch["number"].ravel().tolist() for batch in loader] == batches
