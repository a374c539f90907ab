"""`tokenloom column`: values beside a dataset from the shell."""

from __future__ import annotations

import json

import numpy as np
import pytest
from tests.cli.runs import run
from tests.indexed.pairs import write_pair

from tokenloom.indexed.columns import open_column
from tokenloom.indexed.dataset import IndexedDataset


@pytest.fixture
def prefix(tmp_path) -> str:
    np.save(tmp_path / "values.npy", np.array([0.5, 1.0, 2.0], dtype=np.float16))
    return str(write_pair(tmp_path / "pair", [[[1, 2]], [[3]]]))


def test_a_column_is_added_shown_and_removed(capsys, tmp_path, prefix):
    status, out, _ = run(capsys, "column", "add", prefix, "weight", tmp_path / "values.npy", "--of", "label")
    assert status == 0
    assert ["weight", "token,", "of", "labels", "3", "x", "float16", "134", "values.npy"] in [
        line.split() for line in out.splitlines()
    ]
    assert open_column(IndexedDataset(prefix), "weight").data.tolist() == [0.5, 1.0, 2.0]
    status, out, _ = run(capsys, "column", "info", prefix, "--json")
    assert json.loads(out)["columns"]["weight"] | {"crc32": ""} == {
        "kind": "token",
        "dtype": "float16",
        "shape": [3],
        "num_bytes": 134,
        "crc32": "",
        "of": "label",
        "padding": 0.0,
        "made_by": "values.npy",
        "about": [],
    }
    status, out, _ = run(capsys, "column", "remove", prefix, "weight")
    assert (status, out) == (0, f"{prefix}: no columns\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["add", "{prefix}", "w", "{folder}/other.npy"], "cannot read `{folder}/other.npy` as a NumPy file"),
        (["add", "{prefix}", "w", "{prefix}.bin"], "cannot read `{prefix}.bin` as a NumPy file"),
        (["add", "{prefix}", "w", "{folder}/values.npy", "--kind", "document"], "3 rows, but the pair has 2 documents"),
        (["remove", "{prefix}", "w"], "`{prefix}` has no column `w`"),
    ],
)
def test_mistakes_are_named(capsys, tmp_path, prefix, words, message):
    names = {"prefix": prefix, "folder": tmp_path}
    status, _, err = run(capsys, "column", *(word.format(**names) for word in words))
    assert status == 1
    assert message.format(**names) in err


@pytest.mark.parametrize(("words", "needs"), [(["add", "w"], "a .npy file"), (["info", "w"], "takes a prefix")])
def test_missing_and_surplus_words_are_wrong_usage(capsys, prefix, words, needs):
    with pytest.raises(SystemExit, match="2"):
        run(capsys, "column", words[0], prefix, *words[1:])
    assert needs in capsys.readouterr().err
