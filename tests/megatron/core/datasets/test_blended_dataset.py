"""`tokenloom.megatron.core.datasets.blended_dataset`."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from tests.support import make_config, write_corpus

from tokenloom.datasets.shortcuts import fills_batches
from tokenloom.datasets.splits import Split
from tokenloom.errors import IndexCacheError
from tokenloom.megatron.core.datasets.blended_dataset import BlendedDataset
from tokenloom.megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
from tokenloom.megatron.core.datasets.indexed_dataset import IndexedDataset


@pytest.fixture
def parts(tmp_path):
    prefixes = [
        write_corpus(tmp_path / name, [list(range(start, start + 21))]) for name, start in (("a", 0), ("b", 50))
    ]
    config = make_config(None, kind=GPTDatasetConfig)
    return [GPTDataset(IndexedDataset(prefix), prefix, range(1), 5, Split.train, config) for prefix in prefixes]


def test_getitems_equals_getitem(parts):
    blend = BlendedDataset(parts, [1.0, 1.0], 6, parts[0].config)
    assert fills_batches(blend)
    batch = blend.__getitems__(range(6))
    assert type(batch) is list
    for k, sample in enumerate(batch):
        assert [type(value) for value in sample.values()] == [type(value) for value in blend[k].values()]
        assert as_lists(sample) == as_lists(blend[k])


def as_lists(sample):
    return {name: np.asarray(value).tolist() for name, value in sample.items()}


def test_arrays_may_be_built_by_a_class_or_assigned(parts):
    class Last(BlendedDataset):
        def _build_indices(self):
            index, samples = super()._build_indices()
            return index * 0 + 1, samples

    config = parts[0].config
    made, assigned = Last(parts, [1.0, 1.0], 6, config), BlendedDataset(parts, [1.0, 1.0], 6, config)
    assigned.dataset_index = np.ones(6, dtype=np.int64)
    for blend in (made, assigned, pickle.loads(pickle.dumps(assigned))):
        assert [blend[k]["dataset_id"] for k in range(6)] == [1] * 6
        assert min(sample["tokens"].min() for sample in blend.__getitems__(range(6))) >= 50
        assert blend.batch([0, 1])["dataset_id"].dtype == blend.dataset_index.dtype
    assert fills_batches(assigned)


def test_assigned_arrays_out_of_range(parts):
    blend = BlendedDataset(parts, [1.0, 1.0], 6, parts[0].config)
    blend.dataset_sample_index = np.full(6, 99)
    with pytest.raises(IndexCacheError, match="has sample 99"):
        blend[0]
