"""Settings of datasets: validation, splits and the pad id."""

import pickle
import pydoc
import re
import warnings
from dataclasses import fields
from enum import Enum
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests import support
from tests.support import StandInTokenizer, make_config

from tokenloom import GPTDatasetConfig, SFTDatasetConfig, T5MaskedWordPieceDatasetConfig
from tokenloom.datasets.splits import Split, parse_and_normalize_split, split_indices, split_matrix
from tokenloom.datasets.tokenizer import NO_TOKEN, pad_token_id
from tokenloom.errors import AmbiguousPadWarning, ConfigError, DuplicateDataWarning

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
        "hint: set `reset_position_ids` to False: document boundaries come from the `.idx` file, not from tokens",
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


def test_data_that_are_named_twice_are_a_warning_where_they_are_named():
    with pytest.warns(DuplicateDataWarning, match=r"^`twice.bin` appears twice in `blend`$") as said:
        make_config(None, blend=(["twice", "twice.bin"], [0.5, 0.5]), split="1")
    assert said[0].filename == support.__file__  # the caller that makes the settings
    with pytest.warns(DuplicateDataWarning, match=r"^`both` appears twice in `blend_per_split\[1\]`$"):
        make_config(None, blend_per_split=["both", ["both", "other", "both"], None])
    make_config(None, blend=(["twice", "twice.bin"], [0.5, 0.5]), split="1")  # warns only once


def test_without_data_everything_is_made_up_and_a_tokenizer_may_be_named():
    config = make_config(None)
    assert (config.mock, config.split) == (True, "1,1,1")
    assert config.split_matrix == [(0, 1 / 3), (1 / 3, 2 / 3), (2 / 3, 1.0)]
    assert make_config(None, blend_per_split=[None, None, None]).mock
    assert make_config(None, tokenizer="null:70").tokenizer.vocab_size == 71  # 70 ids and the end-of-document id


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


TEXTS = {"99,1,0": (0.99, 0.01, 0), "1": (1, 0, 0), "0,0,5": (0, 0, 1), "3/1": (0.75, 0.25, 0), ".5,.5": (0.5, 0.5, 0)}


@pytest.mark.parametrize(("text", "shares"), TEXTS.items())
def test_every_run_of_digits_and_dots_is_a_weight(text, shares):
    assert parse_and_normalize_split(text) == [*shares]


def test_a_split_of_weight_0_has_no_interval():
    assert split_matrix([0.99, 0.01, 0.0]) == [(0, 0.99), (0.99, 1.0), None]
    assert split_matrix([0.0, 0.0, 1.0]) == [None, None, (0.0, 1.0)]


def test_bounds_are_rounded_halves_to_even_and_indices_are_wide_only_where_they_must_be():
    assert split_indices((0, 0.99), 3).tolist() == [0, 1, 2]
    assert split_indices((0.99, 1.0), 3).tolist() == []  # 1 % of three documents
    assert split_indices((0, 0.5), 5).tolist() == [0, 1]
    assert split_indices((0, 0.5), 7).tolist() == [0, 1, 2, 3]
    assert split_indices((0.25, 0.5), 0).tolist() == []
    assert split_indices((0, 0.5), 100).dtype == np.int32
    assert split_indices((1.0, 1.0), 2**31).dtype == np.int64


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=3).filter(any), st.integers(0, 5000))
def test_every_element_is_in_exactly_one_split(weights, num_elements):
    matrix = split_matrix(parse_and_normalize_split(",".join(map(str, weights))))
    assert len(matrix) == len(Split)
    parts = [split_indices(bounds, num_elements) for bounds in matrix if bounds is not None]
    assert np.concatenate(parts).tolist() == list(range(num_elements))


def test_a_split_equals_the_one_of_its_name_in_another_package():
    other = Enum("Split", {"train": 0, "valid": 1, "test": 2})
    for mine, theirs in zip(Split, other, strict=True):
        assert mine == theirs
        assert theirs == mine
        assert hash(mine) == hash(theirs)
        assert {mine: 1}[theirs] == {theirs: 1}[mine] == 1
        assert not mine != theirs  # noqa: SIM202 - the other operator
    assert Split.train != other.valid
    assert other.valid != Split.train
    assert Split.train not in (0, "train", None, Enum("Part", {"train": 0}).train)
    assert pickle.loads(pickle.dumps(Split.valid)) is Split.valid
    assert list(Split) == [Split(0), Split["valid"], Split.test]


class Special(StandInTokenizer):
    """A tokenizer that lists its special tokens."""

    def __init__(self, tokens, **options):
        super().__init__(**options)
        self.special_tokens_dict = tokens


@pytest.mark.parametrize(
    ("tokenizer", "pad"),
    [
        (StandInTokenizer(pad=3), 3),
        (StandInTokenizer(pad=0), 0),
        (StandInTokenizer(pad=3, eod=None), 3),
        (StandInTokenizer(), NO_TOKEN),
        (Special({"pad_token": 3, "bos_token": 4}, pad=3), 3),
        (Special({"bos_token": 4}, pad=9, eod=9), 9),  # only listed special tokens count; `eod` is not listed
        (object(), NO_TOKEN),
    ],
)
def test_a_pad_id_of_its_own_is_taken_without_a_word(tokenizer, pad):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert pad_token_id(tokenizer, allow_ambiguous=False) == pad
        assert pad_token_id(tokenizer, allow_ambiguous=True) == pad


AMBIGUOUS = [Special({"pad_token": 9, "eos_token": 9}, pad=9, eod=1), Special({}, pad=9, eod=9)]


@pytest.mark.parametrize("tokenizer", [StandInTokenizer(pad=9, eod=9), *AMBIGUOUS])
def test_a_pad_id_that_means_something_else_is_not_used_unless_asked(tokenizer):
    for allowed, pad, effect in (
        (False, NO_TOKEN, "padding is found by position instead"),
        (True, 9, "`allow_ambiguous_pad_tokens` masks it in the data too"),
    ):
        with pytest.warns(AmbiguousPadWarning, match=f"^pad id 9 is also another special token; {effect}$"):
            assert pad_token_id(tokenizer, allow_ambiguous=allowed) == pad
