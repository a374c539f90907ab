"""The names of objects, and of what files name from their own folder on."""

from __future__ import annotations

import pytest

from tokenloom.errors import ConfigError
from tokenloom.storage.addresses import (
    ObjectAddress,
    canonical_path,
    is_remote,
    parse_address,
    path_of_name,
    relative_name,
    short_hash,
)


def test_an_address_has_three_parts():
    address = parse_address("s3://bucket/a/b.idx")
    assert address == ObjectAddress("s3", "bucket", "a/b.idx")
    assert (str(address), address.root) == ("s3://bucket/a/b.idx", "s3://bucket")
    assert parse_address("s3://bucket", is_folder=True) == ObjectAddress("s3", "bucket", "")


@pytest.mark.parametrize("path", ["gs://b/k", "az://b/k", "https://host:80/k", "msc://profile/k"])
def test_schemes(path):
    assert str(parse_address(path)) == path
    assert is_remote(path)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (
            "ftp://b/k",
            "expected a path or an address with one of s3://, gs://, az://, http://, https://, msc://, hf://, found `ftp://b/k`",
        ),
        ("s3://bucket", "expected `s3://BUCKET/KEY`, found `s3://bucket`"),
        ("s3:///key", "expected `s3://BUCKET/KEY`, found `s3:///key`"),
        ("s3://b/../../x", "expected a key without empty, `.` and `..` segments, found '../../x' in `s3://b/../../x`"),
        ("s3://b/a//x", "expected a key without empty, `.` and `..` segments, found 'a//x' in `s3://b/a//x`"),
        ("s3://b/./x", "expected a key without empty, `.` and `..` segments, found './x' in `s3://b/./x`"),
    ],
)
def test_what_is_no_address_is_refused(path, text):
    with pytest.raises(ConfigError) as info:
        parse_address(path)
    assert info.value.message == text


def test_local_paths_are_compared_without_detours_and_addresses_as_they_are():
    assert canonical_path("/a/b/../c") == "/a/c"
    assert canonical_path("s3://b/c") == "s3://b/c"
    assert not is_remote("/a:b//c")


def test_hashes_tell_values_apart():
    assert short_hash("a", "bc") != short_hash("ab", "c")
    assert len(short_hash("s3://b/../x" * 100)) == 32


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
