"""Fingerprints of samples: content, and nothing but content."""

import collections
from dataclasses import dataclass
from datetime import date

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import default_collate

from tokenloom.errors import ConfigError
from tokenloom_check.resume_readings import SampleCutter, fingerprint


def prints(batch, how="auto"):
    return [sample.fingerprint for sample in SampleCutter(how).samples(batch)]


@dataclass
class Record:
    tokens: list[int]
    name: str


ALIKE = [
    (np.arange(3), torch.arange(3)),
    (np.arange(6).reshape(3, 2).T, torch.arange(6).reshape(3, 2).T),
    (np.arange(3, dtype=">i4"), np.arange(3, dtype="<i4")),
    ({"a": 1, "b": 2}, collections.OrderedDict(b=2, a=1)),
    ((1, "a"), [1, "a"]),
    ({1, 2, 3}, frozenset([3, 2, 1])),
    (Record([1], "a"), {"tokens": [1], "name": "a"}),
    (torch.ones(2).requires_grad_(), torch.ones(2)),
    (torch.eye(2).to_sparse(), torch.eye(2)),
    (np.int64(4), 4),
]  # fmt: skip

DIFFERENT = [
    np.arange(3), np.arange(3, dtype=np.int32), np.arange(3).reshape(1, 3), [0, 1, 2], (0, 1), [[0], 1, 2],
    [0, [1, 2]],
    {"a": 1}, {"a": 2}, {"b": 1}, {1: "a"}, "a", b"a", ["a"], 1, 1.0, True, False, None, 0, "", [], {}, "1", "ab",
    ["a", "b"],
    torch.ones(2, dtype=torch.bfloat16), torch.ones(2), np.array(["a"]), np.array(["a"], dtype=object),
    date(2026, 1, 2), float("nan"), {"a": float("nan")}, 10**30, -1, "\ud800",
]  # fmt: skip


@pytest.mark.parametrize(("one", "other"), ALIKE, ids=lambda value: type(value).__name__)
def test_the_same_content_has_the_same_fingerprint(one, other):
    assert fingerprint(one) == fingerprint(other)


def test_different_content_has_different_fingerprints():
    found = [fingerprint(value) for value in DIFFERENT]
    assert len(set(found)) == len(found)
    assert all(len(one) == 32 for one in found)
    assert found == [fingerprint(value) for value in DIFFERENT]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(VALUES, VALUES)
def test_fingerprints_are_equal_where_values_are(one, other):
    assert (fingerprint(one) == fingerprint(other)) == (repr(one) == repr(other) or _equal(one, other))


def _equal(one, other):
    """Returns whether values and types are equal, ignoring key order; NaN equals itself, -0.0 differs from 0.0."""
    if type(one) is not type(other):
        return False
    if isinstance(one, list):
        return len(one) == len(other) and all(map(_equal, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_equal(one[key], other[key]) for key in one)
    return repr(one) == repr(other)


def test_unsupported_types_are_errors():
    with pytest.raises(ConfigError, match=r"`batch\[0\]\['a'\]\[1\]` must contain tensors, .*, got builtins.object"):
        SampleCutter().samples([{"a": [1, object()]}])


SAMPLES = [{"tokens": np.arange(4) + k, "name": f"sample {k}", "weight": float(k)} for k in range(3)]


def test_fingerprints_of_rows_do_not_depend_on_batching():
    whole = prints(default_collate(SAMPLES))
    assert len(set(whole)) == 3
    assert prints(default_collate(SAMPLES[:1])) + prints(default_collate(SAMPLES[1:])) == whole


@pytest.mark.parametrize(
    ("batch", "count"),
    [
        (torch.arange(6).reshape(3, 2), 3),
        ([torch.arange(6).reshape(3, 2), ("a", "b", "c")], 3),
        ({"ids": [[1, 2], [3], [4]]}, 3),
        ({"ids": {"inner": torch.ones(3, 4)}, "n": torch.ones(3)}, 3),
        ({"lists": [torch.ones(3), torch.ones(3)], "n": torch.ones(3)}, 3),
        ([{"a": 1}, {"a": 2}, {"a": 3}], 3),
        (["a", "b", "c"], 3),
        ([np.ones(2), np.ones(3), np.ones(4)], 3),
        ("a text", 1),
        ({"text": "abc", "label": 3}, 1),
        (torch.tensor(3), 1),
        ([], 0),
        (torch.ones(0, 4), 0),
    ],
    ids=str,
)
def test_how_batches_are_split_into_samples(batch, count):
    assert len(prints(batch)) == count


def test_columns_without_rows_are_reported():
    cutter = SampleCutter()
    batch = {"tokens": torch.ones(4, 2), "labels": torch.ones(4, 2), "step": 3, "mask": torch.ones(1, 2, 2)}
    assert len(cutter.samples(batch)) == 4
    assert cutter.left_out == {"['step']", "['mask']"}


def test_how_to_split_can_be_given():
    pair = [np.arange(3), np.arange(3)]
    assert [len(prints(pair, how)) for how in ("auto", lambda batch: batch, lambda batch: [batch])] == [3, 2, 1]
    with pytest.raises(ConfigError, match="`samples` must be 'auto' or a function, got 'row'"):
        SampleCutter("row")
