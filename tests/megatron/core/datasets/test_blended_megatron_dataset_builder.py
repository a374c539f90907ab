"""`tokenloom.megatron.core.datasets.blended_megatron_dataset_builder`."""

from __future__ import annotations

import pytest
from tests.support import make_config, write_corpus

from tokenloom.megatron.core.datasets.blended_dataset import BlendedDataset
from tokenloom.megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
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
