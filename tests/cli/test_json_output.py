from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest

from tokenloom.cli.json_output import json_text


class Shape(Enum):
    round = 1


@dataclass(frozen=True, slots=True)
class Pair:
    path: Path
    lengths: object


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Pair(Path("a/b"), np.array([1, 2], dtype=np.uint16)), '{"path": "a/b", "lengths": [1, 2]}'),
        ({"n": np.int64(3), "b": np.bool_(True), "x": np.float32(0.5)}, '{"n": 3, "b": true, "x": 0.5}'),
        ([Shape.round, Fraction(1, 4), datetime(2026, 1, 2)], '["round", 0.25, "2026-01-02T00:00:00"]'),
        ({"m": MappingProxyType({"k": (1, None)})}, '{"m": {"k": [1, null]}}'),
        ("ü\udcff", r'"\u00fc\udcff"'),
    ],
)  # fmt: skip
def test_values_of_all_kinds(value, text):
    assert json_text(value) == text


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf"), np.float64("nan"), np.float32("inf")])
def test_no_number_is_null_wherever_it_stands(number):
    value = {"a": [number, 1.5, Shape.round], "p": Pair(Path("x"), (number, np.float64(2)))}
    assert json.loads(json_text(value)) == {"a": [None, 1.5, "round"], "p": {"path": "x", "lengths": [None, 2.0]}}
    assert json.loads(json_text({"a": np.array([number, 1.0])})) == {"a": [None, 1.0]}


def test_what_json_cannot_tell_is_our_own_bug():
    with pytest.raises(TypeError, match="expected something that JSON can tell, found object"):
        json_text({"a": object()})
