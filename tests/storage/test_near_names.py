"""Which file may have been meant by a name that is not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tokenloom.storage.near_names import did_you_mean


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a folder `data` in it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    for name in ("web_text_document.idx", "web_text_document.bin", "books.idx", "corpus.jsonl", ".books.lock"):
        (tmp_path / "data" / name).touch()
    return tmp_path


@pytest.mark.parametrize(
    ("path", "suffix", "question"),
    [
        ("data/web", ".idx", "did you mean `data/web_text_document`?"),
        ("data/boks", ".idx", "did you mean `data/books`?"),
        ("data/corpus.json", "", "did you mean `data/corpus.jsonl`?"),
        ("data/corpsu.jsonl", "", "did you mean `data/corpus.jsonl`?"),
        ("dat", "", "did you mean `data`?"),
        ("data/nothing-like-it", "", None),
        ("data/", ".idx", None),
        ("dtaa/web", ".idx", "there is no folder `dtaa`"),
    ],
)
def test_what_may_have_been_meant(folder, path, suffix, question):
    assert did_you_mean(path, suffix=suffix) == question


def test_a_folder_that_cannot_be_listed_is_no_error(folder):
    assert did_you_mean("data/corpus.jsonl/web") is None
