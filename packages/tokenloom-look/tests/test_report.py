"""The command `tokenloom report`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support import write_corpus

from tokenloom.cli import main


@pytest.fixture
def prefix(tmp_path: Path) -> str:
    return write_corpus(tmp_path / "corpus", [[1] * 3, [1] * 4])


def test_a_page_is_written_and_replaced_only_with_overwrite(prefix, tmp_path, capsys):
    path = tmp_path / "page.html"
    path.write_text("mine")
    assert main(["report", f"{prefix}-missing", "-o", str(path)]) == 1
    assert "exists already" in capsys.readouterr().err
    assert path.read_text() == "mine"
    assert main(["report", prefix, "-o", str(path), "--overwrite"]) == 0
    out, err = capsys.readouterr()
    assert (out.startswith(f"{path}: "), " sections, " in out, err) == (True, True, "")
    assert path.read_text().startswith("<!doctype html>")


def test_a_failing_section_leaves_the_others(prefix, tmp_path, capsys):
    index = Path(f"{prefix}.idx")
    data = index.read_bytes()
    index.write_bytes(data[:34] + (9).to_bytes(4, "little") + data[38:])
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
