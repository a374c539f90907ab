"""Cache keys, byte for byte the output of `json`, and root keys and draws of samples, which must not change."""

import hashlib
import json
from collections import OrderedDict
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenloom.errors import ConfigError
from tokenloom.kernels.permutation import Key
from tokenloom.order.keys import describe
from tokenloom.order.sample_random import Purpose, SampleRandom
from tokenloom.order.walk_order import mixing_key, root_key, source_key


def test_literal_description_and_an_object_without_identifiers():
    sizes = [np.int64(1), None, (0.5, True)]
    tokenizer = SimpleNamespace(unique_identifiers=OrderedDict(name="bytes", size=256))
    text, key = describe(OrderedDict(path='a "b"', sizes=sizes, nothing={}, tokenizer=tokenizer))
    assert text == (
        '{\n    "path": "a \\"b\\"",\n    "sizes": [\n        1,\n        null,\n        [\n            0.5,\n'
        '            true\n        ]\n    ],\n    "nothing": {},\n    "tokenizer": {\n        "name": "bytes",\n'
        '        "size": 256\n    }\n}'
    )
    assert key == hashlib.md5(text.encode()).hexdigest()
    message = r"^the tokenizer object has no `unique_identifiers`\nhint: add this dict, which identifies the tokenizer"
    with pytest.raises(ConfigError, match=message):
        describe({"tokenizer": object()})


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
KEYS = st.text() | st.integers() | st.none()
VALUES = st.recursive(  # the default of 100 leaves makes drawing slow
    SCALARS, lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(KEYS, inner), max_leaves=6
)


@given(st.dictionaries(st.text(), VALUES))
def test_text_is_that_of_json(identifiers):
    assert describe(identifiers)[0] == json.dumps(identifiers, indent=4)


# --- root keys ------------------------------------------------------------------------------------------------------
SEEDS = st.integers(0, 2**63 - 1)


def test_golden_root_keys():
    assert root_key(0, "") == Key(0x862B1A0486F08770, 0xE0AE6AE18FF5A654)
    assert root_key(1234, "mixing") == Key(0x1185FAD4F2D43437, 0x72709807B86E71CB)
    assert root_key(2**63 - 1, "source wéb") == Key(0x69B1C52C85D9837A, 0x1E6FC9973C5305A7)


@given(seed=SEEDS, other=SEEDS, name=st.text(st.characters(codec="utf-8")))
def test_seeds_and_names_have_keys_of_their_own(seed, other, name):
    assert source_key(seed, name) == root_key(seed, "source " + name) != mixing_key(seed)
    assert (source_key(seed, name) == source_key(other, name)) == (seed == other)
    assert all(0 <= half < 2**64 for half in root_key(seed, name))


# --- random numbers of a sample's own -------------------------------------------------------------------------------


def test_numbers_are_the_words_of_philox():
    random = SampleRandom(1234, 7, Purpose.FILL_IN_THE_MIDDLE)
    key = np.array([1234, Purpose.FILL_IN_THE_MIDDLE], dtype=np.uint64)
    words = np.random.Philox(key=key, counter=np.array([0, 0, 0, 7], dtype=np.uint64)).random_raw(3)
    assert [random.below(2**64) for _ in range(3)] == words.tolist()
    recorded = SampleRandom(1234, 7, Purpose.FILL_IN_THE_MIDDLE)
    assert [recorded.below(1000) for _ in range(4)] == [997, 695, 433, 42]  # must never change
    random = SampleRandom(1, 2, Purpose.FILL_IN_THE_MIDDLE)
    assert not any(random.chance(0.0) for _ in range(100))
    assert all(random.chance(1.0) for _ in range(100))
    assert {random.below(3) for _ in range(100)} == {0, 1, 2}
