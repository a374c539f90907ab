"""A file names others from its own folder on, where they lie below it."""

from __future__ import annotations

import pytest

from tokenloom.errors import ConfigError
from tokenloom.storage.relative_names import path_of_name, relative_name


@pytest.mark.parametrize(
    ("path", "owner", "name"),
    [
        ("/a/b/c", "/a/run.lock", "b/c"),
        ("/a/b/c", "/a/d/run.lock", "/a/b/c"),
        ("s3://bucket/a/b", "/a/run.lock", "s3://bucket/a/b"),
        ("s3://bucket/a/b", "s3://bucket/a/run.lock", "b"),
        ("s3://bucket/b", "s3://bucket/a/run.lock", "s3://bucket/b"),
    ],
)
def test_there_and_back(path, owner, name):
    assert relative_name(path, owner=owner) == name
    assert path_of_name(name, owner=owner) == path


def test_names_from_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert relative_name("data/web", owner="run.lock") == "data/web"
    assert relative_name(f"{tmp_path}/data/web", owner="run.lock") == "data/web"
    assert relative_name("../web", owner="run.lock") == f"{tmp_path.parent}/web"
    assert path_of_name("data/web", owner="run.lock") == "data/web"


def test_what_others_could_not_read_is_refused():
    with pytest.raises(ConfigError, match=r"`s3://bucket/run\.lock` in object storage would name the local pair"):
        relative_name("/a/b", owner="s3://bucket/run.lock")
    for name in ("/a/b", "../b", "a/../../b"):
        with pytest.raises(ValueError, match=r"the local pair '.*' in object storage"):
            path_of_name(name, owner="s3://bucket/run.lock")
