"""`tokenloom preprocess-multimodal`, and what the other commands make of its output."""

from __future__ import annotations

import json

import pytest
from tests.cli.runs import rows_of
from tests.preprocess.corpus import byte_level_json, write_lines

from tokenloom import cli


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "tokenizer.json").write_text(byte_level_json())
    (tmp_path / "cat.jpg").write_bytes(b"\xff\xd8image")
    write_lines(tmp_path / "pairs.jsonl", [{"text": "a cat", "image": "cat.jpg"}, {"text": "x", "image": "absent"}])
    return tmp_path


def run(folder, *more):
    command = ["preprocess-multimodal", f"{folder}/pairs.jsonl", "--output-prefix", f"{folder}/p"]
    return cli.main([*command, "--tokenizer", str(folder), *more])


def test_other_commands_know_the_images(capsys, folder, monkeypatch):
    assert run(folder, "--skip-bad-lines") == 0
    capsys.readouterr()
    monkeypatch.chdir(folder)
    assert cli.main(["show", "p", "--document", "0", "--tokenizer", "."]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "document 0 of p"
    assert any(", sequence 0 of 2, all 3 tokens ─" in line for line in lines)
    assert "a cat" in lines
    assert "[image of 7 bytes]" in lines
    assert cli.main(["info", f"{folder}/p", "--multimodal"]) == 0
    out = capsys.readouterr().out
    assert "sequences of mode 0" in out
    assert "1 with 3 tokens" in out
    assert cli.main(["info", f"{folder}/p", "--multimodal", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["modes"] == [[0, 1, 3], [1, 1, 3]]
    assert cli.main(["verify", f"{folder}/p", "--multimodal"]) == 0
    merge = ["merge", f"{folder}/p", f"{folder}/p", "--multimodal", "--output-prefix", f"{folder}/twice"]
    assert cli.main(merge) == 0
    assert ["2", "2", "4", "12", "48", "int32"] in [row[1:] for row in rows_of(capsys.readouterr().out)]
