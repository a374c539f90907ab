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
    assert "exists already" in capsys.readouterr().err
    assert path.read_text() == "mine"
    assert main(["report", prefix, "-o", str(path), "--overwrite"]) == 0
    assert path.read_text() != "mine"


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
    assert "This section failed" in path.read_text()


@pytest.mark.slow
def test_a_pair_in_a_bucket_is_read_by_range(prefix, tmp_path, bucket):
    address = bucket.put_pair(prefix, "data/corpus")
    assert main(["report", address, "-o", str(tmp_path / "page.html"), "--sequence-length", "4"]) == 0
    page = (tmp_path / "page.html").read_text()
    assert "2 documents of 7 tokens." in page
    assert address in page
