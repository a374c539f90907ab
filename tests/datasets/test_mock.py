"""Mock datasets."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from tests.support import StandInTokenizer, equal_samples, make_config

from tokenloom.datasets.mock import (
    MockGPTDataset,
    MockGPTLowLevelDataset,
    MockMultimodalDataset,
    MultimodalDatasetConfig,
)
from tokenloom.datasets.splits import Split
from tokenloom.errors import ConfigError
from tokenloom.loading.loader import build_dataloader
from tokenloom.loading.samplers import MegatronPretrainingSampler

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


def make_settings(**changes):
    settings = {"random_seed": 1234, "sequence_length": 16, "image_h": 4, "image_w": 6}
    return make_config(None, kind=MultimodalDatasetConfig, **(settings | changes))


def make_images(**changes):
    return MockMultimodalDataset(DATA, None, np.arange(9, dtype=np.int32), 40, Split.train, make_settings(**changes))


def test_a_sample_is_text_and_an_image():
    dataset = make_images()
    plain = make_config(None, random_seed=1234, sequence_length=16)
    text = MockGPTDataset(DATA, None, np.arange(9, dtype=np.int32), 40, Split.train, plain).sample(3)
    sample = dataset.sample(3)
    image = sample.pop("image")
    assert equal_samples(sample, text)
    assert (image.shape, image.dtype, image.any()) == ((3, 4, 6), np.float32, np.False_)
    assert list(dataset[3])[-1] == "image"
    assert dataset[3]["image"].shape == (3, 4, 6)
    batch = dataset.batch([3, 5])
    assert batch["image"].shape == (2, 3, 4, 6)
    assert equal_samples(pickle.loads(pickle.dumps(dataset)).batch([3, 5]), batch)
    batch["image"][0] = 1  # the array belongs to the caller
    assert not dataset.sample(3)["image"].any()


def doubled(sample):
    return {"image": sample["image"] + 1, "twice": sample["tokens"] * 2}


def test_samples_are_preprocessed():
    dataset = make_images(preprocess_func=doubled)
    assert list(dataset[3]) == ["image", "twice"]
    sampler = MegatronPretrainingSampler(40, 0, 4, data_parallel_rank=0, data_parallel_size=1)
    batch = next(iter(build_dataloader(dataset, sampler)))
    assert batch["image"].tolist() == np.ones((4, 3, 4, 6)).tolist()
    assert batch["twice"].tolist() == (make_images().batch(range(4))["tokens"] * 2).tolist()


@pytest.mark.parametrize("name", ["image_h", "image_w"])
@pytest.mark.parametrize("pixels", [None, 0])
def test_an_image_has_a_size(name, pixels):
    with pytest.raises(ConfigError, match=f"^`{name}`: must be 1 or more, got {pixels!r}$"):
        make_settings(**{name: pixels})
