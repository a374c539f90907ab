"""Made-up text with images, beside the peer's."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from tests.support import StandInTokenizer, equal_samples, make_config

from tokenloom.blending.builder import BlendedMegatronDatasetBuilder
from tokenloom.datasets.mock import MockGPTDataset, MockGPTLowLevelDataset
from tokenloom.datasets.multimodal import MockMultimodalDataset, MultimodalDatasetConfig
from tokenloom.datasets.splits import Split
from tokenloom.errors import ConfigError
from tokenloom.loading.loader import build_dataloader
from tokenloom.loading.samplers import MegatronPretrainingSampler

DATA = MockGPTLowLevelDataset(StandInTokenizer())


def make_settings(**changes):
    settings = {"random_seed": 1234, "sequence_length": 16, "image_h": 4, "image_w": 6}
    return make_config(None, kind=MultimodalDatasetConfig, **(settings | changes))


def make_mock(**changes):
    return MockMultimodalDataset(DATA, None, np.arange(9, dtype=np.int32), 40, Split.train, make_settings(**changes))


def test_a_sample_is_text_and_an_image():
    dataset = make_mock()
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
    batch["image"][0] = 1  # the caller's own
    assert not dataset.sample(3)["image"].any()


def doubled(sample):
    return {"image": sample["image"] + 1, "twice": sample["tokens"] * 2}


def test_samples_are_preprocessed():
    dataset = make_mock(preprocess_func=doubled)
    assert list(dataset[3]) == ["image", "twice"]
    sampler = MegatronPretrainingSampler(40, 0, 4, data_parallel_rank=0, data_parallel_size=1)
    batch = next(iter(build_dataloader(dataset, sampler)))
    assert batch["image"].tolist() == np.ones((4, 3, 4, 6)).tolist()
    assert batch["twice"].tolist() == (make_mock().batch(range(4))["tokens"] * 2).tolist()


def test_it_is_built_like_any_other():
    train, valid, test = BlendedMegatronDatasetBuilder(
        MockMultimodalDataset, [10, 5, None], lambda: True, make_settings()
    ).build()
    assert all(dataset.sample(0)["image"].shape == (3, 4, 6) for dataset in (train, valid, test))


@pytest.mark.parametrize("name", ["image_h", "image_w"])
@pytest.mark.parametrize("pixels", [None, 0])
def test_an_image_has_a_size(name, pixels):
    with pytest.raises(ConfigError) as caught:
        make_settings(**{name: pixels})
    assert str(caught.value) == f"expected `{name}` of at least 1, found {pixels!r}"
