"""The text behind cache keys: byte for byte the output of `json`."""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenloom.errors import ConfigError
from tokenloom.order.keys import describe


class Tokenizer:
    def __init__(self):
        self.unique_identifiers = OrderedDict(name="bytes", size=256)


def test_literal_description():
    sizes = [np.int64(1), None, (0.5, True)]
    text, key = describe(OrderedDict(path='a "b"', sizes=sizes, nothing={}, tokenizer=Tokenizer()))
    assert text == (
        '{\n    "path": "a \\"b\\"",\n    "sizes": [\n        1,\n        null,\n        [\n            0.5,\n'
        '            true\n        ]\n    ],\n    "nothing": {},\n    "tokenizer": {\n        "name": "bytes",\n'
        '        "size": 256\n    }\n}'
    )
    assert key == hashlib.md5(text.encode()).hexdigest()


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text() | st.integers() | st.none(), inner)
    ),
    max_leaves=6,  # the default of 100 makes drawing slow
)


@given(st.dictionaries(st.text(), VALUES))
def test_text_is_that_of_json(identifiers):
    assert describe(identifiers)[0] == json.dumps(identifiers, indent=4)


def test_object_without_identifiers_is_named():
    with pytest.raises(
        ConfigError,
        match=r"^the tokenizer object has no `unique_identifiers`\nhint: add this attribute, a dict that identifies it",
    ):
        describe({"tokenizer": object()})
