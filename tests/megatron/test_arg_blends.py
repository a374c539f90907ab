"""`tokenloom.megatron.arg_blends`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.megatron.arguments import arguments

from tokenloom.errors import ConfigError, StorageError
from tokenloom.megatron.arg_blends import get_blend_and_blend_per_split, sequences_from_args


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """Files that arguments name, by what they hold."""
    contents = {
        "args": "30 a\n70\tb\n",
        "split": json.dumps({"train": ["1", "a", "2", "b"], "valid": "c d e", "test": None}),
        "missing": json.dumps({"train": ["a"], "valid": ["b"]}),
        "list": "[1]",
        "broken": "{",
        "sequences": json.dumps({"a": [3, 4], "b": [1, 2]}),
        "counts": json.dumps({"a": 3}),
    }
    for name, text in contents.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "latin").write_bytes(b"\xff")
    return {name: str(tmp_path / name) for name in (*contents, "latin", "nowhere")}


def test_data_are_named_in_five_ways(files):
    cases = [
        ({}, (None, None)),
        ({"mock_data": True}, (None, None)),
        ({"data_path": ["a"]}, ((["a"], None), None)),
        ({"data_path": ["0.3", "a", "0.7", "b"]}, ((["a", "b"], [0.3, 0.7]), None)),
        ({"data_args_path": files["args"]}, ((["a", "b"], [30.0, 70.0]), None)),
        (
            {"per_split_data_args_path": files["split"]},
            (None, [(["a", "b"], [1.0, 2.0]), (["c", "d", "e"], None), None]),
        ),
        ({"train_data_path": ["a"], "test_data_path": ["1", "b"]}, (None, [(["a"], None), None, (["b"], [1.0])])),
    ]
    for changes, expected in cases:
        assert get_blend_and_blend_per_split(arguments(**changes)) == expected


def test_what_cannot_be_meant_is_said(files):
    cases = [
        ({"data_path": ["a"], "data_args_path": files["args"]}, "in one way, found --data-path and --data-args-path"),
        ({"data_path": ["a"], "valid_data_path": ["b"]}, "--train-data-path, --valid-data-path, --test-data-path"),
        ({"data_path": ["a"], "mock_data": True}, "--mock-data"),
        ({"per_split_data_args_path": files["missing"]}, "found no test"),
        ({"per_split_data_args_path": files["list"]}, "expected an object, found list"),
        ({"per_split_data_args_path": files["broken"]}, "is not JSON"),
        ({"data_args_path": files["latin"]}, "no text in UTF-8"),
    ]
    for changes, words in cases:
        with pytest.raises(ConfigError, match=words):
            get_blend_and_blend_per_split(arguments(**changes))
    with pytest.raises(StorageError, match="nowhere"):
        get_blend_and_blend_per_split(arguments(data_args_path=files["nowhere"]))


def test_counts_of_sequences_come_from_a_file(files):
    assert sequences_from_args(arguments()) is None
    assert sequences_from_args(arguments(per_dataset_sequences_path=files["sequences"])) == {"a": [3, 4], "b": [1, 2]}
    with pytest.raises(ConfigError, match="two counts for `a`, found 3"):
        sequences_from_args(arguments(per_dataset_sequences_path=files["counts"]))
