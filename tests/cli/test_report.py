"""`tokenloom report`, as a person calls it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tokenloom import IndexedDatasetBuilder
from tokenloom.cli import main


@pytest.fixture
def prefix(tmp_path: Path) -> str:
    with IndexedDatasetBuilder(f"{tmp_path}/corpus.bin", dtype=np.uint16) as builder:
        for length in (3, 4):
            builder.add_document([1] * length, [length])
        builder.finalize(f"{tmp_path}/corpus.idx")
    return f"{tmp_path}/corpus"


def test_a_page_is_written_and_told_of(prefix, tmp_path, capsys):
    path = tmp_path / "page.html"
    assert main(["report", prefix, "-o", str(path)]) == 0
    out, err = capsys.readouterr()
    assert out.startswith(f"{path}: ")
    assert " sections, " in out
    assert err == ""
    assert path.read_text().startswith("<!doctype html>")


def test_what_is_there_is_replaced_on_purpose_only_and_before_any_work(prefix, tmp_path, capsys):
    path = tmp_path / "page.html"
    path.write_text("mine")
    assert main(["report", f"{prefix}-missing", "-o", str(path)]) == 1
    assert "exists, and was not made by this very job" in capsys.readouterr().err
    assert path.read_text() == "mine"
    assert main(["report", prefix, "-o", str(path), "--overwrite"]) == 0
    assert path.read_text() != "mine"


def test_a_folder_that_cannot_be_made_is_named_before_any_work(prefix, tmp_path, capsys):
    (tmp_path / "file").touch()
    assert main(["report", f"{prefix}-missing", "-o", f"{tmp_path}/file/page.html"]) == 1
    assert f"cannot make the folder of `{tmp_path}/file/page.html`" in capsys.readouterr().err


def test_two_pages_of_the_same_data_are_equal(prefix, tmp_path, monkeypatch):
    pages = [tmp_path / name for name in ("one", "two", "three", "four")]
    for path in pages[:2]:
        assert main(["report", prefix, "-o", str(path), "--no-time"]) == 0
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1000000000")
    for path in pages[2:]:
        assert main(["report", prefix, "-o", str(path)]) == 0
    one, two, three, four = (path.read_bytes() for path in pages)
    assert one == two
    assert three == four
    assert b"2001-09-09 01:46 UTC" in three


@pytest.mark.parametrize("time", ["yesterday", "-1", "1e9", str(10**15)])
def test_a_wrong_time_is_refused(prefix, tmp_path, monkeypatch, capsys, time):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", time)
    assert main(["report", prefix, "-o", f"{tmp_path}/page.html"]) == 1
    assert "SOURCE_DATE_EPOCH" in capsys.readouterr().err


def test_a_section_that_fails_leaves_the_others_and_is_told(prefix, tmp_path, capsys):
    index = Path(f"{prefix}.idx")
    data = bytearray(index.read_bytes())
    data[34:38] = (9).to_bytes(4, "little")
    index.write_bytes(data)
    path = tmp_path / "page.html"
    assert main(["report", prefix, "-o", str(path), "--json"]) == 1
    out, err = capsys.readouterr()
    assert "error: Documents and tokens: " in err
    described = json.loads(out)
    assert (described["path"], described["num_bytes"]) == (str(path), path.stat().st_size)
    found = next(each for each in described["sections"] if each["id"] == "documents")
    assert not found["made"]
    assert "add up to" in found["error"]
    assert "This section could not be made" in path.read_text()


def test_warnings_are_said_in_a_line_each(tmp_path, capsys):
    (tmp_path / "in.jsonl").write_text('{"text": "some words"}\n' * 9)
    words = ["--output-prefix", f"{tmp_path}/out", "--tokenizer", "byte", "--workers", "1"]
    assert main(["preprocess", f"{tmp_path}/in.jsonl", *words]) == 0
    capsys.readouterr()
    words = ["--sequence-length", "8", "--tokenizer", "null:300", "-o", f"{tmp_path}/page.html"]
    assert main(["report", f"{tmp_path}/out_text_document", *words]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["warning"], lines
    assert "were made with byte" in lines[0]
