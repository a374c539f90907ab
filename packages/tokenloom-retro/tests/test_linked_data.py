"""Data sets as a user names them, and where a project has them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from retro_making import letters, project_of
from tests.support import write_corpus

from tokenloom.errors import ConfigError, OutputExistsError
from tokenloom_retro.project import RetroProject, linked_data

pytestmark = pytest.mark.slow


def pair(path: Path, text: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_corpus(path, [letters(text)])
    return str(path)


def test_pairs_of_the_project_are_named_as_they_lie_in_it(tmp_path: Path):
    made = project_of(tmp_path / "project", **{"books": [letters("a")], "web/a": [letters("b")]})
    entries = ["30", f"{made.data_folder}/books", "70", f"{tmp_path}/project/data/../data/web/a.bin"]
    assert linked_data(made, entries) == ((30.0, "books"), (70.0, "web/a"))
    assert linked_data(made, [made.data_prefix("books")]) == ((None, "books"),)
    assert not [path for path in Path(made.folder).rglob("*") if path.is_symlink()]


def test_pairs_outside_are_linked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    pair(tmp_path / "elsewhere" / "books", "abc")
    (tmp_path / "elsewhere" / "books.manifest.json").write_text("{}")
    made = RetroProject("project")
    for _ in range(2):
        assert linked_data(made, ["2", "elsewhere/books"]) == ((2.0, "books"),)
    assert sorted(os.listdir(made.data_folder)) == ["books.bin", "books.idx", "books.manifest.json"]
    for path in Path(made.data_folder).iterdir():
        assert path.resolve() == tmp_path / "elsewhere" / path.name
    assert linked_data(made, [made.data_prefix("books")]) == ((None, "books"),)


def test_another_pair_of_the_same_name_is_refused_and_nothing_is_linked(tmp_path: Path):
    made = project_of(tmp_path / "project", books=[letters("a")])
    other = pair(tmp_path / "other" / "books", "b")
    new = pair(tmp_path / "other" / "new", "b")
    with pytest.raises(OutputExistsError, match=r"expected nothing at `.*data/books\.bin`, or a link"):
        linked_data(made, ["1", other])
    third = pair(tmp_path / "third" / "new", "c")
    with pytest.raises(ConfigError, match=r"expected data sets of different names, found `.*other/new` and `.*third"):
        linked_data(made, ["1", new, "1", third])
    assert sorted(os.listdir(made.data_folder)) == ["books.bin", "books.idx"]
