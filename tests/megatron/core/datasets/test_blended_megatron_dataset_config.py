"""`tokenloom.megatron.core.datasets.blended_megatron_dataset_config`."""

from __future__ import annotations

import pytest
from tests.support import StandInTokenizer

from tokenloom.errors import ConfigError
from tokenloom.megatron.core.datasets.blended_megatron_dataset_config import (
    BlendedMegatronDatasetConfig,
    convert_split_vector_to_split_matrix,
    parse_and_normalize_split,
)
from tokenloom.megatron.core.datasets.gpt_dataset import GPTDatasetConfig

FLAGS = {"reset_position_ids": False, "reset_attention_mask": False, "eod_mask_loss": False}


def test_what_the_reference_takes_is_taken_as_it_is():
    blend = (("a", "b"), (0, 1))
    config = BlendedMegatronDatasetConfig(-1, 8, blend, split="8:1:1")
    assert config.blend is blend
    assert config.split_matrix == [(0, 0.8), (0.8, 0.9), (0.9, 1.0)]
    config = BlendedMegatronDatasetConfig(1, 8, [[0.3, "a"], [0.7, "b"]], split="1,0,0")
    assert config.blend == (["a", "b"], [0.3, 0.7])


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"blend": (["a"], None)}, "no `split` given for `blend`"),
        ({"blend": (["a"], [1.0, 2.0]), "split": "1"}, "`blend`: got 2 weights for 1 prefixes"),
        ({"blend": (["a"], None), "split": "1,1,1,1"}, "split '1,1,1,1': must have at most 3 weights, got 4"),
        ({"blend": (["a"], None), "split": "1e3,1"}, "split '1e3,1': a number has a sign or exponent"),
        ({"blend": (["a"], None), "split": "1", "fast_cache_load": True}, "`fast_cache_load` and `blend` exclude"),
        ({"blend_per_split": [(["a"], None)], "split": "1"}, "`split` and `blend_per_split` exclude"),
        ({"blend_per_split": [(["a"], None)]}, "`blend_per_split`: must have 3 entries, got 1"),
        ({"blend_per_split": [(["a"], [1, 2]), None, None]}, r"`blend_per_split\[0\]`: got 2 weights"),
    ],
)
def test_what_it_asserts_is_an_error(settings, text):
    with pytest.raises(ConfigError, match=text) as raised:
        BlendedMegatronDatasetConfig(1, 8, path_to_cache="cache", **settings)
    assert isinstance(raised.value, AssertionError)


def test_settings_of_newer_versions_are_there():
    settings = {**FLAGS, "random_seed": 1, "sequence_length": 8, "tokenizer": StandInTokenizer(vocab_size=65_536)}
    config = GPTDatasetConfig(**settings, sft_mock_dataset_config_json="{}", varlen_sbhd_validation=True)
    assert (config.inter_document_masking, config.token_dtype_code) == (False, 8)
    with pytest.raises(AssertionError, match="`varlen_sbhd_validation` and `hybrid_context_parallel`"):
        GPTDatasetConfig(**settings, varlen_sbhd_validation=True, hybrid_context_parallel=True)


def test_shares_and_intervals():
    assert parse_and_normalize_split("949,50,1") == [0.949, 0.05, 0.001]
    assert convert_split_vector_to_split_matrix([1.0, 0.0, 0.0], [0.0, 0.5, 0.5]) == [None, None, None]


def test_indices_may_be_kept_in_a_bucket_and_flags_of_masks_be_left_out():
    config = GPTDatasetConfig(1, 8, tokenizer=StandInTokenizer(), path_to_cache="s3://bucket/indices", mixing_block=64)
    assert config.path_to_cache == "s3://bucket/indices"
    assert (config.reset_position_ids, config.eod_mask_loss) == (False, False)
    with pytest.raises(ConfigError, match="`path_to_cache`: must be a local folder"):
        BlendedMegatronDatasetConfig(1, 8, path_to_cache="s3:/bucket/indices")
