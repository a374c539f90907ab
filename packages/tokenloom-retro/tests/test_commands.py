"""`tokenloom retro`: builds, shows and verifies a project."""

from __future__ import annotations

import json
import os

import pytest
from retro_command_data import build_words, write_data
from tests.cli.runs import run

from tokenloom import cli

pytest.importorskip("faiss")
pytest.importorskip("wordllama")


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    folder = tmp_path_factory.mktemp("retro")
    write_data(folder)
    assert cli.main([str(word) for word in build_words(folder)]) == 0
    return folder / "project"


def test_a_second_build_finds_everything_done(project, capsys):
    folder = project.parent
    status, out, err = run(capsys, *build_words(folder), "--json")
    told = json.loads(out)
    assert (status, err) == (0, "")
    assert told["data"][1] == {"prefix": "web_text_document", "weight": 2.0}
    assert told["num_vectors"] == told["database"]["num_chunks_train"]
    assert told["neighbors"] == {"train": {"num_chunks": 24}, "valid": {"num_chunks": 4}}
    for name in ("books_text_document.bin", "web_text_document.idx"):
        assert os.readlink(project / "data" / name) == str(folder / name)


def test_other_settings_need_overwrite(tmp_path, capsys):
    write_data(tmp_path)
    assert run(capsys, *build_words(tmp_path))[0] == 0
    files = [path for path in (tmp_path / "project").rglob("*") if path.is_file()]
    before = {path: path.read_bytes() for path in files}
    assert json.loads(before[tmp_path / "project" / "config.json"])["retro_query_num_neighbors_save"] == 3
    status, out, err = run(capsys, *build_words(tmp_path, "--num-neighbors", "2"))
    assert (status, out) == (1, "")
    assert "exists, and was made with other settings" in err
    assert "`--overwrite`" in err
    assert {path: path.read_bytes() for path in (tmp_path / "project").rglob("*") if path.is_file()} == before
    assert run(capsys, *build_words(tmp_path, "--num-neighbors", "2", "--overwrite"))[0] == 0
    config = json.loads((tmp_path / "project" / "config.json").read_text())
    assert config["retro_query_num_neighbors_save"] == 2


def test_a_sample_is_shown_with_its_neighbors(project, capsys):
    status, out, err = run(capsys, "retro", "show", project, "--sample", 3)
    assert (status, err) == (0, "")
    first, second, third, *lines = out.splitlines()
    assert first == "sample 3 of 12 (train)"
    assert second.startswith("of document")
    assert third == "── chunk 0, tokens 0 to 15 " + "─" * 53
    assert [line for line in lines if line.startswith("    neighbor 2: document ")]
    assert max(map(len, lines)) <= 80
    words = ["--sample", -1, "--split", "valid", "--neighbors", 9, "--json"]
    told = json.loads(run(capsys, "retro", "show", project, *words)[1])
    assert (told["split"], told["sample"], told["num_samples"]) == ("valid", 1, 2)
    assert [(chunk["start"], len(chunk["neighbors"])) for chunk in told["chunks"]] == [(0, 3), (16, 3)]


def test_verify_finds_a_changed_file(project, capsys):
    head = f"{project}: ok: all files and all recomputed blocks are unchanged"
    assert run(capsys, "retro", "verify", project, "--task-validate", 1)[1].startswith(head)
    [path] = project.glob("query/train_*/*.hdf5")
    before = path.read_bytes()
    path.write_bytes(before[:-1] + bytes([before[-1] ^ 1]))
    try:
        status, out, err = run(capsys, "retro", "verify", project)
    finally:
        path.write_bytes(before)
    assert (status, err, out.splitlines()[-1]) == (1, "", f"{project}: 1 problem")
    assert str(path) in out.splitlines()[0]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["verify", "PROJECT", "--task-validate", 1.5], "`fraction` must be in (0, 1], got 1.5"),
        (["show", "PROJECT", "--sample", 12], "sample index 12 out of range: 12 samples of train have neighbors"),
        (["show", "PROJECT", "--sample", 0, "--tokenizer", "null:300"], "expected the tokenizer that made the data"),
        (["show", ".", "--sample", 0], "no file `./config.json`"),
    ],
)
def test_missing_projects_are_errors(words, message, project, capsys):
    status, out, err = run(capsys, "retro", *(project if word == "PROJECT" else word for word in words))
    assert (status, out) == (1, "")
    assert message in err
