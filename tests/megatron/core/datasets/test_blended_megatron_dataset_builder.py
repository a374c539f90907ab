"""`tokenloom.megatron.core.datasets.blended_megatron_dataset_builder`."""

from __future__ import annotations

import pytest
from tests.support import make_config, write_corpus

from tokenloom.errors import ConfigError
from tokenloom.megatron.core.datasets.blended_dataset import BlendedDataset
from tokenloom.megatron.core.datasets.blended_megatron_dataset_builder import (
    BlendedMegatronDatasetBuilder,
    _get_size_per_split_per_dataset,
)
from tokenloom.megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
from tokenloom.overrides import overrides


class Mine(BlendedMegatronDatasetBuilder):
    """A fork that asks for half of the training samples."""

    def _build_megatron_dataset_splits(self, dataset_path, split, sizes, synchronize_ranks=True):
        return super()._build_megatron_dataset_splits(
            dataset_path, split, [sizes[0] // 2, *sizes[1:]], synchronize_ranks
        )


@pytest.fixture
def config(tmp_path):
    prefixes = [write_corpus(tmp_path / name, [[k] * 9 for k in range(20)]) for name in "ab"]
    folder = str(tmp_path / "cache")
    return make_config(None, kind=GPTDatasetConfig, blend=(prefixes, [1.0, 1.0]), split="8,1,1", path_to_cache=folder)


def test_a_builder_that_overrides_nothing_builds_as_ours_does(config):
    builder = BlendedMegatronDatasetBuilder(GPTDataset, [20, 2, 0], lambda: True, config)
    assert not overrides(builder, "_build_megatron_dataset_splits")
    train, valid, _ = builder.build()
    assert [type(train), len(train), type(valid), len(valid)] == [BlendedDataset, 20, BlendedDataset, 2]
    alone = builder._build_megatron_dataset_splits(config.blend[0][0], config.split_matrix, [3, None, 1])
    assert [dataset.num_samples for dataset in alone] == [3, None, 1]


def test_what_an_overridden_step_builds_is_what_is_built(config):
    config.blend = config.blend[0][:1], None
    train, valid, _ = Mine(GPTDataset, [20, 2, 0], lambda: True, config).build()
    assert (train.num_samples, valid.num_samples) == (10, 2)


def test_a_class_that_builds_too_little_is_named(config):
    class Fewer(GPTDataset):
        def __len__(self):
            return 3

    config.blend = config.blend[0][:1], None
    with pytest.raises(ConfigError, match="expected 10 samples of Fewer, found 3"):
        Mine(Fewer, [20, 2, 0], lambda: True, config).build()


def test_sizes_are_rounded_up_twice():
    assert _get_size_per_split_per_dataset([0.3, 0.7], [10, 1, 0], surplus=0.1) == [[4, 2, 0], [8, 2, 0]]
