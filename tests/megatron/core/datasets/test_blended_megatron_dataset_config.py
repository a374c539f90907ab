"""`tokenloom.megatron.core.datasets.blended_megatron_dataset_config`."""

from __future__ import annotations

import pytest
from tests.support import StandInTokenizer

from tokenloom.errors import ConfigError
from tokenloom.megatron.core.datasets.blended_megatron_dataset_config import BlendedMegatronDatasetConfig
from tokenloom.megatron.core.datasets.gpt_dataset import GPTDatasetConfig


def test_blends_keep_their_form():
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
def test_errors_are_assertion_errors(settings, text):
    with pytest.raises(ConfigError, match=text) as raised:
        BlendedMegatronDatasetConfig(1, 8, path_to_cache="cache", **settings)
    assert isinstance(raised.value, AssertionError)


def test_settings_of_gpt_datasets():
    settings = {"random_seed": 1, "sequence_length": 8, "tokenizer": StandInTokenizer(vocab_size=65_536)}
    config = GPTDatasetConfig(**settings, path_to_cache="s3://bucket/indices", varlen_sbhd_validation=True)
    assert config.path_to_cache == "s3://bucket/indices"
    assert (config.reset_position_ids, config.inter_document_masking, config.token_dtype_code) == (False, False, 8)
    with pytest.raises(AssertionError, match="`varlen_sbhd_validation` and `hybrid_context_parallel`"):
        GPTDatasetConfig(**settings, varlen_sbhd_validation=True, hybrid_context_parallel=True)
    with pytest.raises(ConfigError, match="`path_to_cache`: must be a local folder"):
        BlendedMegatronDatasetConfig(1, 8, path_to_cache="s3:/bucket/indices")
