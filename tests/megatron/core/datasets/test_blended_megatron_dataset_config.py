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


def test_pairs_will_do_as_a_blend():
    config = BlendedMegatronDatasetConfig(1, 8, [[0.3, "a"], [0.7, "b"]], split="1,0,0")
    assert config.blend == (["a", "b"], [0.3, 0.7])


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"blend": (["a"], None)}, "expected `split` beside `blend`"),
        (
            {"blend": (["a"], [1.0, 2.0]), "split": "1"},
            "expected as many weights as prefixes in `blend`, found 2 for 1",
        ),
        ({"blend": (["a"], None), "split": "1,1,1,1"}, "expected 1 to 3 weights in the split, found 4"),
        ({"blend": (["a"], None), "split": "1e3,1"}, "expected plain numbers in the split"),
        ({"blend": (["a"], None), "split": "1", "fast_cache_load": True}, "`fast_cache_load` and `blend` exclude"),
        ({"blend_per_split": [(["a"], None)], "split": "1"}, "`split` and `blend_per_split` exclude"),
        ({"blend_per_split": [(["a"], None)]}, "expected 3 entries in `blend_per_split`, found 1"),
        ({"blend_per_split": [(["a"], [1, 2]), None, None]}, r"as many weights as prefixes in `blend_per_split\[0\]`"),
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
    assert (config.path_to_cache, config.reset_position_ids, config.eod_mask_loss) == (
        "s3://bucket/indices",
        False,
        False,
    )
    with pytest.raises(ConfigError, match="expected a local folder as path_to_cache"):
        BlendedMegatronDatasetConfig(1, 8, path_to_cache="s3:/bucket/indices")
