"""Numbers as users write and pass them, and settings of declared types."""

# ruff: noqa: RUF001 - digits of other scripts are among what is refused

import contextlib
import dataclasses
import re
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import make_config
from tokenloom.blending.spec import get_blend_from_list
from tokenloom.datasets.splits import parse_and_normalize_split
from tokenloom.errors import ConfigError
from tokenloom.numbers import checked_integer, checked_number, parse_bytes, parse_integer, parse_number
from tokenloom.preprocess.settings import BadRecordBudget
from tokenloom.setting_types import check_types


def refusal(call, *arguments, **settings):
    with pytest.raises(ConfigError) as caught:
        call(*arguments, **settings)
    return caught.value.message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("90,abc,5", "split '90,abc,5': item 2 'abc' at column 4 is not a number"),
        ("0.5;0.5", "split '0.5;0.5': item 1 '0.5;0.5' at column 1 is not a number"),
        ("nan,1,1", "split 'nan,1,1': item 1 'nan' at column 1 is not a number"),
        ("90,,5", "split '90,,5': item 2 '' at column 4 is empty"),
        (",90", "split ',90': item 1 '' at column 1 is empty"),
        ("１２,1", "split '１２,1': item 1 '１２' at column 1 is not a number"),
        ("1e3,1", "split '1e3,1': item 1 '1e3' at column 1: must be a plain number"),
        ("1_0,1", "split '1_0,1': item 1 '1_0' at column 1 is not a number"),
        ("inf,1", "split 'inf,1': item 1 'inf' at column 1 is not a number"),
        ("+1,1", "split '+1,1': item 1 '+1' at column 1: must be a plain number"),
        (" 90 ,\t5x", "split ' 90 ,\\t5x': item 2 '5x' at column 7 is not a number"),
        ("0,0", "`split`: the sum of weights must be above 0 and finite, got '0,0'"),
        ("1,2,3,4", "`split`: must have 1 to 3 weights, got 4 in '1,2,3,4'"),
        ("", "`split`: must have 1 to 3 weights, got 0 in ''"),
        ([99, "1"], "`split`: must be weights, got [99, '1']"),
    ],
)
def test_a_split_names_its_fault(text, message):
    assert refusal(parse_and_normalize_split, text) == message


@pytest.mark.parametrize(
    "text", ["99,1,0", "969, 30, 1", "3/1", "1", ".5,.5", "5.,1", "90 5 5", "90\t5", "1,", "007,3", "90 / 5,5 "]
)
def test_what_the_reference_takes_goes_on_to_mean_the_same(text):
    weights = [float(found) for found in re.findall(r"[.0-9]+", text)]
    array = np.array(weights + [0.0] * (3 - len(weights)))
    assert parse_and_normalize_split(text) == (array / np.sum(array)).tolist()


@given(st.text(alphabet=st.one_of(st.sampled_from("0123456789.eE+-_ ,/１٣nanif%"), st.characters()), max_size=30))
def test_any_text_is_what_decimal_says_or_an_error(text):
    for parse in (parse_number, parse_integer):
        with contextlib.suppress(ConfigError):
            assert float(parse(text, "it")) == float(Decimal(text))
            assert text.isascii()
    blend = lambda given: get_blend_from_list([given, "a"])  # noqa: E731
    for other in (parse_and_normalize_split, parse_bytes, BadRecordBudget.parse, blend):
        with contextlib.suppress(ConfigError):
            other(text)


@given(st.decimals(allow_nan=False, allow_infinity=False, places=6, min_value=-(10**9), max_value=10**9))
def test_every_decimal_is_read(number):
    assert parse_number(str(number), "it") == float(number)


@pytest.mark.parametrize(
    ("text", "count"), [("1", 1), ("10GB", 10**10), ("1.5KiB", 1536), ("8 MiB", 8 << 20), ("0.0015KB", 1)]
)
def test_bytes_are_counted_exactly(text, count):
    assert parse_bytes(text) == count


@pytest.mark.parametrize("value", [True, np.True_, 512.0, "512", None, np.float32(3), [1]])
def test_integers_are_integers(value):
    assert refusal(checked_integer, "it", value) == f"`it`: must be an integer, got {value!r}"


@pytest.mark.parametrize("value", [True, "0.5", None, float("nan"), float("inf"), 10**400, -0.5, 1j])
def test_numbers_are_finite_and_in_range(value):
    assert refusal(checked_number, "it", value, at_least=0).startswith("`it`: must be ")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sequence_length": True}, "`sequence_length`: must be an integer, got True"),
        ({"sequence_length": 512.0}, "`sequence_length`: must be an integer, got 512.0"),
        ({"sequence_length": "512"}, "`sequence_length`: must be an integer, got '512'"),
        ({"random_seed": -1}, "`random_seed`: must be in [0, 2**32), got -1"),
        ({"random_seed": 2**80}, f"`random_seed`: must be in [0, 2**32), got {2**80}"),
        ({"mid_level_dataset_surplus": "0.1"}, "`mid_level_dataset_surplus`: must be a number, got '0.1'"),
        ({"mid_level_dataset_surplus": float("nan")}, "`mid_level_dataset_surplus`: must be a finite number, got nan"),
        ({"reset_position_ids": "False"}, "`reset_position_ids`: must be True or False, got 'False'"),
        ({"num_dataset_builder_threads": 0}, "`num_dataset_builder_threads`: must be 1 or more, got 0"),
        ({"split": 99}, "`split`: must be weights, got 99"),
        ({"blend": (["a"], [True])}, "weight of `a` in `blend`: must be finite and above 0, got True"),
        ({"blend": (["a"], ["1"])}, "`blend`: must have pairs of weight and prefix, got ['a']"),
        ({"blend": ["a", None, 3]}, "`blend`: must have weights and prefixes, got None"),
        ({"blend": 3}, "`blend`: must be a blend of prefixes, got 3"),
        ({"path_to_cache": "s3:/x"}, "`path_to_cache`: must be a local folder, got the URL 's3:/x'"),
        ({"path_to_cache": ""}, "`path_to_cache`: must be a local folder, got ''"),
    ],
)
def test_settings_of_a_dataset_have_their_types(settings, message):
    assert refusal(make_config, None, **{"blend": (["a"], None), "split": "1", **settings}) == message


@dataclasses.dataclass(frozen=True)
class Settings:
    """As if this package declared it: others' fields are their own affair."""

    count: int = 1
    share: float = 0.5
    wanted: bool = True
    name: str | None = None
    table_path: str = "a"
    anything: object = None


Settings.__module__ = "tokenloom.tests"


def test_what_fits_passes_and_integers_of_numpy_become_int(tmp_path):
    settings = Settings(count=np.int64(3), share=1, wanted=np.bool_(0), name=None, table_path=tmp_path, anything=[])
    check_types(settings)
    assert type(settings.count) is int


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"count": 1.5}, "count"),
        ({"count": True}, "count"),
        ({"count": "3"}, "count"),
        ({"share": "much"}, "share"),
        ({"wanted": 2}, "`wanted`: must be True or False, got 2"),
        ({"wanted": None}, "`wanted`: must be True or False, got None"),
        ({"name": 5}, "`name`: must be a string, got 5"),
    ],
)
def test_what_does_not_fit_is_named(changes, message):
    with pytest.raises(ConfigError, match=message):
        check_types(Settings(**changes))
