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


def write_rows(path, rows) -> str:
    """Writes a file of documents with their `w`."""
    if path.suffix == ".jsonl":
        path.write_text("".join(f"{json.dumps({'document': document, 'w': value})}\n" for document, value in rows))
    else:
        arrow = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        documents, values = zip(*rows, strict=True)
        parquet.write_table(arrow.table({"document": documents, "w": values, "more": documents}), path)
    return str(path)


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
@pytest.mark.parametrize(
    ("kind", "rows", "expected"),
    [
        ("document", [(1, 2), (0, 0.5)], [0.5, 2]),
        ("document", [(1, [1, 2]), (0, [3, 4])], [[3, 4], [1, 2]]),
        ("token", [(1, [3]), (0, [0.5, 2])], [0.5, 2, 3]),
        ("token", [(1, [[3, 4]]), (0, [[0.5, 2], [5, 6]])], [[0.5, 2], [5, 6], [3, 4]]),
    ],
)
def test_rows_of_documents_become_a_column(capsys, tmp_path, prefix, form, kind, rows, expected):
    path = write_rows(tmp_path / f"rows.{form}", rows)
    words = ("column", "add", prefix, "w", path, "--kind", kind, "--dtype", "float64")
    assert run(capsys, *words)[0] == 0
    column = open_column(IndexedDataset(prefix), "w")
    assert (column.data.tolist(), column.data.dtype, column.facts.kind) == (expected, np.float64, kind)


@pytest.mark.parametrize(
    ("kind", "rows", "message"),
    [
        ("document", [(1, 2)], "there is no row of document 0"),
        ("token", [(1, [2])], "2 tokens have no row yet, the first at token 0 of document 0"),
        (
            "document",
            [(1, 2), (1, 3)],
            "record 2: expected `w` and another `document` below 2, found {{'document': 1, 'w': 3}}",
        ),
        ("document", [(2, 2)], "record 1: expected `w` and another `document` below 2, found {{'document': 2"),
        ("document", [(0, "a")], "record 1: expected numbers as `w`, found 'a'"),
        ("token", [(0, [1.5])], "document 0 has 2 tokens, found 1 values of `w`"),
    ],
)
def test_rows_that_do_not_fit_are_named_and_leave_nothing(capsys, tmp_path, prefix, kind, rows, message):
    path = write_rows(tmp_path / "rows.jsonl", rows)
    status, _, err = run(capsys, "column", "add", prefix, "w", path, "--kind", kind)
    assert status == 1
    assert message.format() in err
    assert [path.name for path in tmp_path.glob("pair.*")] in (["pair.bin", "pair.idx"], ["pair.idx", "pair.bin"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["add", "{prefix}", "w", "{folder}/bad.jsonl"], "`{folder}/bad.jsonl`, record 1: "),
        (["add", "{prefix}", "w", "{folder}/no.parquet"], "cannot open `{folder}/no.parquet`"),
        (["add", "{prefix}", "w", "{folder}/other.npy"], "cannot read `{folder}/other.npy` as a NumPy file"),
        (["add", "{prefix}", "w", "{prefix}.bin"], "cannot read `{prefix}.bin` as a NumPy file"),
        (
            ["add", "{prefix}", "w", "{folder}/values.npy", "--kind", "document"],
            "a row for each of 2 documents, found 3",
        ),
        (["remove", "{prefix}", "w"], "`{prefix}` has no column `w`"),
    ],
)
def test_mistakes_are_named(capsys, tmp_path, prefix, words, message):
    names = {"prefix": prefix, "folder": tmp_path}
    (tmp_path / "bad.jsonl").write_text("oops\n")
    status, _, err = run(capsys, "column", *(word.format(**names) for word in words))
    assert status == 1
    assert message.format(**names) in err


@pytest.mark.parametrize(("words", "needs"), [(["add", "w"], "a file of values"), (["info", "w"], "takes a prefix")])
def test_missing_and_surplus_words_are_wrong_usage(capsys, prefix, words, needs):
    with pytest.raises(SystemExit, match="2"):
        run(capsys, "column", words[0], prefix, *words[1:])
    assert needs in capsys.readouterr().err
