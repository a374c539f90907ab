"""`tokenloom retro show`."""

from __future__ import annotations

import json

import pytest
from tests.cli.retro_projects import built
from tests.cli.runs import run

pytest.importorskip("faiss")
pytest.importorskip("wordllama")


@pytest.fixture
def project(tmp_path, capsys):
    return built(capsys, tmp_path)


def test_a_sample_is_shown_with_its_neighbors(project, capsys, monkeypatch):
    status, out, err = run(capsys, "retro", "show", project, "--sample", 3)
    assert (status, err) == (0, "")
    first, second, third, *lines = out.splitlines()
    assert first == "sample 3 of 12 (train)"
    assert second.startswith("of document")
    assert third == "── chunk 0, tokens 0 to 15 " + "─" * 53
    assert [line for line in lines if line.startswith("    neighbor 2: document ")]
    assert not [line for line in lines if line.startswith("    neighbor 3: ")]
    assert max(map(len, lines)) <= 80
    assert "\x1b" not in out
    assert "\x1b[1m" in run(capsys, "retro", "show", project, "--sample", 3, "--color", "always")[1]
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b" in run(capsys, "retro", "show", project, "--sample", 3)[1]
    monkeypatch.setenv("NO_COLOR", "1")
    assert run(capsys, "retro", "show", project, "--sample", 3)[1] == out


def test_json_has_all_of_it(project, capsys):
    words = ["--sample", -1, "--split", "valid", "--neighbors", 9, "--retrieved-chunks", 2, "--json"]
    status, out, _ = run(capsys, "retro", "show", project, *words)
    told = json.loads(out)
    assert status == 0
    assert (told["split"], told["sample"], told["num_samples"]) == ("valid", 1, 2)
    assert [chunk["start"] for chunk in told["chunks"]] == [0, 16]
    for chunk in told["chunks"]:
        assert len(chunk["neighbors"]) == 3  # as many as were kept
        for retrieved in chunk["neighbors"]:
            assert {each["data"] for each in retrieved} < {"books_text_document", "web_text_document"} or not retrieved


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--sample", 12], "sample 12 of train was asked for, but 12 have neighbors"),
        (["--sample", 0, "--split", "test"], "expected neighbors of test in"),
        (["--sample", 0, "--tokenizer", "null:300"], "expected the tokenizer that made the data"),
    ],
)
def test_what_is_not_there_is_said(more, message, project, capsys):
    status, out, err = run(capsys, "retro", "show", project, *more)
    assert (status, out) == (1, "")
    assert err.startswith("error: ")
    assert message in err


def test_a_folder_that_is_no_project_is_named(tmp_path, capsys):
    status, _, err = run(capsys, "retro", "show", tmp_path, "--sample", 0)
    assert status == 1
    assert "expected the settings of a project in" in err
