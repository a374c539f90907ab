"""`tokenloom retro build`."""

from __future__ import annotations

import json
import os

import pytest
from tests.cli.retro_projects import build_words, write_data
from tests.cli.runs import run

from tokenloom import cli

pytest.importorskip("faiss")
pytest.importorskip("wordllama")


@pytest.fixture
def folder(tmp_path):
    write_data(tmp_path)
    return tmp_path


def test_it_builds_then_finds_all_of_it_done(folder, capsys):
    status, out, err = run(capsys, *build_words(folder))
    assert (status, err) == (0, "")
    assert "books_text_document, web_text_document" in out
    assert "chunks of train with neighbors" in out
    status, out, _ = run(capsys, *build_words(folder), "--json")
    told = json.loads(out)
    assert status == 0
    assert told["data"][1] == {"prefix": "web_text_document", "weight": 2.0}
    assert told["database"]["num_docs"] == 40
    assert told["num_vectors"] == told["database"]["num_chunks_train"]
    assert told["neighbors"] == {"train": {"num_chunks": 24}, "valid": {"num_chunks": 4}}
    for name in ("books_text_document.bin", "web_text_document.idx"):
        assert os.readlink(folder / "project" / "data" / name) == str(folder / name)


def test_tasks_one_by_one_tell_what_is_there(folder, capsys):
    _, out, _ = run(capsys, *build_words(folder), "--tasks", "db-build", "--json")
    assert (json.loads(out)["num_vectors"], json.loads(out)["neighbors"]) == (None, None)
    assert not (folder / "project" / "index").exists()
    _, out, _ = run(capsys, *build_words(folder), "--tasks", "index-build", "--json")
    assert json.loads(out)["num_vectors"] > 0
    assert run(capsys, *build_words(folder), "--tasks", "query-neighbors", "--processes", 2)[0] == 0


def test_other_settings_need_overwrite(folder, capsys):
    run(capsys, *build_words(folder))
    status, out, err = run(capsys, *build_words(folder, "--neighbors", "2"))
    assert (status, out) == (1, "")
    assert "exists, and was made with other settings" in err
    assert "`--overwrite`" in err
    assert run(capsys, *build_words(folder, "--neighbors", "2", "--overwrite", "--restart"))[0] == 0


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--tokenizer", "null:300"], "expected the tokenizer that made the data"),
        (["--sequence-length", 40], "expected a sample length that is a multiple of the chunk length 16, found 40"),
        (["--test-samples", 2], "expected documents of test for 2 samples, found none: the split is '80,20,0'"),
        (["--train-samples", 0, "--valid-samples", "none"], "expected a number of samples of train, valid or test"),
        (["--tasks", "query"], "expected tasks of db-build, index-build, query-neighbors, found 'query'"),
        (["--embedder", "none"], "expected the name of an embedder, found 'none'"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_made(more, message, folder, capsys):
    status, out, err = run(capsys, *build_words(folder, *more))
    assert (status, out) == (1, "")
    assert err.startswith("error: ")
    assert message in err
    assert not (folder / "project" / "db").exists()


def test_what_is_needed_is_named(capsys):
    with pytest.raises(SystemExit, match="2"):
        cli.main(["retro", "build", "project"])
    assert capsys.readouterr().err.startswith(
        "error: missing: --data ENTRY, --sequence-length S, --index STRING, --index-chunks N, --tokenizer PATH"
    )
