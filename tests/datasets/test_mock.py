"""Made-up data."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from tests.support import StandInTokenizer, equal_samples, make_config

from tokenloom.datasets.mock import MockGPTDataset, MockGPTLowLevelDataset
from tokenloom.datasets.splits import Split
from tokenloom.errors import ConfigError

DATA = MockGPTLowLevelDataset(StandInTokenizer(vocab_size=100))


def make_mock(**changes):
    return MockGPTDataset(DATA, None, np.arange(50, dtype=np.int32), 200, Split.train, make_config(None, **changes))


def test_a_document_counts_up_and_ends():
    assert len(DATA) == MockGPTDataset.numel_low_level_dataset(DATA) == 100_000
    assert DATA.sequence_lengths[:3].tolist() == [3484, 2609, 2094]
    document = DATA[1]
    assert document.tolist() == [(i + 1) % 100 for i in range(2608)] + [9]
    assert document.dtype == np.int64


def test_parts_of_documents():
    assert DATA.get(1, 98, 3).tolist() == [99, 0, 1]
    assert DATA.get(1, 2600).tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert DATA.get(1, 2600, 100).tolist() == DATA.get(1, 2600).tolist()
    assert DATA.get(1, 2609).tolist() == []
    several = DATA.gather(np.array([1, 2, 1]), np.array([2606, 0, 5]), np.array([3, 2, 0]))
    assert several.tolist() == [7, 8, 9, 1, 2]
    nothing = np.empty(0, dtype=np.int64)
    assert DATA.gather(nothing, nothing, nothing).tolist() == []


def test_samples_follow_the_documents():
    dataset = make_mock()
    stream = np.concatenate([DATA[int(i)] for i in dataset.document_index])
    for k in (0, 7, 199):
        start = int(dataset.shuffle_index[k]) * 4
        assert dataset.sample(k)["tokens"].tolist() == stream[start : start + 4].tolist()
        assert dataset[k]["labels"].tolist() == stream[start + 1 : start + 5].tolist()


def test_nothing_is_cached_unless_a_folder_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    dataset = make_mock()
    assert list(tmp_path.iterdir()) == []
    cached = make_mock(path_to_cache="cache")
    assert len(list((tmp_path / "cache").iterdir())) == 5
    assert equal_samples(cached.batch(range(200)), dataset.batch(range(200)))


def test_made_up_data_can_be_pickled():
    dataset = make_mock(inter_document_masking=True)
    assert equal_samples(pickle.loads(pickle.dumps(dataset)).batch([3, 5]), dataset.batch([3, 5]))


def test_a_config_that_names_data_is_refused():
    config = make_config("prefix")
    with pytest.raises(ConfigError) as caught:
        MockGPTDataset(DATA, None, np.arange(5), None, Split.train, config)
    assert str(caught.value) == (
        "expected a config without `blend` for made-up data, found one that names data\nhint: use GPTDataset"
    )
