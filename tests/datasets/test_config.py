"""Validation of dataset settings."""

from __future__ import annotations

import pydoc
import re
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from tests import support
from tests.support import StandInTokenizer, make_config

from tokenloom import GPTDatasetConfig, SFTDatasetConfig, T5MaskedWordPieceDatasetConfig
from tokenloom.errors import ConfigError, DuplicateDataWarning

BLEND = (["a"], None)

WRONG = [
    ({"random_seed": 2**32}, "`random_seed`: must be in [0, 2**32), got 4294967296"),
    ({"sequence_length": 0}, "`sequence_length`: must be 1 or more, got 0"),
    (
        {"fast_cache_load": True},
        "`fast_cache_load`: needs `path_to_cache`\nhint: set `path_to_cache` to the folder of the indices",
    ),
    ({"blend": ([], None), "split": "1"}, "`blend`: must have at least one prefix, got none"),
    ({"blend": {"a": "much"}, "split": "1"}, "weight of `a` in `blend`: must be finite and above 0, got 'much'"),
    (
        {"blend_per_split": [BLEND, None, None], "blend": BLEND},
        "`blend` and `blend_per_split` exclude each other, got both",
    ),
    ({"blend": BLEND, "split": "99,-1,0"}, "`split`: weights must be 0 or more, got '99,-1,0'"),
    ({"blend": BLEND, "split": "1.2.3"}, "split '1.2.3': item 1 '1.2.3' at column 1 is not a number"),
    ({"eod_mask_loss": None}, "`eod_mask_loss`: must be True or False, got None"),
    (
        {"inter_document_masking": True, "reset_position_ids": True},
        "`inter_document_masking` and `reset_position_ids` exclude each other, got both\n"
        "hint: set `reset_position_ids` to False: document boundaries come from the index, not from tokens",
    ),
]


@pytest.mark.parametrize(("changes", "text"), WRONG, ids=[",".join(changes) for changes, _ in WRONG])
def test_a_wrong_setting_is_refused(changes, text):
    with pytest.raises(ConfigError, match=f"^{re.escape(text)}$"):
        make_config(None, **changes)


@pytest.mark.parametrize(
    ("given", "held"),
    [
        ("a", (["a"], None)),
        (Path("a"), (["a"], None)),
        (("a", None), (["a"], None)),
        (["a", "b", "c"], (["a", "b", "c"], None)),
        (("a", "b"), (["a", "b"], None)),
        ([Path("a"), "b"], (["a", "b"], None)),
        (["30", "a", "70", "b"], (["a", "b"], [30.0, 70.0])),
        ([30, "a", 70, "b"], (["a", "b"], [30.0, 70.0])),
        ([[0.3, "a"], (0.7, Path("b"))], (["a", "b"], [0.3, 0.7])),
        ({"a": 3, Path("b"): 7}, (["a", "b"], [3, 7])),
        ((("a", "b"), np.array([1.0, 2.0])), (["a", "b"], [1.0, 2.0])),
    ],
)
def test_a_blend_is_held_as_prefixes_and_weights(given, held):
    assert make_config(None, blend=given, split="1").blend == held
    config = make_config(None, blend_per_split=(given, None, None))
    assert (config.blend_per_split, config.blends) == ([held, None, None], [held, None, None])


@pytest.mark.parametrize("given", ["98,1,0.5", (98, 1, 0.5), [98, 1.0, 0.5], np.array([98, 1, 0.5])])
def test_a_split_is_held_as_a_text(given):
    assert make_config(None, blend=BLEND, split=given).split == "98,1,0.5"


def test_a_tokenizer_may_be_named():
    assert make_config(None, tokenizer="null:70").tokenizer.vocab_size == 71  # 70 ids and the end-of-document id


def test_data_that_are_named_twice_are_a_warning_where_they_are_named():
    with pytest.warns(DuplicateDataWarning, match=r"^`twice.bin` appears twice in `blend`$") as said:
        make_config(None, blend=(["twice", "twice.bin"], [0.5, 0.5]), split="1")
    assert said[0].filename == support.__file__  # the caller that makes the settings
    with pytest.warns(DuplicateDataWarning, match=r"^`both` appears twice in `blend_per_split\[1\]`$"):
        make_config(None, blend_per_split=["both", ["both", "other", "both"], None])
    make_config(None, blend=(["twice", "twice.bin"], [0.5, 0.5]), split="1")  # warns only once


def test_without_data_everything_is_made_up():
    config = make_config(None)
    assert (config.mock, config.split) == (True, "1,1,1")
    assert config.split_matrix == [(0, 1 / 3), (1 / 3, 2 / 3), (2 / 3, 1.0)]
    assert make_config(None, blend_per_split=[None, None, None]).mock


@pytest.mark.parametrize(("vocab_size", "code"), [(100, 8), (65499, 8), (65500, 4), (65536, 4), (None, None)])
def test_the_dtype_of_tokens_follows_the_one_rule_for_vocabularies(vocab_size, code):
    tokenizer = StandInTokenizer(vocab_size=vocab_size)
    assert make_config(None, tokenizer=tokenizer).token_dtype_code == code


@pytest.mark.parametrize("config", [GPTDatasetConfig, SFTDatasetConfig, T5MaskedWordPieceDatasetConfig])
def test_help_describes_every_setting_once(config):
    page = pydoc.plain(pydoc.render_doc(config))
    listed = page.partition("Attributes:")[2].partition("Method resolution order")[0]
    described = re.findall(r"^ \|      (\w+(?:, \w+)*): ", listed, re.MULTILINE)
    names = sorted(name for entry in described for name in entry.split(", "))
    assert names == sorted(each.name for each in fields(config) if each.name != "_")


def test_a_configuration_shows_what_was_chosen():
    tokenizer = StandInTokenizer()
    config = make_config("corpus", tokenizer=tokenizer, sequence_length=8, eod_mask_loss=True)
    assert repr(config) == (
        "GPTDatasetConfig(random_seed=57, sequence_length=8, blend=(['corpus'], None), split='1,0,0', "
        f"tokenizer={tokenizer!r}, eod_mask_loss=True)"
    )
