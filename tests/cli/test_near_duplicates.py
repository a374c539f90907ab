"""`tokenloom near-duplicates`, as a person or a check calls it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from tests.support import write_corpus

from tokenloom import load_tokenizer
from tokenloom.cli import main

CORPUS = ["The cat sat on the warm mat and purred all day long.", "Shares fell sharply after the bank raised rates."]
BENCHMARK = ["An entirely different sentence about mountains and rivers.", CORPUS[0]]


@pytest.fixture
def prefixes(tmp_path: Path) -> list[str]:
    tokenizer = load_tokenizer("byte")
    return [
        write_corpus(tmp_path / name, [[*tokenizer.tokenize(text), tokenizer.eod] for text in texts])
        for name, texts in (("corpus", CORPUS), ("benchmark", BENCHMARK))
    ]


def run(*arguments: str) -> int:
    return main(["near-duplicates", *arguments, "--tokenizer", "byte"])


def test_both_texts_are_shown_and_the_status_says_whether_there_are_too_many(prefixes, capsys):
    assert run(*prefixes) == 0
    out, err = capsys.readouterr()
    assert out.count(f"  │ {CORPUS[0]}\n") == 2
    assert "1 of 2 chunks" in out
    assert "comparing with all 2 vectors, without an index" in err
    assert run(*prefixes, "--fail-above", "1") == 0
    assert run(*prefixes, "--fail-above", "0") == 1
    assert run(*prefixes, "--fail-above", "0", "--threshold", "1", "--least-tokens", "64") == 0


@pytest.mark.parametrize("threshold", ["0", "1.5", "-1"])
def test_a_threshold_out_of_range_is_refused_before_vectors_are_made(prefixes, threshold, tmp_path, capsys):
    assert run(*prefixes, f"--threshold={threshold}") == 1
    out, err = capsys.readouterr()
    assert "expected a threshold above 0 and at most 1, found" in err
    assert (out, "making" in err, list(tmp_path.glob("*.neighbors"))) == ("", False, [])


@pytest.mark.parametrize(
    ("command", "arguments"), [("near-duplicates", []), ("order-by-neighbours", ["--output-prefix", "new"])]
)
def test_an_index_that_cannot_be_is_refused_before_vectors_are_made(prefixes, command, arguments, tmp_path, capsys):
    assert main([command, prefixes[0], *arguments, "--tokenizer", "byte", "--index", "IVF16,Falt"]) == 1
    out, err = capsys.readouterr()
    assert "expected a string of `faiss.index_factory` for vectors of 256, found 'IVF16,Falt'" in err
    assert (out, "making" in err, list(tmp_path.glob("*.neighbors"))) == ("", False, [])


def test_a_table_that_cannot_be_written_is_refused_before_vectors_are_made(prefixes, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    assert run(*prefixes, "-o", f"{tmp_path}/found.parquet") == 1
    assert "pyarrow" in capsys.readouterr().err
    assert list(tmp_path.glob("*.neighbors")) == []


def test_inside_a_corpus_nothing_is_like_itself(prefixes, capsys):
    assert run(prefixes[0], "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["num_pairs"], found["benchmark"], found["chunks"]) == (0, None, [])


def test_files_are_written_and_a_report_has_them(prefixes, tmp_path, capsys):
    pytest.importorskip("pyarrow")
    json_path, parquet_path, page = (f"{tmp_path}/found.{suffix}" for suffix in ("json", "parquet", "html"))
    assert run(*prefixes, "-o", json_path) == 0
    assert run(*prefixes, "-o", parquet_path) == 0
    assert Path(parquet_path).read_bytes()[:4] == b"PAR1"
    capsys.readouterr()
    assert run(*prefixes, "-o", json_path) == 1
    assert "exists, and was not made by this very job" in capsys.readouterr().err
    assert run(*prefixes, "-o", json_path, "--overwrite", "--json") == 0
    assert json.loads(capsys.readouterr().out) == json.loads(Path(json_path).read_text())
    assert main(["report", prefixes[0], "-o", page, "--near-duplicates", json_path]) == 0
    assert 'id="near-duplicates"' in Path(page).read_text()
    assert CORPUS[0] in Path(page).read_text()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--threshold", "0"], "error: expected a threshold above 0 and at most 1, found 0.0"),
        (["--threshold", "1.5"], "error: expected a threshold above 0 and at most 1, found 1.5"),
        (["--index", "IVF64,Flat"], "error: expected at least 64 vectors to train the index 'IVF64,Flat' on, found 2"),
    ],
)
def test_settings_that_cannot_be_are_refused(prefixes, capsys, arguments, text):
    assert run(*prefixes, *arguments) == 1
    assert text in capsys.readouterr().err


def test_an_output_of_another_kind_is_wrong_usage(prefixes, capsys):
    with pytest.raises(SystemExit, match="2"):
        run(*prefixes, "-o", "found.csv")
    assert "expected an output ending in .parquet or .json, found `found.csv`" in capsys.readouterr().err
